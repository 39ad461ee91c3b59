"""Policies for Esper: who decides what grows, where and when."""
