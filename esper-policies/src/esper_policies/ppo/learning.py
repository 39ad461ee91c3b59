"""The PPO update: advantages, lessons from episodes, and clipped passes.

Schulman et al. (2017) with the usual additions: advantages normalised over the round, clipped gradients, and an early
stop of the passes when the KL divergence is too large. Episodes stay whole in minibatches, so that memory is trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from esper_core.leyline import WAIT
from esper_policies.ppo.encoding import OPS, batch_of
from esper_policies.ppo.policy_network import Chances, Chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from esper_policies.ppo.encoding import Batch, Decision, EpisodeDecisions, Scales, Seen
    from esper_policies.ppo.policy_network import PolicyNetwork
    from esper_policies.ppo.settings import PpoSettings


def advantages(rewards: Sequence[float], values: Sequence[float], *, discount: float, trace: float) -> list[float]:
    """Return the generalised advantage of each decision of one episode (Schulman et al., 2016).

    A(t) = δ(t) + γλ·A(t + 1) with δ(t) = r(t) + γ·V(t + 1) − V(t), and V after the last decision is 0.

    >>> advantages([1.0, 1.0], [0.5, 0.5], discount=1.0, trace=1.0)
    [1.5, 0.5]
    """
    summed = [0.0] * len(rewards)
    running, after = 0.0, 0.0
    for step in reversed(range(len(rewards))):
        surprise = rewards[step] + discount * after - values[step]
        running = surprise + discount * trace * running
        summed[step], after = running, values[step]
    return summed


LEAST_SPREAD: Final = 0.1
"""Smallest deviation that advantages are divided by, on the scale of returns.

If every episode has the same return, advantages are errors of the values only. Normalised to order one, they would
weigh as much as real differences, and a policy that has found the optimum would leave it.
"""

NO_SPREAD: Final = 1e-12
"""Variance of returns below which the explained variance is 0."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """N episodes of at most T decisions as N·T rows, one episode after the other; short ones are padded.

    is_decision: (N, T) whether a row is a decision and not padding. rewards: by episode.
    """

    batch: Batch
    chosen: Chosen
    is_decision: Tensor
    rewards: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Worth:
    """For each of the N·T rows: log-probability when it was decided, value, advantage and return."""

    log_chance: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor


def evaluate(network: PolicyNetwork, lesson: Lesson, settings: PpoSettings, scale: float) -> Worth:
    """Evaluate the decisions by the network that took them. scale: rewards are divided by it."""
    count, steps = lesson.is_decision.shape
    with torch.no_grad():
        scores, _ = network(lesson.batch, None, (count, steps))
        chances = Chances(scores, lesson.batch.legal, lesson.batch.home)
        log_chance = chances.log_chance(lesson.chosen)
    values, advantage_NT = scores.value.view(count, steps), torch.zeros(count, steps)
    for n, rewards in enumerate(lesson.rewards):
        episode_values = values[n, : len(rewards)].tolist()
        scaled = [reward / scale for reward in rewards]
        advantage_NT[n, : len(rewards)] = torch.tensor(
            advantages(scaled, episode_values, discount=settings.discount, trace=settings.trace)
        )
    advantage = advantage_NT.flatten()
    return Worth(log_chance, scores.value, advantage, advantage + scores.value)


def learn(
    network: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    lesson: Lesson,
    worth: Worth,
    settings: PpoSettings,
    *,
    entropy: float,
    order: torch.Generator,
) -> dict[str, float]:
    """Train on the round in several passes and return statistics. ``order`` shuffles the episodes."""
    is_decision = lesson.is_decision.flatten()
    spread = worth.advantage[is_decision]
    shift, width = spread.mean(), spread.std(unbiased=False).clamp(min=LEAST_SPREAD)
    normal = (worth.advantage - shift) / width
    figures: list[dict[str, float]] = []
    passes = 0
    for _ in range(settings.passes):
        passes += 1
        latest = [
            _step(network, optimizer, lesson, (worth, normal), index, settings, entropy)
            for index in _minibatches(lesson, settings.minibatch, order)
        ]
        figures += latest
        if settings.most_change is not None and _mean(latest, "kl") > settings.most_change:
            # Adam's first moments: an update that went too far would continue in the next round.
            for kept in optimizer.state.values():
                kept["exp_avg"].zero_()
            break
    means = {name: _mean(figures, name) for name in figures[0]}
    return means | {
        "kl": figures[-1]["kl"],
        "largest_first_ratio": figures[0]["ratio_off"],
        "passes": float(passes),
        "explained_variance": explained(worth.value[is_decision], worth.returns[is_decision]),
    }


def explained(values: Tensor, returns: Tensor) -> float:
    """Return the explained variance of the returns: 1 is all, 0 is no more than a constant."""
    spread = returns.var(unbiased=False).item()
    return 1.0 - (returns - values).var(unbiased=False).item() / spread if spread > NO_SPREAD else 0.0


def _step(
    network: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    lesson: Lesson,
    evaluated: tuple[Worth, Tensor],
    index: Tensor,
    settings: PpoSettings,
    entropy: float,
) -> dict[str, float]:
    worth, normal = evaluated
    steps = lesson.is_decision.shape[1]
    rows = (index[:, None] * steps + torch.arange(steps)).flatten()
    batch, chosen = lesson.batch.at(rows), lesson.chosen.at(rows)
    is_decision = lesson.is_decision.flatten()[rows]
    scores, _ = network(batch, None, (len(index), steps))
    chances = Chances(scores, batch.legal, batch.home)
    change = (chances.log_chance(chosen) - worth.log_chance[rows])[is_decision]
    ratio, advantage = change.exp(), normal[rows][is_decision]
    kept = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
    policy_loss = -torch.minimum(ratio * advantage, kept * advantage).mean()
    value_loss = 0.5 * ((scores.value[is_decision] - worth.returns[rows][is_decision]) ** 2).mean()
    entropies = {head: entropy[is_decision].mean() for head, entropy in chances.entropies().items()}
    undecided = torch.stack(list(entropies.values())).sum()
    loss = policy_loss + settings.value_share * value_loss - entropy * undecided
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), settings.clip_norm)
    optimizer.step()
    return {
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "kl": (ratio - 1.0 - change).mean().item(),
        "clipped": ((ratio - 1.0).abs() > settings.clip).float().mean().item(),
        "gradient_norm": norm.item(),
        "ratio_off": (ratio - 1.0).abs().max().item(),
        **{f"entropy_{head}": entropy.item() for head, entropy in entropies.items()},
    }


def _minibatches(lesson: Lesson, size: int, order: torch.Generator) -> Iterator[Tensor]:
    """Yield shuffled episodes in groups of about ``size`` decisions."""
    lengths = lesson.is_decision.sum(1).tolist()
    taken: list[int] = []
    decisions = 0
    for index in torch.randperm(len(lengths), generator=order).tolist():
        taken.append(index)
        decisions += lengths[index]
        if decisions >= size:
            yield torch.tensor(taken)
            taken, decisions = [], 0
    if taken:
        yield torch.tensor(taken)


def _mean(figures: Sequence[Mapping[str, float]], name: str) -> float:
    return math.fsum(step_figures[name] for step_figures in figures) / len(figures)


def lesson_of(
    episodes: Sequence[EpisodeDecisions],
    numbers: Callable[[Seen, int], Sequence[int]],
    scales: Scales,
) -> Lesson:
    """Return the lesson of some episodes. numbers: name indices of rows, given the environment."""
    steps = max(len(episode.decisions) for episode in episodes)
    padded = [[*episode.decisions, *[episode.decisions[-1]] * (steps - len(episode.decisions))] for episode in episodes]
    rows = [
        (decision, episode.environment)
        for episode, decisions in zip(episodes, padded, strict=True)
        for decision in decisions
    ]
    seen = [decision.seen for decision, _ in rows]
    named = [numbers(decision.seen, environment) for decision, environment in rows]
    return Lesson(
        batch=scales.scaled(batch_of(seen, named)),
        chosen=_chosen([decision for decision, _ in rows]),
        is_decision=torch.tensor([[n < len(episode.decisions) for n in range(steps)] for episode in episodes]),
        rewards=[[decision.reward for decision in episode.decisions] for episode in episodes],
    )


def _chosen(decisions: Sequence[Decision]) -> Chosen:
    """Return the decisions as indices."""
    candidates = [decision.seen.find(decision.action) for decision in decisions]
    ops = [
        OPS.index(WAIT.op if candidate < 0 else decision.action.op)
        for decision, candidate in zip(decisions, candidates, strict=True)
    ]
    return Chosen(torch.tensor(ops), torch.tensor([max(0, candidate) for candidate in candidates]))
