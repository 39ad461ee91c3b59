"""Grow models in training loops of your own, probe where growing pays, and export what grew.

    from esper_grow import Gardener, adapters, disable_adapters, probe, export, graft, ungraft, prune
    from esper_grow import save, load, load_best

Each name is imported when it is first used.

What is here:
    adaptation: ``adapters``, which finds the layers that adapters grow beside; ``name_adapters``, ``use_adapters`` and
        ``disable_adapters``, which name them and switch them.
    command: the command ``esper probe``.
    exports: a grown network as a plain module.
    gardener: ``Gardener``, which grows a model in a loop of your own.
    integrations: callbacks for Lightning, transformers and accelerate.
    network_files: save and load grown networks.
    peft: adapters that grew as a folder of PEFT, and such folders as kept seeds.
    peft_growth: what grew in a model with PEFT's own adapters is saved beside them.
    probes: ``probe``, which tries what would help a model, where, by how much and at what price.
"""

import lazy_loader

from esper_core import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
