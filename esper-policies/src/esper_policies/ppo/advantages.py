"""What was a decision worth, beyond what was expected? Generalised advantage estimates, episode by episode."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def advantages(
    rewards: Sequence[float], values: Sequence[float], behind: float, *, discount: float, trace: float
) -> list[float]:
    """The advantage of each decision of one episode, by Schulman et al. (2016).

    A(t) = δ(t) + γλ·A(t + 1) with δ(t) = r(t) + γ·V(t + 1) − V(t), and V behind the last decision is ``behind``: what
    the state is worth that was left where the episode was cut, 0 where it had come to its end.

    >>> advantages([1.0, 1.0], [0.5, 0.5], 0.0, discount=1.0, trace=1.0)
    [1.5, 0.5]
    """
    found = [0.0] * len(rewards)
    running, after = 0.0, behind
    for place in reversed(range(len(rewards))):
        surprise = rewards[place] + discount * after - values[place]
        running = surprise + discount * trace * running
        found[place], after = running, values[place]
    return found
