"""What if somebody else calls the tune? One episode, a step at a time, for whoever decides from outside of a run.

The steps are those of ``trainer.loop``: whatever was played here could be played there, to the same numbers. What is
left out are events, arms and rounds. The twin of a seed is trained once, before, and its numbers are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper_core.app.allocator import tune_allocator
from esper_core.app.guarding import health_check
from esper_core.app.preparing import prepare
from esper_core.app.resolution import TWIN
from esper_core.app.threads import one_thread
from esper_core.governor import Act
from esper_core.growth import heard, told
from esper_core.leyline.errors import GovernorStop, Problem
from esper_core.leyline.health import HealthSnapshot
from esper_core.leyline.resuming import State
from esper_core.leyline.signals import Observation
from esper_core.trainer.ledger import Ledger
from esper_core.trainer.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from esper_core.app.compose import Composition
    from esper_core.app.preparing import Prepared
    from esper_core.leyline.actions import Action, ActionMask, ActionSpace
    from esper_core.leyline.signals import Metric, RewardBreakdown, Signals
    from esper_core.trainer.pool import Ending

PLAYER: Final = "player"
"""The arm of who plays."""

TWINS_KEPT: Final = 16
"""Twins whose numbers are kept, the latest."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What there is to see and to do, between two steps.

    reward: of the action before; None where there was none. penalised: the governor rolled the environment back in this
    step, which is the end of an episode for who learns from it. ending: what came of it, once it is over.
    """

    observation: Observation
    mask: ActionMask
    reward: RewardBreakdown | None = None
    rolled_back: bool = False
    ending: Ending | None = None

    @property
    def over(self) -> bool:
        """Whether the episode is."""
        return self.ending is not None


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The twin's episode: signals and losses after each step, and how it ended."""

    signals: tuple[Signals, ...]
    losses: tuple[Tensor, ...]
    ending: Ending


class Play:
    """One environment of a configuration, for whoever decides from outside.

    ``begin`` begins the episode of a seed, ``act`` carries an action out and goes on to the next moment. The same seed
    and actions give the same numbers, here and in a run. ``state`` and ``load`` keep and bring back a moment.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._composition: Composition = prepared.composition
        self._opinion = health_check(prepared.plugins)
        config = self._composition.resolution.loaded.config
        if config.compute.allocator == "tuned":
            tune_allocator()
        self.steps = config.episode.steps
        self._twins: OrderedDict[int, Undisturbed] = OrderedDict()
        self._pool = Pool(
            self._composition.recipe,
            [PLAYER],
            1,
            devices=self._composition.devices[:1],
            undisturbed=lambda step: self.twin.losses[step],
        )
        self._seed = -1
        self._step = 0
        self._ledger = Ledger(self._composition.judge, [1, None])

    @classmethod
    def of(cls, file: Path | str, overrides: Sequence[str] = ()) -> Play:
        """That of a configuration file, as ``esper run`` takes it. Its arms and policies are not asked."""
        return cls(prepare(Path(file), overrides))

    @property
    def space(self) -> ActionSpace:
        """What there is to choose from."""
        return self._composition.space

    @property
    def metric(self) -> Metric:
        """What the task is judged by."""
        return self._composition.task.metric

    @property
    def host_parameters(self) -> int:
        """Of the host alone."""
        return self._composition.host_parameters

    @property
    def twin(self) -> Undisturbed:
        """The same host of the present seed, which never grew."""
        return self._twin_of(self._seed)

    def begin(self, seed: int) -> Moment:
        """Begin the episode of ``seed``; what there is to see after its first step."""
        self._twin_of(seed)
        self._seed, self._step = seed, 0
        self._ledger = Ledger(self._composition.judge, [1, None])
        with one_thread():
            self._pool.reset(0, seed)
            return self._trained()

    def act(self, action: Action) -> Moment:
        """Carry ``action`` out, and go on: to the next step, or to the end behind the last one.

        LifecycleError where it is not possible. Nobody can act when the episode is over.
        """
        if self._step >= self.steps:
            msg = "the episode is over: begin(seed) begins another"
            raise RuntimeError(msg)
        with one_thread():
            self._pool.apply([action], self._step)
            self._step += 1
            if self._pool.over or self._step == self.steps:
                self._step = self.steps
                return self._ended()
            return self._trained()

    def state(self) -> State:
        """All that is known of the episode, between two moments of it."""
        return State.of(
            {"pool": self._pool.state(), "ledger": told(self._ledger.as_plain())}, seed=self._seed, step=self._step
        )

    def load(self, state: State) -> Moment:
        """Go back, or on, to the moment that the state was taken at."""
        self._seed, self._step = state.plain["seed"], state.plain["step"]
        self._twin_of(self._seed)
        with one_thread():
            if not hasattr(self._pool.environments[0], "garden"):
                self._pool.reset(0, self._seed)
            self._pool.load(state.part("pool"), in_round=True)
        self._ledger.load(heard(state.part("ledger")))
        return self._moment(self._pool.latest)

    def close(self) -> None:
        """Let the networks go."""
        self._pool.close()

    def _trained(self) -> Moment:
        pool, step = self._pool, self._step
        pool.train(step)
        pool.evaluate(step)
        own, _ = pool.heal(pool.synchronise(step), step)
        environment = pool.environments[0]
        opinions = {0: self._opinion(HealthSnapshot(0, PLAYER, self._seed, own[0]))} if pool.running() else {}
        decisions = pool.judge(own, opinions)
        for decision in decisions.values():
            if decision.act is Act.STOP:
                raise GovernorStop(Problem("E402", f"seed {environment.seed}, step {step}: {decision.reason}"))
        own, rolled, _ = pool.heed(own, decisions, step)
        penalties = {place: decision.penalty for place, decision in decisions.items()}
        reward, _ = self._ledger.reward([own[0], self.twin.signals[step]], decisions, penalties)
        return self._moment(own, reward, rolled_back=bool(rolled))

    def _ended(self) -> Moment:
        _, (ending,) = self._pool.conclude(self._step - 1)
        reward, _ = self._ledger.reward([ending.signals, self.twin.ending.signals])
        return self._moment([ending.signals], reward, ending=ending)

    def _moment(
        self,
        signals: Sequence[Signals],
        reward: RewardBreakdown | None = None,
        *,
        rolled_back: bool = False,
        ending: Ending | None = None,
    ) -> Moment:
        (own,), (mask,) = signals, self._pool.masks()
        beside = self.twin.signals[own.step] if ending is None else self.twin.ending.signals
        seen = Observation(own.step, self.steps, own, beside, self._composition.judge.price)
        shut = rolled_back or ending is not None
        return Moment(seen, mask.shut() if shut else mask, reward, rolled_back, ending)

    def _twin_of(self, seed: int) -> Undisturbed:
        if seed not in self._twins:
            self._twins[seed] = self._undisturbed(seed)
            while len(self._twins) > TWINS_KEPT:
                self._twins.popitem(last=False)
        return self._twins[seed]

    def _undisturbed(self, seed: int) -> Undisturbed:
        """The twin's whole episode; one that is in trouble is brought back as any other is."""
        pool = Pool(self._composition.recipe, [TWIN], 1, twin=TWIN, devices=self._composition.devices[:1])
        signals: list[Signals] = []
        losses: list[Tensor] = []
        with one_thread():
            pool.reset(0, seed)
            for step in range(self.steps):
                pool.train(step)
                pool.evaluate(step)
                now, _ = pool.heal(pool.synchronise(step), step)
                losses += [one.clone() for one in pool.environments[0].losses()]
                now, _, _ = pool.heed(now, pool.judge(now, {}), step)
                signals += now
            _, (ending,) = pool.conclude(self.steps - 1)
        pool.close()
        return Undisturbed(tuple(signals), tuple(losses), ending)
