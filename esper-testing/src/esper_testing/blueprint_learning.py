"""Can a block learn? A gradient reaches every parameter at once, and on a task that it can solve the loss falls."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from esper_core.leyline import Blend
from esper_core.leyline.constants import FULL
from esper_testing.checks import NotApplicable
from esper_testing.sites import STRENGTHS, USUAL, Factory, built, examples, expect, newborn, seeded, sites

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from esper_core import BlueprintSpec, Site
    from esper_core.growth import Seed
    from esper_core.leyline import SiteKind

LEARNERS: Final[Mapping[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}

LUCK: Final = 4
"""Seeds of which one must do."""

STEPS: Final = 50
FALL: Final = 0.9
"""What is left of the loss at most after ``STEPS`` steps, as a share of what it was."""

MOVE: Final = 0.3
"""How far the weights of the teacher are from those of a newborn, as a standard deviation."""


def gradient_within_two_steps(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Every parameter that trains gets a gradient other than zero at the first step or the second.

    By SGD and Adam, under every blend, half blended in and wholly.
    """
    for site in sites(kind):
        if site.channels == 1:
            continue  # a rectifier of one or two features may well be off for every example, and nothing is wrong
        for learner in LEARNERS:
            for blend in Blend:
                for alpha in STRENGTHS:
                    make = partial(newborn, factory, spec, site, blend)
                    left_out = _without_gradient(make, site, learner, alpha)
                    where = f"{learner} under the blend {blend} at {alpha:g}"
                    expect(not left_out, site, f"gives no gradient within two steps of {where}: {', '.join(left_out)}")


def loss_falls_within_fifty_steps(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Blended in wholly, it comes nearer to a copy of itself with other weights: a task that it can solve.

    Under every blend.
    """
    site = USUAL[kind]
    if not any(parameter.requires_grad for parameter in built(factory, site).parameters()):
        reason = "it has no parameters that train"
        raise NotApplicable(reason)
    for blend in Blend:
        with seeded(0):
            begin, end = _course(newborn(factory, spec, site, blend).train(), site)
        if begin == 0:
            reason = "other weights compute the same, so there is nothing to learn"
            raise NotApplicable(reason)
        course = f"loss {begin:g}, then {end:g}, under the blend {blend}"
        expect(end < FALL * begin, site, f"does not learn what a copy of it computes: {course}")


def _course(pupil: nn.Module, site: Site) -> tuple[float, float]:
    """The loss before and after ``STEPS`` steps of imitation."""
    parameters = [parameter for parameter in pupil.parameters() if parameter.requires_grad]
    teacher, inputs = copy.deepcopy(pupil), examples(site, 64)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(MOVE * torch.randn_like(parameter))
        targets = teacher(inputs, FULL)
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    losses = []
    for _ in range(STEPS + 1):
        optimizer.zero_grad()
        loss = (pupil(inputs, FULL) - targets).square().mean()
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
    return losses[0], sum(losses[-5:]) / 5


def _without_gradient(make: Callable[[], Seed], site: Site, learner: str, alpha: float) -> list[str]:
    """The parameters that get none under any of several seeds: a narrow rectifier may be off by bad luck."""
    left_out = _waiting(make, site, learner, alpha, seed=0)
    for seed in range(1, LUCK):
        if left_out:
            again = _waiting(make, site, learner, alpha, seed=seed)
            left_out = [name for name in left_out if name in again]
    return left_out


def _waiting(make: Callable[[], Seed], site: Site, learner: str, alpha: float, *, seed: int) -> list[str]:
    with seeded(seed):
        pupil = make().train()
        waiting = {_plainly(name): p for name, p in pupil.named_parameters() if p.requires_grad}
        if not waiting:
            return []
        optimizer = LEARNERS[learner](list(waiting.values()))
        for _ in range(2):
            inputs, targets = examples(site), examples(site)
            optimizer.zero_grad()
            (pupil(inputs, alpha) - targets).square().mean().backward()
            optimizer.step()
            waiting = {name: p for name, p in waiting.items() if p.grad is None or not p.grad.any()}
    return list(waiting)


def _plainly(name: str) -> str:
    """The name that a parameter has in the block; those of operators are kept as they are."""
    return name.removeprefix("block.").removeprefix("block.")
