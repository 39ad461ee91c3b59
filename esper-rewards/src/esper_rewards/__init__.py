"""Reward terms for Esper and the named rewards made of them.

    Team   esper_rewards.team   the default: what the network gained over its twin, less the price of what it added

The plugin registers them by name; in a program, import them from where they stand. This page imports nothing.
"""
