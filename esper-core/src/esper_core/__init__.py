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

_MOVED = {
    **dict.fromkeys(("run", "load_run", "read_events", "Run"), "esper_run"),
    **dict.fromkeys(("Gardener", "export", "load", "probe", "save"), "esper_grow"),
}
"""Names that belong to another package now."""

_lazy_getattr, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name in _MOVED:
        package = _MOVED[name]
        msg = f"{name} is in {package}:  from {package} import {name}  (pip install {package.replace('_', '-')})"
        raise ImportError(msg)
    return _lazy_getattr(name)
