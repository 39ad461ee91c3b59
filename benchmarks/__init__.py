"""Measurements: speed in ``perf``, claims about growth in ``science``, growth at equal compute in ``headline``."""
