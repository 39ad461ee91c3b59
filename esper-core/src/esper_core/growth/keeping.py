"""How is what a pass changes put back? Each buffer as the object that it was, with the value that it had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


class KeptBuffers:
    """The buffers of a model, without those of some of its parts, as they were when this was made.

    Some layers fill a buffer and some replace it by another tensor; ``put_back`` undoes both.
    """

    def __init__(self, model: nn.Module, *, without: Iterable[nn.Module] = ()) -> None:
        left_out = {id(module) for part in without for module in part.modules()}
        self._kept = [
            (module, name, buffer, buffer.detach().clone())
            for module in model.modules()
            if id(module) not in left_out
            for name, buffer in module.named_buffers(recurse=False)
        ]

    def put_back(self) -> None:
        """Make every buffer what it was."""
        with torch.no_grad():
            for module, name, buffer, value in self._kept:
                buffer.copy_(value)
                if getattr(module, name) is not buffer:
                    setattr(module, name, buffer)
