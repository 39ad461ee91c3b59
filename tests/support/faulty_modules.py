"""Modules with one fault, for tests of checks: a correct one with another forward pass, or another birth."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def changes_of(right: type[nn.Module]) -> tuple[Callable[..., type[nn.Module]], Callable[..., type[nn.Module]]]:
    """Return two functions that make a class from a correct one, whose instances are built for a place.

    ``with_forward(forward, birth)``: its pass is ``forward(module, x, right)``, where ``right`` is the correct pass,
    and ``birth(module, place)`` is called when it is built; ``with_birth(birth)``: its pass is the correct one.
    """

    def with_forward(
        forward: Callable[..., Any], birth: Callable[..., Any] = lambda module, place: None
    ) -> type[nn.Module]:
        class Changed(right):  # type: ignore[misc, valid-type]
            def __init__(self, place: Any) -> None:
                super().__init__(place)
                with torch.no_grad():
                    birth(self, place)

            def forward(self, x: Tensor) -> Any:
                return forward(self, x, super().forward)

        return Changed

    return with_forward, lambda birth: with_forward(lambda module, x, right: right(x), birth)
