"""Growth: slots in any model, the seeds in them, and how seeds are trained, judged and kept.

Begin with ``grafting`` (slots in a model), ``seeds`` and ``garden`` (what actions and time do to seeds).

    random_streams    independent random numbers
    examples          one batch of any structure, and how a model is run on it
    dry_runs          run a model without leaving a trace; sites and dtypes of its modules
    seeds             a block, the operators that blend it in, its alpha; the error of a block that raises
    serialization     values and tensors as a State and back
    slots             forward hooks in which seeds act, and which catch what a block raises
    journal           the record of what grew, also in state dicts
    grafting          put slots into a model
    optimizers        builds optimizers; which of them owns and steps which parameter
    optimizer_steps   Adam steps, optimizer state, gradient statistics
    incubation        train a seed before it acts: shadow, branch
    gates             whether a seed's gain pays for its price; they judge, and ``garden`` acts
    transitions       which actions are legal, blueprints that were withdrawn; all-or-nothing changes
    rebuilding        build a grown network again from its journal; ``esper_grow.network_files`` reads the files
    garden            all seeds of one model: germinate, advance, prune and fossilise them, by an action or with time
    prices            what each seed of a garden has to gain
    averages          running averages of weights, by which networks are judged
    snapshots         copy a host, and restore it in a rollback, with the state of its optimizers
    trials            check blueprints before a run
    hosts             what a caller asks of a model, grafted or not

Each module imports only from those above it. Policies choose the actions, and the trainer trains the host.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
