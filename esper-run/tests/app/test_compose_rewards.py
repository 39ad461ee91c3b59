"""Several rewards in one run give the results of one run per reward, with one policy that sees all of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline import ConfigError
from esper_core.leyline.events import EpisodeFinished, Event, StepFinished
from esper_run import read_events
from esper_run.app.compose import prepare
from esper_run.app.episode import Episode
from esper_run.app.run import resume, run
from esper_run.runs.records import read_run

pytestmark = pytest.mark.members

PRICES = "rewards: [{use: team, settings: {price: 5}}, {use: team, settings: {price: 50}}]\n"
PLANNED = ("schedule@price-5", "schedule@price-50")
KEEPS = """\
      - {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 1}
      - {step: 2, op: advance, slot: early}
      - {step: 4, op: fossilise, slot: early}
"""


def written(folder: Path, text: str, more: str = PRICES, environments: int = 4) -> Path:
    """The small run in a file of its own, long enough to keep a seed."""
    text = text.replace("steps: 3", "steps: 6").replace("environments: 2", f"environments: {environments}")
    folder.mkdir(exist_ok=True)
    file = folder / "run.yaml"
    file.write_text(text + more)
    return file


@pytest.fixture
def planned(configured) -> str:
    """A plan that keeps a seed."""
    text = configured("capacity: false\n").read_text()
    plan = next(line for line in text.splitlines(keepends=True) if "op: germinate" in line)
    return text.replace(plan, KEEPS)


@pytest.fixture
def watcher(recorder) -> Any:
    """A policy that grows only at a low price, and records its observations."""
    return recorder("one.price == 5").Recorder


@pytest.fixture
def watched(configured, watcher) -> str:
    """The configuration of two rounds with this policy."""
    text = configured("capacity: false\nrounds: 2\n").read_text()
    return text.replace(text[text.index("policy:") : text.index("environments")], "policy: recorder\n")


def played(file: Path) -> Path:
    """Run a file, and return the run directory."""
    return run(prepare(file), runs_dir=file.parent / "runs").path


def events_of(path: Path, kind: type, arm: str) -> list[Any]:
    return [event for event in read_events(path / "events.jsonl") if isinstance(event, kind) and event.arm == arm]


def bare(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [{name: getattr(event, name) for name in event.__slots__ if name != "arm"} for event in events]


def results_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "summary.json").read_text())["results"]


def check_figures(path: Path) -> None:
    """Figures and comparisons count seeds, not environments, and comparisons are paired by seed."""
    results = results_of(path)
    assert {arm: figures["test"]["n"] for arm, figures in results["arms"].items()} == dict.fromkeys(
        (*PLANNED, "twin"), 2
    )
    assert {
        (comparison["a"], comparison["b"]): (comparison["n"], comparison["paired"])
        for comparison in results["comparisons"]
    } == {
        (PLANNED[0], PLANNED[1]): (2, True),
        (PLANNED[0], "twin"): (2, True),
        (PLANNED[1], "twin"): (2, True),
    }
    between, *with_twin = results["comparisons"]
    assert (between["difference"], between["ci_low"], between["ci_high"]) == (0, 0, 0), "one plan, whatever it costs"
    assert with_twin[0]["ci_low"] == with_twin[1]["ci_low"]
    assert json.loads((path / "manifest.json").read_text())["seeds"] == {"first": 0, "count": 2}


@pytest.mark.slow
@pytest.mark.install  # CI runs it for every change
def test_every_seed_is_played_under_every_reward_as_in_a_run_of_its_own(planned, tmp_path) -> None:
    together = played(written(tmp_path / "together", planned))
    check_figures(together)
    ends = {arm: events_of(together, EpisodeFinished, arm) for arm in (*PLANNED, "twin")}
    assert {arm: [event.seed for event in events] for arm, events in ends.items()} == {arm: [0, 1] for arm in ends}
    for price, arm in ((5, PLANNED[0]), (50, PLANNED[1])):
        reward = f"reward: {{use: team, settings: {{price: {price}}}}}\n"
        alone = played(written(tmp_path / f"at-{price}", planned, reward, environments=2))
        for arm_together, arm_alone in ((arm, "schedule"), ("twin", "twin")):
            for kind in (StepFinished, EpisodeFinished):
                assert bare(events_of(together, kind, arm_together)) == bare(events_of(alone, kind, arm_alone))
        assert results_of(together)["arms"][arm] == results_of(alone)["arms"]["schedule"]
    low, high = ([event.reward for event in ends[arm]] for arm in PLANNED)
    assert all(cheap > dear for cheap, dear in zip(low, high, strict=True)), "the rewards are two"


def test_policy_sees_each_instance_at_each_price_in_one_round(watched, watcher, tmp_path) -> None:
    path = played(written(tmp_path / "own", watched))
    ((begun, _), (after, _), *_), (rollout, _) = watcher.seen, watcher.rollouts
    assert [observation.price for observation in begun] == [5, 50, 5, 50]
    first = [observation.signals.validation_loss for observation in begun]
    assert first[0] == first[1] != first[2] == first[3]
    assert [observation.twin.validation_loss for observation in begun] == first
    assert [len(observation.signals.seeds) for observation in after] == [1, 0, 1, 0], (
        "noise is shared, and decisions are not"
    )
    assert rollout.arm == "recorder"
    assert [episode.turns[0].observation for episode in rollout.trajectories] == begun
    ends = [events_of(path, EpisodeFinished, f"recorder@price-{price}") for price in (5, 50)]
    assert [[event.seed for event in events] for events in ends] == [[0, 1, 2, 3], [0, 1, 2, 3]], (
        "two rounds of two seeds"
    )
    sums = [sum(turn.reward.total for turn in episode.turns) for episode in rollout.trajectories]
    first_step = [
        events_of(path, StepFinished, f"recorder@price-{price}")[place] for place in (0, 1) for price in (5, 50)
    ]
    earned = [ends[place % 2][place // 2].reward - sum(first_step[place].reward.values()) for place in range(4)]
    assert sums == pytest.approx(earned), "what comes before the first decision is nobody's"


def test_each_price_has_its_own_control(planned, tmp_path) -> None:
    path = played(written(tmp_path / "own", planned.replace("capacity: false\n", "")))
    results, controls = results_of(path), tuple(f"capacity-of-{arm}" for arm in PLANNED)
    assert tuple(results["arms"]) == (*PLANNED, "twin", *controls)
    assert {results["arms"][arm]["test"]["n"] for arm in controls} == {2}
    assert {results["arms"][arm]["params"] for arm in controls} == {results["arms"][PLANNED[0]]["params"]}
    started = next(iter(read_events(path / "events.jsonl")))
    assert (started.arms, started.environments) == ((*PLANNED, "twin", *controls), 2)


@pytest.mark.slow
def test_interrupted_run_is_resumed_with_identical_results(watched, after_step, tmp_path) -> None:
    text = watched + "checkpoints: {every: 1}\n"
    uninterrupted = played(written(tmp_path / "whole", text))

    def end() -> None:
        raise KeyboardInterrupt

    after_step(3, end, round_=1)
    with pytest.raises(KeyboardInterrupt):
        played(written(tmp_path / "broken", text))
    (broken,) = (tmp_path / "broken" / "runs").iterdir()
    resume(prepare(broken / "config.yaml"), read_run(broken))
    histories = [
        [event for event in read_events(path / "events.jsonl") if hasattr(event, "arm")]
        for path in (uninterrupted, broken)
    ]
    assert histories[0] == histories[1]
    assert results_of(broken) == results_of(uninterrupted)


@pytest.mark.parametrize(
    ("rewards", "names"),
    [
        ("[team, sparse]", ("schedule@reward-1", "schedule@reward-2")),
        ("[team, {use: team, settings: {price: 0.5}}]", ("schedule@price-20", "schedule@price-0.5")),
        ("[team]", ("schedule",)),
    ],
)
def test_arms_are_named_by_their_prices_where_these_differ(configured, rewards, names) -> None:
    composition = prepare(configured(f"rewards: {rewards}\n"))
    assert composition.arm_names == (*names, "twin")
    assert len(composition.controls) == len(names)


@pytest.mark.parametrize(("rewards", "place"), [("[team, loss]", 1), ("[loss, loss, sparse]", 2)])
def test_b8_drl_09_rewards_of_two_families_are_refused_when_the_file_is_read(configured, rewards, place) -> None:
    """Rewards in points of the metric and rewards in nats cannot be in one run."""
    text = configured(f"rewards: {rewards}\nname: x\n")
    text.write_text(text.read_text().replace("environments: 2", "environments: 6"))
    with pytest.raises(ConfigError, match=r'is of the family ".*", ".*" of "') as caught:
        prepare(text)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path, problem.line) == ("E114", f"rewards[{place}]", 12)
    text.write_text(text.read_text().replace(f"rewards: {rewards}", "rewards: [loss, loss]"))
    assert len(prepare(text).judges) == 2


def test_episode_needs_one_reward_or_the_name_of_an_arm(configured) -> None:
    with pytest.raises(ConfigError, match="an episode has one reward, and the configuration has 2"):
        Episode.of(configured(PRICES))
    with pytest.raises(
        ConfigError, match=r'no arm "shedule@price-5" with a policy\n  Name the arm .*: schedule@price-5, '
    ):
        Episode.of(configured(PRICES), arm="shedule@price-5")
    for arm, price in zip(PLANNED, (5, 50), strict=True):
        assert Episode.of(configured(PRICES), arm=arm).begin(0).observation.price == price
