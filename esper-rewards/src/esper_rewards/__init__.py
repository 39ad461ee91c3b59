"""Rewards for Esper, and the terms they are made of.

    potentials   Team (the default), Escrow and Loss: changes of a potential, paid in each step
    terminal     Sparse, Minimal and Simplified: paid at the end of an episode
    dense        Basic, BasicPlus and Shaped: paid in each step without a potential; for comparison
    terms        gains, costs and shaping, and the births and ends of seeds between two steps
    settings     the settings of all rewards
    plugin       registers them by name

Begin with ``Team``. Not here: how a reward is called (``esper_core.leyline.Reward``) and how it is tested for exploits
(esper-testing). In a program, import a reward from its module; this package imports nothing by itself.
"""
