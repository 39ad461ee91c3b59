"""Reward terms for Esper and the named rewards made of them.

    Team                            esper_rewards.team         the default: gain over the twin, less what it added
    Escrow, Loss                    esper_rewards.potentials   changes of a potential, too
    Minimal, Simplified, Sparse     esper_rewards.endings      told at the end
    Basic, BasicPlus, Shaped        esper_rewards.dense        the classic ones, step by step

The terms stand in ``gains``, ``costs`` and ``shaping``; ``moments`` reads from two steps whose life began or ended.
The plugin registers the rewards by name; in a program, import them from where they stand. This page imports nothing.
"""
