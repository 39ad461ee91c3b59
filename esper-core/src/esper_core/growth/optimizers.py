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


def build_optimizer(settings: OptimizerConfig, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
    """An optimizer over ``parameters``; fused, which is the quickest on a CPU too. None where there are none."""
    if not parameters:
        return None
    if settings.kind == "adam":
        return torch.optim.Adam(parameters, settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=True
    )


@dataclass(frozen=True, slots=True)
class Share:
    """Parameters that step together, and what makes them step."""

    parameters: tuple[nn.Parameter, ...]
    optimizer: torch.optim.Optimizer | None
    """None where there is nothing to train: a frozen host, say."""
    clip_norm: float | None

    def owned(self) -> list[nn.Parameter]:
        """What the optimizer really steps."""
        return [] if self.optimizer is None else [p for group in self.optimizer.param_groups for p in group["params"]]

    def step(self) -> None:
        """One step from the gradients that lie there."""
        if self.optimizer is not None:
            self.optimizer.step()

    def forget_gradients(self) -> None:
        """Drop the gradients that lie there."""
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def forget_state(self) -> None:
        """Clear what the optimizer remembers."""
        if self.optimizer is not None:
            self.optimizer.state.clear()


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
            share.forget_gradients()

    def step(self, blended: Iterable[int]) -> None:
        """One step of the host, of its fossils, and of the ``blended`` seeds, from the gradients that lie there."""
        if self.host.clip_norm is not None:
            clip_grad_norm_(self._host_side(), self.host.clip_norm)
        for share in (self.host, *self.fossils.values()):
            share.step()
        for number in blended:
            self._step_alone(self.seeds[number])

    def step_seed(self, number: int, gradients: Sequence[Tensor | None]) -> None:
        """One step of one seed from gradients that are given, in the order of its share; they do not stay behind."""
        share = self.seeds[number]
        for parameter, gradient in zip(share.parameters, gradients, strict=True):
            parameter.grad = gradient
        self._step_alone(share)
        share.forget_gradients()

    def forget_host_state(self) -> None:
        """Clear what the optimizers of host and fossils remember: their next step is that of a fresh optimizer."""
        for share in (self.host, *self.fossils.values()):
            share.forget_state()

    def astray(self, model: nn.Module) -> list[str]:
        """What is not as it should be: trainable parameters without exactly one owner, and owners of nothing there."""
        owners: dict[int, int] = {}
        for share in self.shares():
            for parameter in share.owned():
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        named = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
        lost = [name for key, name in named.items() if owners.get(key, 0) != 1]
        return lost + ["a parameter that is not in the model" for key in owners if key not in named]

    def _host_side(self) -> list[nn.Parameter]:
        return [parameter for share in (self.host, *self.fossils.values()) for parameter in share.parameters]

    @staticmethod
    def _step_alone(share: Share) -> None:
        if share.clip_norm is not None:
            clip_grad_norm_(share.parameters, share.clip_norm)
        share.step()
