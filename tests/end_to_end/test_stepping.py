"""Stepping through an episode manually gives the results of a run, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from esper_core.app.episode import Episode
from esper_core.leyline import WAIT, Action, Signals
from esper_core.leyline.events import EpisodeFinished, GovernorActed, StepFinished
from esper_study.actions import action_of

BROODING = """\
from esper_core import hookimpl
from esper_core.leyline import Level, Verdict

@hookimpl
def esper_check_health(snapshot):
    whose = "twin" if snapshot.arm == "twin" else "own"
    return Verdict(Level.PANIC, "a whim") if (whose, snapshot.signals.step) in {WHIMS} else None
"""
"""A health check that panics at some steps, of the twin or of the others."""

STEADY = """\
      - {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 2}
      - {step: 1, op: advance, slot: early}
"""
"""A seed that acts on the host from the second step on."""


@dataclass(frozen=True)
class Told:
    """The events of a run about one environment and its twin."""

    steps: Sequence[StepFinished]
    acted: Sequence[GovernorActed]
    end: EpisodeFinished
    beside: Sequence[Signals]
    twin: EpisodeFinished

    @property
    def seed(self) -> int:
        return self.end.seed

    @property
    def actions(self) -> list[Action]:
        return [action_of(step) for step in self.steps]


@pytest.fixture
def episode_of(run):
    """``episode_of("governor.patience=2", seed=1)``: return the events of one environment."""

    def told(*changes, seed=0):
        events = run("environments=1", *changes).events()
        first = min(event.seed for event in events if isinstance(event, EpisodeFinished))

        def of(kind, *, twin):
            own = [one for one in events if isinstance(one, kind) and one.seed == first + seed]
            return [one for one in own if (one.arm == "twin") == twin]

        (end,), (twin,) = of(EpisodeFinished, twin=False), of(EpisodeFinished, twin=True)
        beside = [step.signals for step in of(StepFinished, twin=True)]
        return Told(of(StepFinished, twin=False), of(GovernorActed, twin=False), end, beside, twin)

    return told


def played(play, told):
    """Return the steps of the episode with the recorded actions."""
    moments = [play.begin(told.seed)]
    for action in told.actions:
        if not moments[-1].over:
            moments.append(play.act(action))
    return moments


def hold_to(told, moments):
    """Compare every number of every step and of the end."""
    *steps, last = moments
    for own, step in zip(
        steps, told.steps, strict=False
    ):  # an episode that ended early is reported until its twin ends
        assert own.observation.signals == step.signals, step.step
        assert (own.reward and dict(own.reward.terms)) == dict(step.reward), step.step
        assert own.observation.twin == told.beside[step.step]
    assert len(steps) == told.end.steps
    assert last.over
    assert last.ending is not None
    end = told.end
    assert (last.ending.test_loss, last.ending.test_metric) == (end.test_loss, end.test_metric)
    assert last.reward is not None
    assert dict(last.reward.terms) == dict(end.closing)
    assert len(last.ending.growth) == end.fossils
    assert sum(one.reward.total for one in moments if one.reward) == pytest.approx(end.reward)
    assert not any(moment.over for moment in steps)


def whims(folder, *steps):
    """Return the changes that make a health check panic at these steps."""
    (folder / "brooding.py").write_text(BROODING.replace("{WHIMS}", str(set(steps))))
    return "plugins.local=[./brooding.py]"


@pytest.fixture
def steady(small):
    """Return the plan of a seed that acts until the end."""
    text = small.read_text()
    before, after = text.index("      - {step: 0"), text.index("environments:")
    small.write_text(text[:before] + STEADY + text[after:])


@pytest.mark.parametrize(
    ("seed", "changes"),
    [
        (1, ("randomness=always", "environments=2", "reward=sparse")),
        (0, ("task={use: mnist1d, settings: {samples: 400, validation: 100}}", "growth={gates: permissive, price: 0}")),
        (0, ("growth={incubation: branch, dependence: true}", "compute.data=streamed")),
    ],
)
def test_the_same_seed_and_actions_give_what_a_run_gives(episode_of, small, seed, changes):
    told = episode_of(*changes, seed=seed)
    assert any(action != WAIT for action in told.actions)
    play = Episode.of(small, changes)
    hold_to(told, played(play, told))
    assert (play.twin.ending.test_loss, play.twin.ending.test_metric) == (told.twin.test_loss, told.twin.test_metric)
    assert list(play.twin.signals) == list(told.beside)


def test_a_second_episode_of_the_same_play_is_as_good_as_the_first(episode_of, small):
    told = episode_of()
    play = Episode.of(small)
    play.begin(told.seed + 1)
    play.act(WAIT)
    hold_to(told, played(play, told))
    hold_to(told, played(play, told))


@pytest.mark.usefixtures("steady")
def test_stepping_rolls_back_as_a_run_does(episode_of, small, tmp_path):
    """The environment is rolled back at one step, and its twin at another, after which gains are unknown."""
    change = whims(tmp_path, ("own", 6), ("twin", 4))
    told = episode_of(change)
    assert [one.act for one in told.acted] == ["roll-back"]
    gains = [step.signals.seeds[0].gain if step.signals.seeds else None for step in told.steps]
    assert gains[3] is not None
    assert gains[5] is None
    moments = played(Episode.of(small, [change]), told)
    hold_to(told, moments)
    assert [one.rolled_back for one in moments] == [step == 6 for step in range(9)]
    assert moments[6].mask == moments[6].mask.shut()
    assert moments[6].reward is not None
    assert moments[6].reward.terms["penalty"] == -5.0


def test_an_episode_that_is_cut_short_ends_as_in_a_run(episode_of, small):
    """The later progress of its twin does not lower its reward."""
    changes = ("governor.patience=1", "policy=static", "episode={steps: 8, batches: 1, batch_size: 20}")
    told = episode_of(*changes)
    assert [one.act for one in told.acted] == ["early-stop"]
    assert told.end.steps < 8
    assert told.beside[told.end.steps - 1].validation_metric != told.twin.validation_metric
    moments = played(Episode.of(small, changes), told)
    hold_to(told, moments)
    assert moments[-2].mask == moments[-2].mask.shut()
