"""Esper grows neural networks while they train.

These names are what programs and plugins may rely on. Each is imported when it is first used, so that
``import esper_core`` is cheap. More public names are in ``esper_core.leyline`` (the contracts of plugins),
``esper_core.growth`` (what a grown network consists of), ``esper_core.plugins``, ``esper_core.app.episode`` (stepping
through one episode manually) and ``esper_core.runs.statistics``. Everything else may change without notice.
"""

import lazy_loader

from esper_core._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
