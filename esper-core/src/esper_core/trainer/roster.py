"""Rosters: the interface of whatever holds the environments of a run, in this process or in others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from esper_core.growth import FaultBook, decode_state, encode_state
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import Signals
from esper_core.trainer.event_records import AnyEnvironment, Changes, Ending, LostSeeds, plain_of, record_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.governor import GovernorDecision, RolledBack
    from esper_core.leyline import Action, ActionMask, Verdict

M = TypeVar("M", bound=AnyEnvironment)


class Roster(Protocol[M]):
    """Environments by their indices; the run has ``pool_size`` of them, where some live in other processes."""

    environments: list[M]
    faults: FaultBook
    _pool_size: int

    def __init__(self, environments: Sequence[M], pool_size: int, faults: FaultBook | None = None) -> None:
        self.environments = list(environments)
        self._pool_size = pool_size
        self.faults = faults or FaultBook()

    @property
    def latest(self) -> list[Signals]:
        """The latest signals of each environment; before a round's first step those of the last round; [] if none."""
        return [environment.signals for environment in self.environments if environment.signals is not None]

    def of_arm(self, name: str) -> list[int]:
        """Return the indices of the environments of an arm, in the order of their seeds."""
        return [environment.pool_index for environment in self.environments if environment.arm == name]

    def running(self) -> list[M]:
        """Return the environments whose episode has not ended. The episode of a twin never ends early."""
        return [environment for environment in self.environments if not environment.over]

    def turns(self, step: int) -> list[M]:
        """Return ``running()`` in the order of turns in ``step``: it rotates, so that no arm is always first."""
        first = step % self._pool_size
        return sorted(self.running(), key=lambda environment: (environment.pool_index < first, environment.pool_index))

    def state_dict(self) -> State:
        """Return the state between two steps, which any roster of the same environments can load."""
        return State.of(
            {
                "environments": State.of({str(pool_index): state for pool_index, state in self.states().items()}),
                "faults": self.faults.state_dict(),
                "latest": encode_state([plain_of(signals) for signals in self.latest]),
            }
        )

    def load_state_dict(self, state: State, *, in_round: bool) -> None:
        """Restore what ``state_dict`` returned; between two rounds only the faults of blueprints."""
        self.faults.load_state_dict(state.part("faults"))
        if in_round:
            latest = record_of(list[Signals], decode_state(state.part("latest")))
            environments = state.part("environments")
            self.load_states(
                {pool_index: environments.part(str(pool_index)) for pool_index in range(self._pool_size)}, latest
            )

    def states(self) -> dict[int, State]:
        """Return the state of each environment, by its pool index."""

    def load_states(self, states: Mapping[int, State], latest: Sequence[Signals]) -> None:
        """Restore the state and the latest signals of each environment, by its pool index."""

    def train(self, step: int) -> Changes:
        """Train every environment for one step, and return the seeds' changes of stage."""

    def evaluate(self, step: int) -> None:
        """Measure every environment on the validation split."""

    def synchronise(self, step: int) -> None:
        """Read what was measured, and let the gates look at it; ``latest`` has the signals."""

    def heal(self, step: int) -> LostSeeds:
        """Take out seeds that broke a loss, measure their environments again, and return all seeds that were lost."""

    def judge(self, opinions: Mapping[int, Verdict]) -> dict[int, GovernorDecision]:
        """Return the governor's decision for each environment whose episode goes on, given what plugins say of some."""

    def carry_out(self, decisions: Mapping[int, GovernorDecision], step: int) -> tuple[dict[int, RolledBack], Changes]:
        """Roll environments back, and end episodes, as the governor decided."""

    def masks(self) -> list[ActionMask]:
        """Return what can be done now, for each environment."""

    def apply(self, actions: Sequence[Action] | Mapping[int, Action], step: int) -> tuple[Changes, LostSeeds]:
        """Carry out one action in each environment, and return what changed and which seeds could not be built."""

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes: prune seeds that are not fossilised, and evaluate what is left on the test split."""


class StudyPool(Roster[M], Protocol[M]):
    """The environments of a study, which begin anew in each round."""

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round: environments of one index share a seed, whatever their arm."""

    def close(self) -> None:
        """Release everything. May be called twice."""
