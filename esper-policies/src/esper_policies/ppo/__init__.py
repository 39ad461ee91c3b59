"""A gardener who learns: proximal policy optimisation over rows of whatever can grow wherever it can.

options      what can be chosen, and how much of it is fixed          encoding   observations as tensors
network      scores rows, and values the whole                        choosing   from scores to decisions
decisions    turns of a rollout as decisions, some steps apart        advantages what a decision was worth
scaling      columns and returns of order one                         learning   the update
imitating    learning from what another did                           keeping    a trained gardener as files
diagnosis    whether it learns, in words                              policy     the policy itself
"""
