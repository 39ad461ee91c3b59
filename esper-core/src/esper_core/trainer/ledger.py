"""What was each environment's episode worth so far? The ledger keeps the step before and adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.signals import RewardBreakdown, Signals
from esper_core.trainer.answerable import answerable
from esper_core.trainer.records import plain_of, record_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from esper_core.trainer.study import Judge


class Ledger:
    """One round's rewards. Where an environment has no twin its reward is unknown, not 0.

    Args:
        judges: for each environment what judges it.
        twins: for each environment the place of its twin, or None.
    """

    def __init__(self, judges: Sequence[Judge], twins: Sequence[int | None]) -> None:
        self._judges = judges
        self._twins = twins
        self._before: dict[int, tuple[Signals, Signals]] = {}
        self._totals = [0.0] * len(twins)
        self._stopped: set[int] = set()

    def reward(
        self,
        signals_E: Sequence[Signals],
        running: Collection[int] | None = None,
        penalties: Mapping[int, float] | None = None,
    ) -> list[RewardBreakdown | None]:
        """What this step was worth, for each environment.

        running: the places whose episode goes on. For the others nothing changes any more, and the end finds them and
        their twins as they were in their last step.
        penalties: by place what the governor takes off.
        """
        rewards: list[RewardBreakdown | None] = []
        for place, twin in enumerate(self._twins):
            if twin is None or (running is not None and place not in running):
                rewards.append(None)
                self._stopped |= set() if twin is None else {place}
                continue
            before, twin_before = self._before.get(place, (None, None))
            twin_now = signals_E[twin] if twin_before is None or place not in self._stopped else twin_before
            judge = self._judges[place]
            with answerable(judge.label, f"on a step of environment {place}"):
                breakdown = judge.reward.score(
                    signals_E[place],
                    before,
                    twin_now,
                    twin_before,
                )
            if not isinstance(breakdown, RewardBreakdown):
                message = f"{judge.label} scored a step with {type(breakdown).__name__}, not a RewardBreakdown"
                raise PluginError(
                    Problem(
                        "E231", message, hint='Reward.score returns RewardBreakdown({"accuracy": 0.5}): terms, by name.'
                    )
                )
            self._before[place] = (signals_E[place], twin_now)
            if penalty := (penalties or {}).get(place, 0.0):
                breakdown = _less(breakdown, penalty)
            self._totals[place] += breakdown.total
            rewards.append(breakdown)
        return rewards

    def as_plain(self) -> dict[str, Any]:
        """All that it knows."""
        before = {place: [plain_of(own), plain_of(twin)] for place, (own, twin) in self._before.items()}
        return {"before": before, "totals": self._totals, "stopped": sorted(self._stopped)}

    def load(self, plain: Mapping[str, Any]) -> None:
        """Know what another one knew."""
        self._before = {
            place: (record_of(Signals, own), record_of(Signals, twin)) for place, (own, twin) in plain["before"].items()
        }
        self._totals, self._stopped = plain["totals"], set(plain["stopped"])

    def total(self, place: int) -> float | None:
        """The sum over the episode; None where it is unknown."""
        return None if self._twins[place] is None else self._totals[place]


def _less(breakdown: RewardBreakdown, penalty: float) -> RewardBreakdown:
    """The breakdown with what a rollback costs, as a term of its own."""
    return RewardBreakdown({**breakdown.terms, "penalty": breakdown.terms.get("penalty", 0.0) - penalty})
