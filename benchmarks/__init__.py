"""Measurements: speed in ``perf``, claims about growth in ``science``."""
