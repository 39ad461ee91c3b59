"""How is what a pass changes put back? Each buffer as the object that it was, with the value that it had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

_SETTLED: Final = ("torch.nn.", "esper_core.")
"""Where classes come from whose buffers are all there from the beginning."""


class KeptBuffers:
    """The buffers of a model, without those of some of its parts, as they were when this was made.

    Some layers fill a buffer, some replace it by another tensor, and some have none until the first pass; ``put_back``
    undoes each of these.
    """

    def __init__(self, model: nn.Module, *, without: Iterable[nn.Module] = ()) -> None:
        left_out = {id(module) for part in without for module in part.modules()}
        modules = [module for module in model.modules() if id(module) not in left_out]
        self._kept = [
            (module, name, buffer, buffer.detach().clone())
            for module in modules
            for name, buffer in module.named_buffers(recurse=False)
        ]
        self._names = [
            (module, frozenset(dir(module))) for module in modules if not type(module).__module__.startswith(_SETTLED)
        ]

    def put_back(self) -> None:
        """Make every buffer what it was."""
        with torch.no_grad():
            for module, name, buffer, value in self._kept:
                buffer.copy_(value)
                if getattr(module, name) is not buffer:
                    setattr(module, name, buffer)
        kept = {(id(module), name) for module, name, _, _ in self._kept}
        for module, names in self._names:
            for name in [name for name, _ in module.named_buffers(recurse=False) if (id(module), name) not in kept]:
                if name in names:
                    setattr(module, name, None)  # it was registered without a value
                else:
                    delattr(module, name)
