"""What if somebody else calls the tune? One episode, a step at a time, for whoever decides from outside of a run.

The steps are those of ``trainer.loop``: whatever was played here could be played there, to the same numbers. What is
left out are events, arms and rounds. The twin of a seed is trained once, before, and its numbers are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper_core.app.compose import prepare
from esper_core.app.resolution import TWIN, resolved_config
from esper_core.app.runtime import one_thread, tune_allocator
from esper_core.config.loading import plain
from esper_core.governor import Act
from esper_core.growth import FaultBook, Growth, decode_state, encode_state
from esper_core.leyline.errors import GovernorStop, LifecycleError, Problem
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import HealthSnapshot, Observation, RewardBreakdown, Signals
from esper_core.plugins.dispatch import health_check
from esper_core.trainer.event_records import plain_of, record_of
from esper_core.trainer.pool import Ending, Pool
from esper_core.trainer.rollouts import Ledger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import Tensor

    from esper_core.app.compose import Composition
    from esper_core.governor import Decision
    from esper_core.leyline.actions import Action, ActionMask, ActionSpace
    from esper_core.leyline.protocols import Split, SplitName
    from esper_core.leyline.signals import Metric, Verdict


PLAYER: Final = "player"
"""The arm of who plays."""

TWINS_KEPT: Final = 16
"""Twins whose numbers are kept, the latest."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What there is to see and to do, between two steps.

    reward: what this step was worth, and so what became of the action before it. rolled_back: the governor rolled the
    environment back in this step, which is the end of an episode for who learns from it. ending: what came of it, once
    it is over.
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
    """The twin's episode: signals and losses after each step, how it ended, and the steps it was rolled back in."""

    signals: tuple[Signals, ...]
    losses: tuple[Tensor, ...]
    ending: Ending
    rolled_back: frozenset[int] = frozenset()


class Play:
    """One environment of a configuration, for whoever decides from outside.

    ``begin`` begins the episode of a seed, ``act`` carries an action out and goes on to the next moment. The same seed
    and actions give the same numbers, here and in a run. ``state`` and ``load`` keep and bring back a moment.

    There is always a twin, whatever the file says: without one there is no reward. Each episode begins as the first one
    of a run does: what blueprints did wrong in another is forgotten.
    """

    def __init__(self, prepared: Composition, arm: str | None = None) -> None:
        self.prepared = prepared
        self._composition: Composition = prepared
        self._judge = self._composition.judge_of(arm)
        self._opinion = health_check(prepared.resolution.plugins)
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
            undisturbed=lambda step: self.twin_of(self._seed).losses[step],
        )
        self._seed = 0
        self._step = 0
        self._now: Moment | None = None
        self.moves = 0
        """How often it was begun, acted in or brought back: so it can be told whether somebody else played on it."""
        self._ledger = Ledger([self._judge], [1, None])

    @classmethod
    def of(cls, file: Path | str, overrides: Sequence[str] = (), *, arm: str | None = None) -> Play:
        """Build the ``Play`` of a configuration file, as ``esper run`` takes it. Its policies are not asked.

        Args:
            arm: The arm whose reward is used. Needed only where the configuration has several rewards.

        Raises:
            ConfigError: If the configuration is invalid, has no such arm, or has several rewards and ``arm`` is None.
        """
        return cls(prepare(Path(file), overrides), arm)

    @property
    def space(self) -> ActionSpace:
        """What there is to choose from."""
        return self._composition.space

    @property
    def metric(self) -> Metric:
        """What the task is judged by."""
        return self._composition.task.metric

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration as plain data, as ``config.yaml`` of a run has it."""
        config: dict[str, Any] = plain(resolved_config(self._composition.resolution))
        return config

    def split(self, name: SplitName) -> Split:
        """Return a split of the data, on the device of the networks."""
        return self._composition.recipe.data[name]

    @property
    def host_parameters(self) -> int:
        """Of the host alone."""
        return self._composition.host_parameters

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self._composition.devices[0]

    @property
    def twin(self) -> Undisturbed:
        """The same host of the present seed, which never grew. RuntimeError where no episode was begun."""
        self._latest()
        return self.twin_of(self._seed)

    def begin(self, seed: int) -> Moment:
        """Begin the episode of ``seed``; what there is to see after its first step."""
        self.moves += 1
        self.twin_of(seed)
        self._seed, self._step, self._now = seed, 0, None
        self._ledger = Ledger([self._judge], [1, None])
        self._pool.faults.load_state_dict(FaultBook().state_dict())
        with one_thread():
            self._pool.reset(0, seed)
            return self._trained()

    def act(self, action: Action) -> Moment:
        """Carry ``action`` out, and go on: to the next step, or to the end behind the last one.

        LifecycleError, or another GrowthError, where it is not possible: nothing is changed then. RuntimeError where
        no episode goes on.
        """
        now = self._latest()
        if now.over:
            msg = "the episode is over: begin(seed) begins another"
            raise RuntimeError(msg)
        self._refuse_forbidden(action, now)
        self.moves += 1
        with one_thread():
            self._pool.apply([action], self._step)
            self._step, self._now = self._step + 1, None
            if self._pool.over or self._step == self.steps:
                return self._ended()
            return self._trained()

    def state(self) -> State:
        """All that is known of the episode, at the latest moment of it."""
        now = self._latest()
        moment = {"reward": plain_of(now.reward), "rolled_back": now.rolled_back, "ending": plain_ending(now.ending)}
        return State.of(
            {
                "pool": self._pool.state(),
                "ledger": encode_state(self._ledger.as_plain()),
                "moment": encode_state(moment),
            },
            seed=self._seed,
            step=self._step,
        )

    def load(self, state: State) -> Moment:
        """Go back, or on, to the moment that the state was taken at; the state of another ``Play`` of the same file.

        GrowthError where it does not fit.
        """
        self.moves += 1
        self.twin_of(state.plain["seed"])
        self._now = None
        with one_thread():
            self._pool.load(state.part("pool"), in_round=True)
        self._seed, self._step = state.plain["seed"], state.plain["step"]
        self._ledger.load(decode_state(state.part("ledger")))
        known = decode_state(state.part("moment"))
        reward = None if known["reward"] is None else record_of(RewardBreakdown, known["reward"])
        ending = ending_of(known["ending"])
        return self._moment(self._pool.latest, reward, rolled_back=known["rolled_back"], ending=ending)

    def twin_of(self, seed: int) -> Undisturbed:
        """The twin of a seed, whose episode is trained where it is not known."""
        if not self.knows_twin(seed):
            self.know_twin(seed, self._undisturbed(seed))
        return self._twins[seed]

    def knows_twin(self, seed: int) -> bool:
        """Whether the twin of a seed need not be trained."""
        return seed in self._twins

    def know_twin(self, seed: int, twin: Undisturbed) -> None:
        """Know a twin that was trained elsewhere, by another ``Play`` of the same file."""
        self._twins[seed] = twin
        while len(self._twins) > TWINS_KEPT:
            self._twins.popitem(last=False)

    def close(self) -> None:
        """Let the networks go."""
        self._pool.close()

    def _trained(self) -> Moment:
        pool, step = self._pool, self._step
        pool.train(step)
        pool.evaluate(step)
        own, _ = pool.heal(pool.synchronise(step), step)
        decisions = pool.judge(own, self._opinions(pool, PLAYER, own))
        self._stop_where_nothing_helps(decisions)
        own, rolled, _ = pool.heed(own, decisions, step)
        if step in self.twin_of(self._seed).rolled_back:
            pool.environments[0].scales.forget_lead()
        penalties = {place: decision.penalty for place, decision in decisions.items()}
        reward, _ = self._ledger.reward([own[0], self.twin_of(self._seed).signals[step]], decisions, penalties)
        return self._moment(own, reward, rolled_back=bool(rolled))

    def _ended(self) -> Moment:
        twin = self.twin_of(self._seed).ending
        if self._step < self.steps:  # it was cut short: the twin, which goes on, is none to be held against it any more
            self._ledger.reward([*self._pool.latest, twin.signals], running=())
            self._step = self.steps
        _, (ending,) = self._pool.conclude(self._step - 1)
        reward, _ = self._ledger.reward([ending.signals, twin.signals])
        return self._moment([ending.signals], reward, ending=ending)

    def _opinions(self, pool: Pool, arm: str, own: Sequence[Signals]) -> dict[int, Verdict]:
        """What plugins think of the one environment of a pool, while its episode goes on."""
        seed = pool.environments[0].seed
        return {place: self._opinion(HealthSnapshot(0, arm, seed, own[place])) for place in pool.running()}

    @staticmethod
    def _stop_where_nothing_helps(decisions: Mapping[int, Decision], whose: str = "") -> None:
        for decision in decisions.values():
            if decision.act is Act.STOP:
                raise GovernorStop(Problem("E402", f"{whose}step {decision.step}: {decision.reason}"))

    def _refuse_forbidden(self, action: Action, now: Moment) -> None:
        """LifecycleError for what the garden would do, and the mask forbids: what is not possible it refuses itself."""
        if now.mask.allows(action) or not self._pool.environments[0].garden.mask().allows(action):
            return
        slot = next(slot for slot in now.observation.signals.slots if slot.name == action.slot)
        raise LifecycleError(
            what="slot",
            name=slot.name,
            state=slot.state.value,
            event=action.op.value,
            legal=["wait", *now.mask.ops[slot.name]],
            why="the environment was just rolled back" if now.rolled_back else "the governor does not allow it now",
        )

    def _latest(self) -> Moment:
        if self._now is None:
            msg = "there is no episode: begin(seed) begins one"
            raise RuntimeError(msg)
        return self._now

    def _moment(
        self,
        signals: Sequence[Signals],
        reward: RewardBreakdown | None = None,
        *,
        rolled_back: bool = False,
        ending: Ending | None = None,
    ) -> Moment:
        (own,), (mask,) = signals, self._pool.masks()
        twin = self.twin_of(self._seed)
        beside = twin.signals[own.step] if ending is None else twin.ending.signals
        seen = Observation(own.step, self.steps, own, beside, self._judge.price, rolled_back)
        shut = rolled_back or ending is not None
        self._now = Moment(seen, mask.shut() if shut else mask, reward, rolled_back, ending)
        return self._now

    def _undisturbed(self, seed: int) -> Undisturbed:
        """The twin's whole episode; one that is in trouble is brought back as any other is."""
        pool = Pool(self._composition.recipe, [TWIN], 1, twin=TWIN, devices=self._composition.devices[:1])
        signals: list[Signals] = []
        undone: set[int] = set()
        losses: list[Tensor] = []
        with one_thread():
            pool.reset(0, seed)
            for step in range(self.steps):
                pool.train(step)
                pool.evaluate(step)
                now, _ = pool.heal(pool.synchronise(step), step)
                losses += [one.clone() for one in pool.environments[0].losses()]
                decisions = pool.judge(now, self._opinions(pool, TWIN, now))
                self._stop_where_nothing_helps(decisions, "the twin, ")
                now, rolled, _ = pool.heed(now, decisions, step)
                signals += now
                undone |= {step} if rolled else set()
            _, (ending,) = pool.conclude(self.steps - 1)
        pool.close()
        return Undisturbed(tuple(signals), tuple(losses), ending, frozenset(undone))


def plain_ending(ending: Ending | None) -> dict[str, Any] | None:
    """An ending as plain data, which ``ending_of`` makes an ending again."""
    if ending is None:
        return None
    growth = [plain_of(one) for one in ending.growth]
    return {"numbers": (ending.test_loss, ending.test_metric), "signals": plain_of(ending.signals), "growth": growth}


def ending_of(known: dict[str, Any] | None) -> Ending | None:
    """The ending that ``plain_ending`` was given."""
    if known is None:
        return None
    growth = tuple(record_of(Growth, one) for one in known["growth"])
    loss, metric = known["numbers"]
    return Ending(record_of(Signals, known["signals"]), loss, metric, growth)
