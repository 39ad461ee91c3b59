"""Rewards for Esper, and the terms they are made of.

    potentials   Team (the default) and Loss: an episode adds up to a potential at its end
    terms        gains and costs
    settings     the settings of all rewards
    plugin       registers them by name

Begin with ``Team``. Not here: how a reward is called (``esper_core.leyline.Reward``) and how it is tested
(esper-testing). In a program, import a reward from its module; this package imports nothing by itself.
"""
