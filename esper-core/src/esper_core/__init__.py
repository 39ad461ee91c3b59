"""Esper grows neural networks while they train. Plugins import its core: ``import esper_core as esper``.

Its names are the hooks, the specifications that plugins declare, the protocols that components implement, and the
slots of a model. Each name is imported when it is first used, so that ``import esper_core`` is cheap. More contracts
are in ``esper_core.leyline``. The package esper-run starts runs, and with esper-grow models grow in loops of your own.

What is here, from the bottom up; an import goes down only:

    leyline     contracts: what plugins and the parts of the core rely on; imports nothing else
    settings    settings of growth, governor, optimizers, episodes and computing
    hooks       the hooks that a plugin can implement
    plugins     find, load and call packages that extend Esper
    growth      slots in any model, the seeds in them, and how seeds are trained, judged and kept
    governor    watch a training, and roll back or stop what goes wrong
    telemetry   what a run reports about itself
    fused       compute networks of one structure as one program
    trainer     train networks while they grow
"""

import lazy_loader

from esper_core._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
