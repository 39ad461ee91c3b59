"""Hosts and data for Esper, all of it offline.

    mnist1d, mnist1d_shuffled   esper_tasks.mnist1d         ten digits as short signals, and the negative control
    stripes                     esper_tasks.stripes         a task of milliseconds, for tests
    PointwiseMlp                esper_tasks.pointwise_mlp   a host that cannot see a shape

The plugin registers them by name; in a program, import them from where they stand. This page imports nothing.
"""
