"""Gardeners that have learnt, each a folder of numbers and words; ``load: NAME`` finds them here."""
