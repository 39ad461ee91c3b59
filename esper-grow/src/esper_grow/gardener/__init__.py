"""Growing a model in a training loop of the user's own.

    gardener             ``Gardener``: what the loop calls
    loop_environment     the network of the loop as an environment in the phases of a step (``trainer.pool``)
    choices              what may grow, and who decides
    checks               what a Gardener is given, and its model between two calls
    seed_sets            seeds that germinate together, on one branch
    counterfactuals      losses with seeds left out
    prospects            what cannot grow, told before training
    borrowed_optimizers  the user's optimizers as a garden sees them
    losses               the losses of which a loss function returns the mean
    validation           losses of held-out examples, and the same examples in every pass
    traces               passes without side effects on random numbers, gradients and modes of the loop
    stale_copies         lists, averages and copies of the parameters, in which a kept seed is missing
    reports              what ``tend`` returns
    loop_record          the run directory of a loop, for the report and the live view

The network is the one that ``esper run`` drives (``trainer.growing_network``), and the order of a step is that of its
loop.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
