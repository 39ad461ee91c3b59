"""Policies for Esper: who decides what grows, where and when.

    Static     esper_policies.static     never grows: what the others have to beat
    Schedule   esper_policies.schedule   a plan that somebody wrote down

The plugin registers them by name; in a program, import them from where they stand. This page imports nothing.
"""
