"""Shared set-up for tests of the trainer: a driver of pools, and studies with a recorder of their events."""

from collections.abc import Callable, Mapping
from typing import Any

from esper_core.leyline import WAIT, Action, RewardBreakdown, Signals
from esper_core.leyline.events import Event
from esper_core.settings import EpisodeConfig
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.pool import Pool
from esper_core.trainer.study import Arm, RunReward, Study


def play(
    pool: Pool,
    steps: int | range,
    plan: Mapping[int, Action] | Callable[[Environment, int], Action] | None = None,
    look: Callable[[list[Signals]], Any] = lambda signals: signals,
) -> list[Any]:
    """Drive a pool as the loop does, and return the signals of each step.

    ``steps``: a number begins a round, a range continues it. ``plan``: the action after each step, in the environments
    of the arm "grown", or what chooses it there; the others wait. ``look``: returns what to keep of each step, before
    its action is carried out.
    """
    if isinstance(steps, int):
        pool.reset(0, 3)
        steps = range(steps)
    choose = plan if callable(plan) else lambda _, step: (plan or {}).get(step, WAIT)
    kept = []
    for step in steps:
        pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        pool.heal(step)
        pool.carry_out(pool.judge({}), step)
        kept.append(look(list(pool.latest)))
        pool.apply(
            [choose(environment, step) if environment.arm == "grown" else WAIT for environment in pool.environments],
            step,
        )
    return kept


class ImprovementReward:
    """The change of the lead over the twin, in the metric."""

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        gained = now.validation_metric - twin.validation_metric
        had = 0.0 if before is None or twin_before is None else before.validation_metric - twin_before.validation_metric
        return RewardBreakdown({"improvement": gained - had})


class EventRecorder(list[Any]):
    """Every event of a run."""

    settled = 0

    def hear(self, event: Event) -> None:
        self.append(event)

    def settle(self) -> None:
        self.settled += 1

    def of(self, kind: type, arm: str | None = "grown") -> list[Any]:
        """Events of one kind, of one arm; None: of all arms."""
        return [event for event in self if isinstance(event, kind) and (arm is None or event.arm == arm)]


def make_study(
    recipe: Recipe, policy: Any, *, environments: int = 1, rounds: int = 1, twin: str | None = "twin", **more: Any
) -> tuple[Study, EventRecorder]:
    """Return a study of "grown" and a twin, and the recorder of its events."""
    recorder = EventRecorder()
    study = Study(
        pool=Pool(recipe, ["grown", *([twin] if twin else [])], environments, twin=twin),
        arms=[Arm("grown", policy, 'policy "test/planned" (test 1.0)')],
        twin=twin,
        reward=RunReward(ImprovementReward(), 'reward "test/improvement" (test 1.0)'),
        episode=EpisodeConfig(steps=recipe.network.steps, batches=recipe.network.batches),
        first_seeds=[3 + round_ * environments for round_ in range(rounds)],
        bus=Bus([recorder]),
        clock=Clock(),
        packages={"test/local-conv": "test 1.0"},
        **more,
    )
    return study, recorder
