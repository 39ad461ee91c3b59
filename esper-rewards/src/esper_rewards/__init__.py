"""Reward terms for Esper and the named rewards made of them."""
