"""Probes: try which blueprint would help a model, and where, without touching it.

search       ``probe``: trains copies of the model within a budget, and compares them
places       where to try, if nothing is named
data         training batches, the same in each training
host         how long the host is trained before anything is tried
budget       durations, the time that is left, and how long trials can be
candidates   blueprints in slots, what their trials showed, and how they rank
trainings    copies of the model with their optimizers
results      the result: rows, table and JSON
placement    ``place_adapters``: where adapters go, by training them at all places together
gated_adapters  what each adapter brings beside those that act, for one backward pass
plans        ``AdapterPlan``: what it returns, as a table, a file, slots of a Gardener, and settings of PEFT
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
