"""Step through one episode of a configuration manually, for callers that choose the actions themselves.

    episode = Episode.of("run.yaml")
    now = episode.begin(seed=0)
    while not now.over:
        now = episode.act(choose(now.observation, now.mask))

The steps are those of the training loop (``trainer.loop``): the same RNG seed and actions give the same numbers in a
run. There are no events, arms or rounds here. The twin is trained before the first episode of an RNG seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper_core.leyline.errors import LifecycleError
from esper_core.leyline.signals import Observation, RewardBreakdown, Signals
from esper_core.trainer import Ending, EpisodeRewards, Pool, Stepper
from esper_run.app.compose import prepare
from esper_run.app.dispatch import health_check
from esper_run.app.runtime import one_thread, tune_allocator
from esper_run.config.model import TWIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from esper_core.governor import GovernorDecision
    from esper_core.leyline.actions import Action, ActionMask, ActionSpace
    from esper_core.leyline.signals import HealthSnapshot, Metric, Verdict
    from esper_run.app.compose import Composition

POLICY: Final = "policy"
"""Name of the arm of the caller."""


@dataclass(frozen=True, slots=True)
class EpisodeStep:
    """What a caller gets after each step.

    Attributes:
        observation: What a policy would see.
        mask: What can be done now.
        reward: Reward of this step, and so of the action before it.
        rolled_back: Whether the governor rolled the environment back in this step, which ends an episode for a learner.
        ending: How the episode ended; None while it goes on.
    """

    observation: Observation
    mask: ActionMask
    reward: RewardBreakdown | None = None
    rolled_back: bool = False
    ending: Ending | None = None

    @property
    def over(self) -> bool:
        """Whether the episode is over."""
        return self.ending is not None


@dataclass(frozen=True, slots=True)
class TwinEpisode:
    """The whole episode of a twin, the same host without growth.

    Attributes:
        signals: After each step.
        losses: Losses of the validation examples after each step.
        ending: How it ended.
        rolled_back: Steps in which it was rolled back.
    """

    signals: tuple[Signals, ...]
    losses: tuple[Tensor, ...]
    ending: Ending
    rolled_back: frozenset[int] = frozenset()


class Episode:
    """Step through episodes of a configuration manually: ``begin`` starts one, ``act`` carries out an action.

    The caller takes the place of the policy. A twin is always trained, whatever the configuration says, because rewards
    compare with it. Each episode starts afresh: faults of blueprints in earlier episodes are forgotten.

    Args:
        composition: The configuration, checked and built.
    """

    def __init__(self, composition: Composition) -> None:
        self.composition = composition
        self._check_health = health_check(composition.resolution.plugins)
        config = composition.config
        if config.compute.allocator == "tuned":
            tune_allocator()
        self.steps = config.episode.steps
        self._batches = config.episode.batches
        self._twin: tuple[int, TwinEpisode] | None = None
        self._pool = Pool(
            composition.recipe,
            [POLICY],
            1,
            devices=composition.devices[:1],
            undisturbed=lambda step: self.twin_of(self._seed).losses[step],
        )
        self._stepper = Stepper(self._pool, self._score, self._check_health)
        self._no_faults = self._pool.faults.state_dict()
        self._seed = 0
        self._now: EpisodeStep | None = None
        self._rewards = EpisodeRewards(composition.reward, [1, None])

    @classmethod
    def of(cls, file: Path | str, overrides: Sequence[str] = ()) -> Episode:
        """Build an episode of a configuration file, as ``esper run`` takes it. Its policies are not used.

        Raises:
            ConfigError: The configuration is invalid.
        """
        return cls(prepare(Path(file), overrides))

    @property
    def space(self) -> ActionSpace:
        """The actions to choose from."""
        return self.composition.space

    @property
    def metric(self) -> Metric:
        """The task's metric."""
        return self.composition.task.metric

    @property
    def twin(self) -> TwinEpisode:
        """The twin of the current episode. RuntimeError if no episode was begun."""
        self._latest()
        return self.twin_of(self._seed)

    def begin(self, seed: int) -> EpisodeStep:
        """Begin the episode of ``seed``, and return its first step."""
        self.twin_of(seed)
        self._seed, self._now = seed, None
        self._rewards = EpisodeRewards(self.composition.reward, [1, None])
        self._pool.faults.load_state_dict(self._no_faults)
        with one_thread():
            self._pool.reset(0, seed)
            return self._advance(0)

    def act(self, action: Action) -> EpisodeStep:
        """Carry out ``action``, and go on to the next step, or to the end after the last one.

        Raises:
            LifecycleError: The action is not possible now. Other kinds of GrowthError say so, too; nothing has changed.
            RuntimeError: No episode was begun, or it is over.
        """
        now = self._latest()
        if now.ending is not None:
            msg = "the episode is over: begin(seed) begins another"
            raise RuntimeError(msg)
        self._refuse_masked(action, now)
        with one_thread():
            self._stepper.act(self._result, [action])
            done, self._now = now.observation.step + 1, None
            if not self._pool.running() or done == self.steps:
                return self._conclude(done)
            return self._advance(done)

    def twin_of(self, seed: int) -> TwinEpisode:
        """Return the twin of an RNG seed, and train it if it is not known."""
        if self._twin is None or self._twin[0] != seed:
            self._twin = seed, self._train_twin(seed)
        return self._twin[1]

    def close(self) -> None:
        """Release the networks."""
        self._pool.close()

    def _score(
        self, signals_E: Sequence[Signals], decisions: Mapping[int, GovernorDecision]
    ) -> Sequence[RewardBreakdown | None]:
        """Reward a step of the one environment, with the twin as the second one."""
        twin = self.twin_of(self._seed).signals[signals_E[0].step]
        return self._rewards.score([*signals_E, twin], decisions)[:1]

    def _advance(self, step: int) -> EpisodeStep:
        self._result = result = self._stepper.advance(step)
        if step in self.twin_of(self._seed).rolled_back:
            self._pool.environments[0].network.gains.forget_lead()
        return self._step_of(result.signals, result.rewards[0], rolled_back=bool(result.rolled))

    def _conclude(self, done: int) -> EpisodeStep:
        twin = self.twin_of(self._seed).ending
        if done < self.steps:  # it ended early, and is not compared with what the twin did after that
            self._rewards.score([*self._pool.latest, twin.signals], {})
        _, (ending,) = self._pool.conclude(self.steps - 1)
        reward, _ = self._rewards.score([ending.signals, twin.signals])
        return self._step_of([ending.signals], reward, ending=ending)

    def _refuse_masked(self, action: Action, now: EpisodeStep) -> None:
        """Raise LifecycleError for an action that the mask forbids, though the garden would carry it out."""
        if now.mask.allows(action) or not self._pool.environments[0].garden.mask().allows(action):
            return
        slot = next(slot for slot in now.observation.signals.slots if slot.name == action.slot)
        raise LifecycleError(
            kind="slot",
            name=slot.name,
            state=slot.state.value,
            event=action.op.value,
            legal=["wait", *now.mask.ops[slot.name]],
            why="the environment was just rolled back" if now.rolled_back else "the governor does not allow it now",
        )

    def _latest(self) -> EpisodeStep:
        if self._now is None:
            msg = "there is no episode: begin(seed) begins one"
            raise RuntimeError(msg)
        return self._now

    def _step_of(
        self,
        signals: Sequence[Signals],
        reward: RewardBreakdown | None = None,
        *,
        rolled_back: bool = False,
        ending: Ending | None = None,
    ) -> EpisodeStep:
        (current,), (mask,) = signals, self._pool.masks()
        twin = self.twin_of(self._seed)
        beside = twin.signals[current.step] if ending is None else twin.ending.signals
        price, batches = self.composition.reward.price, self._batches
        observation = Observation(current.step, self.steps, current, beside, price, rolled_back, batches=batches)
        can_only_wait = rolled_back or ending is not None
        self._now = EpisodeStep(observation, mask.shut() if can_only_wait else mask, reward, rolled_back, ending)
        return self._now

    def _train_twin(self, seed: int) -> TwinEpisode:
        """Train the whole episode of a twin. The governor rolls it back as any other environment."""
        pool = Pool(self.composition.recipe, [TWIN], 1, twin=TWIN, devices=self.composition.devices[:1])
        signals: list[Signals] = []
        losses: list[Tensor] = []
        rolled_back: set[int] = set()

        def check_health(snapshot: HealthSnapshot) -> Verdict:
            losses.append(pool.environments[0].network.evaluation.evidence.clone())  # a rollback measures them again
            return self._check_health(snapshot)

        stepper = Stepper(pool, None, check_health)
        with one_thread():
            pool.reset(0, seed)
            for step in range(self.steps):
                result = stepper.advance(step)
                signals += result.signals
                rolled_back |= {step} if result.rolled else set()
            _, (ending,) = pool.conclude(self.steps - 1)
        pool.close()
        return TwinEpisode(tuple(signals), tuple(losses), ending, frozenset(rolled_back))
