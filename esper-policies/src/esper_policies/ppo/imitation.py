"""Supervised learning from decisions of a teacher, and of their values.

Training ends when the network would decide like the teacher in nearly all cases. Any policy can be the teacher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from esper_policies.ppo.policy_network import Chances

if TYPE_CHECKING:
    from torch import Tensor

    from esper_policies.ppo.learning import Lesson, Worth
    from esper_policies.ppo.policy_network import Chosen, PolicyNetwork


VALUES_SHARE: Final = 0.25
"""Weight of the value loss beside the negative log-likelihood."""

CLIP_NORM: Final = 1.0
"""Gradients are clipped to this norm."""


def imitate(
    network: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    lesson: Lesson,
    worth: Worth,
    *,
    passes: int,
    minibatch: int,
    enough: float,
    order: torch.Generator,
) -> dict[str, float]:
    """Train on the lesson until the share of equal decisions is ``enough``; return statistics."""
    losses: list[float] = []
    completed, alike = 0, agreement(network, lesson)
    count, steps = lesson.is_decision.shape
    several = max(1, minibatch // max(1, steps))
    while completed < passes and alike < enough:
        completed += 1
        for index in torch.randperm(count, generator=order).split(several):
            rows = (index[:, None] * steps + torch.arange(steps)).flatten()
            batch, chosen = lesson.of(index)
            is_decision = lesson.is_decision.flatten()[rows]
            scores, _ = network(batch, None, (len(index), steps))
            chances = Chances(scores, batch.legal, batch.home)
            surprise = -chances.log_chance(chosen)[is_decision].mean()
            off = ((scores.value - worth.returns[rows])[is_decision] ** 2).mean()
            optimizer.zero_grad()
            (surprise + VALUES_SHARE * off).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
            optimizer.step()
            losses.append(surprise.item())
        alike = agreement(network, lesson)
    return {"agreement": alike, "passes": float(completed), "imitation_loss": losses[-1] if losses else 0.0}


def agreement(network: PolicyNetwork, lesson: Lesson) -> float:
    """Return the share of decisions in which the network's likeliest decision is the one shown."""
    count, steps = lesson.is_decision.shape
    with torch.no_grad():
        scores, _ = network(lesson.batch, None, (count, steps))
        best = Chances(scores, lesson.batch.legal, lesson.batch.home).best()
    return _alike(best, lesson.chosen)[lesson.is_decision.flatten()].float().mean().item()


def _alike(first: Chosen, second: Chosen) -> Tensor:
    return (first.op == second.op) & ((first.op == 0) | (first.candidate == second.candidate))
