"""Measurements of speed (``perf``, ``gpu``, ``engines``) and of growth (``science``, ``headline``).

``golden`` compares the numbers of two revisions, and ``mutants`` counts changes that no test notices.
"""
