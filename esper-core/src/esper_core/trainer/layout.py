"""How do images lie in memory? With the features of one place side by side, where host and blueprints allow it.

Convolutions, pooling and normalisation of small images are half as quick again then. Weights and data lie so, and
whatever passes through takes it over. But code that looks at the same memory in another shape, with
``view`` where ``reshape`` would do, cannot go on; so it is tried before a run begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from esper_core.growth import draws_of, draws_of_variety, slots_of
from esper_core.leyline.constants import PROBE_EXAMPLES
from esper_core.plugins.faults import attempt
from esper_core.trainer.feeding import IMAGES, sent

if TYPE_CHECKING:
    from torch import nn

    from esper_core.leyline import Split
    from esper_core.trainer.environment import Recipe


def laid_out(recipe: Recipe, host: nn.Module) -> Recipe:
    """The recipe for hosts with channels last, if ``host``, which is one of them, takes images and goes so."""
    if recipe.compute.layout == "plain" or recipe.data["train"].inputs.dim() != IMAGES:
        return recipe
    _lay(host, torch.channels_last)
    if attempt(lambda: _try_all(recipe, host)).error is not None:
        _lay(host, torch.contiguous_format)
        return recipe
    streamed = recipe.compute.data == "streamed"  # from a file, maybe: such data stay as they are
    data = recipe.data if streamed else {name: _laid(split) for name, split in recipe.data.items()}
    return replace(recipe, build_host=lambda: _lay(recipe.build_host(), torch.channels_last), data=data)


def _laid(split: Split) -> Split:
    return replace(split, inputs=split.inputs.contiguous(memory_format=torch.channels_last))


def _lay(model: Any, layout: torch.memory_format) -> nn.Module:
    """The model, with its weights laid so. Torch's own annotations do not know that it can."""
    laid: nn.Module = model.to(memory_format=layout)
    return laid


def _try_all(recipe: Recipe, host: nn.Module) -> None:
    """Run the host and each block that may grow in it, forth and back; what any of them raises is raised."""
    train = _laid(recipe.data["train"])
    inputs, targets = (sent(own[:PROBE_EXAMPLES], recipe.device) for own in (train.inputs, train.targets))
    draws_of(host, lambda model: recipe.task.losses(model(inputs), targets).mean())
    sites = {slot.name: slot.site for slot in slots_of(host).each()}
    for name, varieties in recipe.varieties.items():
        if (site := sites[name]) is not None:
            for variety in varieties:
                draws_of_variety(variety, site, recipe.device, memory_format=torch.channels_last)
