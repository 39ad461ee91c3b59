"""Who trains which parameter? One keeper for each model, which owns every trainable parameter exactly once.

A seed's optimizer is made with the seed, lives with it through every stage, and is released when the seed is pruned or
handed over to the host's side, state and all, when it is fossilised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.utils import clip_grad_norm_

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn

    from esper_core.config import OptimizerConfig
    from esper_core.growth.seed import Seed


def build_optimizer(settings: OptimizerConfig, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer over ``parameters``; fused, which is the quickest on a CPU too."""
    if settings.kind == "adam":
        return torch.optim.Adam(parameters, settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=True
    )


@dataclass(frozen=True, slots=True)
class Share:
    """Parameters that step together, and what makes them step."""

    parameters: tuple[nn.Parameter, ...]
    optimizer: torch.optim.Optimizer
    clip_norm: float | None


class OptimizerKeeper:
    """The shares of one model: the host's, and one for each seed and each fossil."""

    def __init__(
        self, host: Iterable[nn.Parameter], *, host_settings: OptimizerConfig, seed_settings: OptimizerConfig
    ) -> None:
        trainable = tuple(parameter for parameter in host if parameter.requires_grad)
        self._seed_settings = seed_settings
        self.host = Share(trainable, build_optimizer(host_settings, trainable), host_settings.clip_norm)
        self.seeds: dict[int, Share] = {}
        self.fossils: dict[int, Share] = {}

    def adopt(self, seed: Seed) -> None:
        """Take on a newborn seed's parameters, with an optimizer of their own."""
        parameters = tuple(parameter for parameter in seed.parameters() if parameter.requires_grad)
        owned = {id(parameter) for share in self.shares() for parameter in share.parameters}
        if seed.number in self.seeds or any(id(parameter) in owned for parameter in parameters):
            msg = f"seed {seed.number} is owned already"
            raise RuntimeError(msg)
        settings = self._seed_settings
        self.seeds[seed.number] = Share(parameters, build_optimizer(settings, parameters), settings.clip_norm)

    def release(self, number: int) -> None:
        """Let a pruned seed's parameters and their state go."""
        del self.seeds[number]

    def hand_over(self, number: int) -> None:
        """A fossilised seed goes over to the host's side; its optimizer's state comes along untouched."""
        self.fossils[number] = self.seeds.pop(number)

    def shares(self) -> tuple[Share, ...]:
        """Every share there is."""
        return (self.host, *self.fossils.values(), *self.seeds.values())

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for share in self.shares():
            share.optimizer.zero_grad(set_to_none=True)

    def step(self, blended: Iterable[int]) -> None:
        """One step of the host, of its fossils, and of the ``blended`` seeds, from the gradients that lie there."""
        if self.host.clip_norm is not None:
            clip_grad_norm_(self._host_side(), self.host.clip_norm)
        self.host.optimizer.step()
        for share in self.fossils.values():
            share.optimizer.step()
        for number in blended:
            self._step_alone(self.seeds[number])

    def step_seed(self, number: int, gradients: Sequence[Tensor | None]) -> None:
        """One step of one seed from gradients that are given, in the order of its share; they do not stay behind."""
        share = self.seeds[number]
        for parameter, gradient in zip(share.parameters, gradients, strict=True):
            parameter.grad = gradient
        self._step_alone(share)
        share.optimizer.zero_grad(set_to_none=True)

    def forget_host_state(self) -> None:
        """Clear what the optimizers of host and fossils remember: their next step is that of a fresh optimizer."""
        for share in (self.host, *self.fossils.values()):
            share.optimizer.state.clear()

    def unowned(self, model: nn.Module) -> list[str]:
        """Names of trainable parameters that are not owned exactly once; empty when all is well."""
        owners: dict[int, int] = {}
        for share in self.shares():
            for group in share.optimizer.param_groups:
                for parameter in group["params"]:
                    owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        return [
            name
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and owners.get(id(parameter), 0) != 1
        ]

    def _host_side(self) -> list[nn.Parameter]:
        return [parameter for share in (self.host, *self.fossils.values()) for parameter in share.parameters]

    @staticmethod
    def _step_alone(share: Share) -> None:
        if share.clip_norm is not None:
            clip_grad_norm_(share.parameters, share.clip_norm)
        share.optimizer.step()
