"""Tests of the whole project, and what tests of several members share.

A regular package, since some data packages install a folder ``tests`` of their own, which would come first otherwise.
"""
