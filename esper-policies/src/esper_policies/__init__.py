"""Policies for Esper: who decides what grows, where and when, and how fast it learns.

    Static     esper_policies.static     never grows: what the others have to beat
    Schedule   esper_policies.schedule   a plan that somebody wrote down
    Heuristic  esper_policies.heuristic  tries what could grow, and keeps what pays
    Random     esper_policies.random_policy     any of the things that are possible: the control of every study
    Bandit     esper_policies.bandit     which seed pays in which slot, from episode to episode
    Ppo        esper_policies.ppo.policy what to grow where and when, by proximal policy optimisation
    Warmup     esper_policies.learning_rates       learning rates that rise at first
    Cosine     esper_policies.learning_rates       learning rates that fall to the end

The plugin registers them by name; in a program, import them from where they stand. This page imports nothing.
"""
