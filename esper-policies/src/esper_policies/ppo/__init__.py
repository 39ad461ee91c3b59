"""Proximal policy optimisation over rows that describe whatever can grow in each slot.

    policy            Ppo: decides, collects rounds, and learns after each
    policy_network    PolicyNetwork: scores rows and values the whole; from scores to decisions
    encoding          observations as tensors, rollouts as decisions, and the scales of columns and returns
    learning          advantages, batches of episodes, and the clipped update
    trained_policies  trained policies as files, and the optimizer's state
    settings          PpoSettings

Begin with ``policy``.
"""
