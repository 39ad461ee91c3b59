"""Checks of blueprints in training: gradients, a life in a host, and first weights that a batch chooses.

Each check takes the factory, the spec that it is registered with, and a kind of site. Checks of a whole life graft a
slot into a tiny host and use the core's own garden.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from esper_core.leyline import Blend, Op, Stage
from esper_core.leyline.constants import FULL
from esper_testing.checks import applies_if, require
from esper_testing.sites import (
    STRENGTHS,
    USUAL,
    Factory,
    HostWithSlot,
    built,
    differing,
    evaluated,
    examples,
    expect,
    expect_equal,
    newborn,
    seeded,
    sites,
)

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
"""Random seeds of which one has to succeed."""

IMITATION_STEPS: Final = 50
FALL: Final = 0.9
"""Largest share of the initial loss that may remain after ``IMITATION_STEPS`` steps."""

MOVE: Final = 0.3
"""Standard deviation of the difference between the teacher's weights and initial weights."""


def gradient_within_two_steps(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that every trainable parameter gets a non-zero gradient within two steps.

    Tried with SGD and Adam, under every blend, at alpha 0.5 and 1.
    """
    for site in sites(kind):
        if site.channels == 1:
            continue  # a ReLU of one or two features may be zero for every example
        for learner in LEARNERS:
            for blend in Blend:
                for alpha in STRENGTHS:
                    make = partial(newborn, factory, spec, site, blend)
                    left_out = _without_gradient(make, site, learner, alpha)
                    conditions = f"{learner} under the blend {blend} at {alpha:g}"
                    expect(
                        not left_out, site, f"gives no gradient within two steps of {conditions}: {', '.join(left_out)}"
                    )


def loss_falls_within_fifty_steps(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that the block learns, at alpha 1, to imitate a copy with other weights, under every blend."""
    site = USUAL[kind]
    trains = any(parameter.requires_grad for parameter in built(factory, site).parameters())
    require(trains, "it has no parameters that train")
    for blend in Blend:
        with seeded(0):
            begin, end = _imitation_losses(newborn(factory, spec, site, blend).train(), site)
        require(begin > 0, "other weights compute the same outputs: there is nothing to learn")
        course = f"loss {begin:g}, then {end:g}, under the blend {blend}"
        expect(end < FALL * begin, site, f"does not learn to imitate a copy of itself: {course}")


def _imitation_losses(pupil: nn.Module, site: Site) -> tuple[float, float]:
    """Return the loss before and after ``IMITATION_STEPS`` steps of imitation."""
    parameters = [parameter for parameter in pupil.parameters() if parameter.requires_grad]
    teacher, inputs = copy.deepcopy(pupil), examples(site, 64)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(MOVE * torch.randn_like(parameter))
        targets = teacher(inputs, FULL, inputs)
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    losses = []
    for _ in range(IMITATION_STEPS + 1):
        optimizer.zero_grad()
        loss = (pupil(inputs, FULL, inputs) - targets).square().mean()
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
    return losses[0], sum(losses[-5:]) / 5


def _without_gradient(make: Callable[[], Seed], site: Site, learner: str, alpha: float) -> list[str]:
    """Return the parameters without a gradient under every RNG seed: a narrow ReLU may be zero by chance."""
    left_out: list[str] = []
    for seed in range(LUCK):
        with seeded(seed):
            pupil = make().train()
            # By the names that they have in the block; those of blend operators are kept.
            waiting = {
                name.removeprefix("block.").removeprefix("block."): parameter
                for name, parameter in pupil.named_parameters()
                if parameter.requires_grad
            }
            if not waiting:
                return []
            optimizer = LEARNERS[learner](list(waiting.values()))
            for _ in range(2):
                inputs, targets = examples(site), examples(site)
                optimizer.zero_grad()
                (pupil(inputs, alpha, inputs) - targets).square().mean().backward()
                optimizer.step()
                waiting = {name: p for name, p in waiting.items() if p.grad is None or not p.grad.any()}
        left_out = [name for name in waiting if seed == 0 or name in left_out]
        if not left_out:
            return []
    return left_out


STEPS: Final = 3


def host_stands_still_while_incubating(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that an incubating seed does not affect how the host's parameters and buffers evolve."""
    plain, grown = HostWithSlot.of(factory, spec, kind), HostWithSlot.of(factory, spec, kind)
    grown.apply(Op.GERMINATE)
    for _ in range(STEPS):
        plain.train()
        grown.train()
    moved = differing(grown.host_state(), plain.host_state())
    expect(not moved, USUAL[kind], f"changes its host while it incubates: {', '.join(moved)}")


def lives_a_whole_life(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that every loss stays finite from germination to fossilisation, under every blend."""
    site = USUAL[kind]
    for blend in Blend:
        grown = HostWithSlot.of(factory, spec, kind)
        for op in (Op.GERMINATE, Op.ADVANCE, Op.FOSSILISE):
            ready = op is not Op.FOSSILISE or grown.stage is Stage.HOLDING
            expect(ready, site, f"is {grown.stage}, not holding, when its ramp is over")
            grown.apply(op, blend if op is Op.GERMINATE else Blend.ADD)
            for _ in range(STEPS):
                grown.train()
        bad = int((~torch.stack(grown.losses).isfinite()).sum())
        expect(bad == 0, site, f"{bad} of {len(grown.losses)} losses of its host are not finite")


@applies_if(lambda factory, spec, kind: hasattr(built(factory, USUAL[kind]), "inform"))
def is_born_informed(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that ``inform`` takes any batch, is deterministic, and preserves an identity."""
    for site in sites(kind):
        for passing, changing in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (1e4, 1e-6)):
            with seeded(0):
                inputs, gradients = passing * examples(site), changing * examples(site)
            block, twin = built(factory, site), built(factory, site)
            seen = inputs.clone(), gradients.clone()
            for born in (block, twin):
                with seeded(1), torch.no_grad():
                    born.inform(inputs, gradients)
            kept = torch.equal(inputs, seen[0]) and torch.equal(gradients, seen[1])
            expect(kept, site, "inform() modifies its arguments")
            weights = block.state_dict()
            sick = [name for name, value in weights.items() if not value.isfinite().all()]
            expect(not sick, site, f"inform() chooses values that are not finite: {', '.join(sick)}")
            differences = differing(twin.state_dict(), weights)
            expect(not differences, site, f"inform() is not deterministic: {', '.join(differences)}")
            if spec.starts_as_identity:
                expected = torch.zeros_like(inputs) if spec.adapts else inputs
                expectation = "zero" if spec.adapts else "the identity"
                expect_equal(evaluated(block, inputs), expected, site, f"is no longer {expectation} after inform()")


CHECKS: Final = (
    gradient_within_two_steps,
    loss_falls_within_fifty_steps,
    host_stands_still_while_incubating,
    lives_a_whole_life,
    is_born_informed,
)
