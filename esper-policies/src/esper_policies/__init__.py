"""Policies for Esper, which decide what grows, where and when, and schedules of learning rates.

    static          Static: never grows; the control that every growing policy has to beat
    schedule        Schedule: carries out a fixed plan
    heuristic       Heuristic: tries what can grow, and keeps what pays: its rules
    forecasts       Forecast: the gain of a seed that incubates, by which it decides what to try
    memories        Memory: what it has tried in an episode, and what that has cost
    random_policy   Random: any legal action; the control of every study
    ppo             Ppo: learns what to grow where and when, by proximal policy optimisation
    observations    an observation as rows of numbers, the input of policies that learn
    learning_rates  Warmup and Cosine: schedules of learning rates
    settings        the settings of all of them but ppo
    plugin          registers them by name

Begin with ``schedule``, the simplest policy that grows something. Not here: what an action does (``esper_core.growth``)
and rewards (esper-rewards). In a program, import a policy from its module; this package imports nothing by itself.
"""
