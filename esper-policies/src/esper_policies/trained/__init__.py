"""Trained policies, each a folder with tensors and JSON; ``load: NAME`` finds them here."""
