"""Measurements of speed (``perf``, ``fused``, ``gpu``, ``engines``) and of growth (``science``, ``headline``).

``golden`` compares the numbers of two revisions, ``mutants`` counts changes that no test notices, and ``returns``
counts how often a reader changes the module on the main ways through the code.
"""
