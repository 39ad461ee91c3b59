"""How do episodes of decisions become tables to learn from? Padded to the longest, one behind the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from esper_core.leyline import WAIT
from esper_policies.ppo.choosing import Chosen
from esper_policies.ppo.encoding import OPS, batch_of
from esper_policies.ppo.learning import Lesson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from esper_policies.ppo.decisions import Decision, Episode
    from esper_policies.ppo.encoding import Seen
    from esper_policies.ppo.options import Options
    from esper_policies.ppo.scaling import Scales


def lesson_of(
    episodes: Sequence[Episode], numbers: Callable[[Seen, int], Sequence[int]], options: Options, scales: Scales
) -> Lesson:
    """The lesson of some episodes. numbers: of a row's names, in the environment of this place.

    What was done and could not have been chosen here, as a teacher may, counts as having waited.
    """
    steps = max(len(episode.decisions) for episode in episodes)
    padded = [[*one.decisions, *[one.decisions[-1]] * (steps - len(one.decisions))] for one in episodes]
    rows = [(decision, one.place) for one, own in zip(episodes, padded, strict=True) for decision in own]
    behind = [(one.behind or one.decisions[-1].seen, one.place) for one in episodes]
    seen = [decision.seen for decision, _ in rows] + [own for own, _ in behind]
    named = [numbers(own, place) for own, place in [*((d.seen, place) for d, place in rows), *behind]]
    whole = scales.scaled(batch_of(seen, named))
    return Lesson(
        batch=whole.at(torch.arange(len(rows))),
        chosen=_chosen([decision for decision, _ in rows], options),
        there=torch.tensor([[n < len(one.decisions) for n in range(steps)] for one in episodes]),
        rewards=[[decision.reward for decision in one.decisions] for one in episodes],
        behind=whole.at(torch.arange(len(rows), len(seen))),
        cut=[one.behind is not None for one in episodes],
    )


def _chosen(decisions: Sequence[Decision], options: Options) -> Chosen:
    """The decisions by their numbers."""
    found: list[tuple[int, int, dict[str, int]]] = []
    for decision in decisions:
        candidate, details = decision.seen.find(decision.action), options.numbers(decision.action)
        if candidate < 0 or details is None:
            found.append((OPS.index(WAIT.op), 0, dict.fromkeys(options.heads, 0)))
        else:
            found.append((OPS.index(decision.action.op), candidate, details))
    return Chosen(
        torch.tensor([op for op, _, _ in found]),
        torch.tensor([candidate for _, candidate, _ in found]),
        {head: torch.tensor([details[head] for _, _, details in found]) for head in options.heads},
    )
