"""An episode is played again to the last bit; with another action it is what a run with that action would have been."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from esper_core.app.asking import action_asked
from esper_core.app.preparing import Prepared, prepare
from esper_core.app.recording import Recording, recording_in
from esper_core.app.replaying import Replay, Wish, replay
from esper_core.app.running import run
from esper_core.leyline import ConfigError, EsperError, GovernorStop, RunFolderError
from esper_core.leyline.events import Event, StepFinished
from esper_core.telemetry import encode

Esper = Callable[..., Any]

RUN = """
task: {use: mnist1d, settings: {samples: 300, validation: 100}}
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise]}
  late: {blueprints: [mlp]}
arms:
  planned:
    policy:
      use: schedule
      settings:
        plan:
          - {step: 0, slot: early, op: germinate, blueprint: conv_light%s}
          - {step: 1, slot: early, op: advance}
          - {step: 4, slot: early, op: fossilise}
          - {step: 4, slot: late, op: germinate, blueprint: mlp}
  chance: {policy: random}
growth: {nursery: 2, embargo: 1}
capacity: true
environments: 2
rounds: 2
episode: {steps: 6, batches: 2, batch_size: 20}
"""
AS_PLANNED = ", blend: gate, speed: 2"
OTHERWISE = ", blend: multiply, speed: 1, curve: cosine"


@dataclass(frozen=True)
class Ran:
    """A run that is over, ready to be replayed."""

    path: Path
    prepared: Prepared

    def recording(self, episode: str) -> Recording:
        return recording_in(self.path, episode, self.prepared.composition.controls, pytest.fail)

    def what_if(self, episode: str, step: int, action: str, **more: Any) -> Replay:
        asked = action_asked(action, self.prepared.composition.space)
        told: list[str] = []
        return replay(self.prepared, self.recording(episode), Wish(step, asked, **more), tell=told.append)

    def replayed(self, episode: str, wish: Wish | None = None) -> Replay:
        return replay(self.prepared, self.recording(episode), wish, tell=all_is_possible)


def all_is_possible(told: str) -> None:
    """What is recorded can be done again; that the governor did its work may be told."""
    assert "not possible now" not in told


def ran(folder: Path, text: str) -> Ran:
    folder.mkdir(exist_ok=True)
    (folder / "run.yaml").write_text(text)
    path = run(prepare(folder / "run.yaml"), runs_dir=folder / "runs", name="first").path
    return Ran(path, prepare(path / "config.yaml"))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return ran(tmp_path_factory.mktemp("planned"), RUN % AS_PLANNED)


@pytest.fixture
def copied(planned: Ran, tmp_path: Path) -> Path:
    """A run directory that can be damaged."""
    return Path(shutil.copytree(planned.path, tmp_path / planned.path.name))


def rewritten(run: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Each event as ``change`` makes it; None leaves it out."""
    file = run / "events.jsonl"
    told = [change(json.loads(line)) for line in file.read_text().splitlines()]
    file.write_text("".join(f"{json.dumps(event)}\n" for event in told if event is not None))


def lines(events: Sequence[Event | None]) -> list[str | None]:
    """The events as they are written: equal where they are equal to the last bit, NaN among them."""
    return [None if event is None else encode(event) for event in events]


def measured(steps: Sequence[StepFinished]) -> list[str | None]:
    """What was measured, without what was done on it."""
    return lines([replace(step, action="", arguments={}) for step in steps])


EPISODES = ["planned:0", "planned:3", "chance:1", "chance:2", "twin:3", "capacity-of-planned:2"]


@pytest.mark.parametrize("episode", EPISODES)
def test_an_episode_is_the_same_to_the_last_bit(planned: Ran, episode: str) -> None:
    recording, again = planned.recording(episode), planned.replayed(episode)
    assert again.difference is None
    assert len(again.steps) == 6
    assert lines([*again.steps, again.ending]) == lines([*recording.steps, recording.ending])
    assert recording.round == recording.seed // 2
    assert len(recording.grown) == (episode == "capacity-of-planned:2")


def test_what_if_is_what_a_run_with_that_action_would_have_been(planned: Ran, tmp_path: Path) -> None:
    less = RUN.replace("rounds: 2", "rounds: 1").replace("capacity: true", "capacity: false")
    other = ran(tmp_path / "other", less.replace("  chance: {policy: random}\n", "") % OTHERWISE)
    action = "germinate early conv_light blend=multiply speed=1 curve=cosine"
    found, recording = planned.what_if("planned:1", 0, action), other.recording("planned:1")
    assert found.difference is None
    assert lines([*found.steps, found.ending]) == lines([*recording.steps, recording.ending])
    assert measured(found.steps) != measured(planned.recording("planned:1").steps)


def test_what_was_done_stays_the_same_until_the_step_and_what_is_not_possible_after_it_waits(planned: Ran) -> None:
    recorded, told = planned.recording("planned:0"), list[str]()
    asked = action_asked("prune early speed=0", planned.prepared.composition.space)
    found = replay(planned.prepared, recorded, Wish(2, asked), tell=told.append)
    assert found.difference is None
    assert lines(found.steps[:2]) == lines(recorded.steps[:2])
    assert measured(found.steps[:3]) == measured(recorded.steps[:3])
    assert measured(found.steps[3:]) != measured(recorded.steps[3:])
    assert [event.action for event in found.steps[2:]] == [
        "prune early",
        "wait",
        "wait",
        "germinate late blueprints/mlp",
    ]
    assert told == ["step 4: what was done then is not possible now, so it waits: fossilise early"]


def test_then_nothing_more_is_done_where_that_is_asked_for(planned: Ran) -> None:
    found = planned.what_if("planned:0", 2, "wait", then="wait")
    assert [event.action for event in found.steps[2:]] == ["wait"] * 4
    assert [event.action for event in found.steps[:2]] == ["germinate early blueprints/conv_light", "advance early"]


def test_what_could_be_done_after_a_step_is_listed_and_can_be_done(planned: Ran) -> None:
    found = planned.replayed("planned:0", Wish(0))
    assert (len(found.steps), found.difference, found.ending) == (1, None, None)
    assert found.possible == (
        "wait",
        "germinate early blueprints/conv_light",
        "germinate early blueprints/pointwise",
        "germinate late blueprints/mlp",
    )
    assert planned.what_if("planned:0", 0, found.possible[2]).steps[0].action == found.possible[2]


def test_what_is_not_possible_is_refused_with_what_is(planned: Ran) -> None:
    with pytest.raises(ConfigError) as refusal:
        planned.what_if("planned:0", 2, "germinate early conv_light speed=9")
    (problem,) = refusal.value.problems
    assert problem.message.startswith("germinate early blueprints/conv_light speed=9 is not possible after step 2 of")
    assert problem.hint == "Possible then: wait, prune early, germinate late blueprints/mlp"


@pytest.mark.parametrize(
    ("episode", "step", "message", "hint"),
    [
        ("planned:4", None, 'no episode "planned:4"', "planned:0 to planned:3"),
        ("planed:0", None, 'no episode "planed:0"', 'Did you mean "planned"?'),
        ("0", None, "2 arms have a policy", "planned:0 or chance:0"),
        ("", None, '"" names no episode', "planned:0"),
        ("planned", None, '"planned" names no episode', "planned:0"),
        ("planned:-1", None, "names no episode", "planned:0"),
        ("planned:٣", None, "names no episode", "planned:0"),
        (f"planned:{'9' * 5000}", None, "names no episode", "planned:0"),
        ("planned:0", 6, "no step 6 in planned:0", "0 to 5."),
        ("planned:0", -1, "no step -1 in planned:0", "0 to 5."),
        ("twin:0", 1, "nobody decides anything in twin:0", "an arm that has a policy"),
        ("capacity-of-planned:0", 1, "nobody decides", "an arm that has a policy"),
    ],
)
def test_what_there_is_not_is_told_with_what_there_is(
    planned: Ran, episode: str, step: int | None, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        planned.replayed(episode, None if step is None else Wish(step))
    (problem,) = refusal.value.problems
    assert problem.code == "E432"
    assert message in problem.message
    assert hint in (problem.hint or "")


@pytest.mark.parametrize(
    ("write", "code"),
    [
        (lambda file: file.unlink(), "E430"),
        (lambda file: file.write_text("nonsense\n"), "E421"),
        (lambda file: file.write_text(file.read_text().replace('"germinate early', '"grow early')), "E421"),
        (lambda file: file.write_text(file.read_text().replace('"blend":"gate"', '"blend":"mix"')), "E421"),
        (lambda file: file.write_text(""), "E432"),
    ],
)
def test_events_that_cannot_be_read_are_told(
    planned: Ran, copied: Path, write: Callable[[Path], None], code: str
) -> None:
    write(copied / "events.jsonl")
    with pytest.raises(EsperError) as refusal:
        recording_in(copied, "planned:0", {}, pytest.fail)
    assert [problem.code for problem in refusal.value.problems] == [code]
    assert isinstance(refusal.value, RunFolderError if code != "E432" else ConfigError)


def test_of_a_run_that_died_what_there_is_is_replayed(planned: Ran, copied: Path) -> None:
    def first_steps(event: dict[str, Any]) -> dict[str, Any] | None:
        late = event["type"] in ("run-finished", "episode-finished") or event.get("step", 0) > 3
        return None if late or event.get("round", 0) > 0 else event

    rewritten(copied, first_steps)
    with (copied / "events.jsonl").open("a") as file:
        file.write('{"type": "step-fin')
    told: list[str] = []
    recording = recording_in(copied, "planned:1", {}, told.append)
    assert "line" in told[0]
    assert "incomplete" in told[0]
    again = replay(planned.prepared, recording, tell=pytest.fail)
    assert (len(again.steps), again.difference, again.ending) == (4, None, None)
    asked = Wish(3, action_asked("prune early", planned.prepared.composition.space))
    found = replay(planned.prepared, recording, asked, tell=pytest.fail)
    assert (len(found.steps), found.ending) == (4, None)


def test_a_run_that_the_governor_stopped_is_stopped_again(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    wild = "optimizer: {host: {kind: sgd, learning_rate: 10}}\ngovernor: {rollbacks: 0}\n"
    file.write_text((RUN % "").replace("environments: 2", "environments: 1") + wild)
    with pytest.raises(GovernorStop):
        run(prepare(file), runs_dir=tmp_path / "runs", name="wild")
    (path,) = (tmp_path / "runs").iterdir()
    stopped = Ran(path, prepare(path / "config.yaml"))
    again = [stopped.replayed(f"{arm}:0") for arm in ("planned", "twin", "chance")]
    assert [one.difference for one in again] == [None] * 3
    assert any("planned" in (one.stopped or "") or "twin" in (one.stopped or "") for one in again)


def test_the_command_says_that_it_is_the_same(esper: Esper, planned: Ran) -> None:
    answer = esper("replay", planned.path, "--episode", "chance:3", "--quiet")
    assert answer.code == 0
    assert "The same to the last bit in 6 steps, and in the test at the end." in answer.out
    assert answer.err == ""


def test_the_command_says_where_it_is_not_the_same(esper: Esper, copied: Path) -> None:
    def touched(event: dict[str, Any]) -> dict[str, Any]:
        if (event.get("arm"), event.get("seed"), event.get("step"), "signals" in event) == ("planned", 0, 3, True):
            event["signals"]["validation_loss"] += 1e-9
        return event

    rewritten(copied, touched)
    answer = esper("replay", copied, "--episode", "planned:0", "--json")
    assert (answer.code, answer.json["same"]) == (1, False)
    assert (answer.json["difference"]["step"], answer.json["difference"]["what"]) == (3, "signals.validation_loss")
    text = esper("replay", copied, "--episode", "planned:0", "--quiet")
    assert text.code == 1
    assert "Not the same from step 3 on: signals.validation_loss was" in text.out
    before = esper("replay", copied, "--episode", "planned:0", "--step", "2", "--action", "prune early", "--json")
    assert (before.code, before.json["same"]) == (0, True), "what differs later is not to be the same"
    after = esper("replay", copied, "--episode", "planned:0", "--step", "3", "--action", "prune early", "--quiet")
    assert after.code == 1
    assert "What follows shows that, too, and not the action alone." in after.out


def test_events_that_tell_no_arguments_are_replayed_with_a_note(esper: Esper, copied: Path) -> None:
    rewritten(copied, lambda event: {key: told for key, told in event.items() if key != "arguments"})
    answer = esper("replay", copied, "--episode", "planned:0", "--json")
    assert (answer.code, answer.json["same"]) == (1, False), "its blend was gate"
    assert answer.json["difference"]["what"] == "parameters", "its seed has a gate to train"
    assert "blend, speed, curve, target of an action are not told, and taken by default" in answer.err
    assert answer.json["notes"][0] in answer.err


def test_the_command_shows_what_would_have_been(esper: Esper, planned: Ran) -> None:
    asked = ("replay", planned.path, "--episode", "planned:0", "--step", "2", "--action", "prune early speed=0")
    text, told = esper(*asked, "--quiet"), esper(*asked, "--json").json
    assert text.code == 0
    assert "prune early speed=0" in text.out
    assert "One episode shows nothing (n = 1)" in text.out
    assert "warning: step 4: what was done then is not possible now, so it waits: fossilise early" in text.err
    assert (told["episode"], told["step"], told["action"], told["then"]) == (
        *("planned:0", 2, "prune early speed=0"),
        "recorded",
    )
    ending = planned.recording("planned:0").ending
    assert ending is not None
    assert told["test"]["recorded"] == ending.test_metric
    assert told["test"]["difference"] == told["test"]["replayed"] - told["test"]["recorded"]
    assert [row["step"] for row in told["course"]] == list(range(6))
    assert told["course"][0]["recorded"] == told["course"][0]["replayed"]
    assert told["course"][0]["recorded"]["action"] == "germinate early blueprints/conv_light blend=gate speed=2"
    assert len(told["notes"]) == 1


def test_an_action_without_its_step_is_a_slip(esper: Esper, planned: Ran) -> None:
    answer = esper("replay", planned.path, "--episode", "planned:0", "--action", "wait")
    assert answer.code == 2
    assert "--action needs --step" in answer.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        "growth: {incubation: branch, nursery: 2, embargo: 1}\nlanes: 2",
        "growth: {incubation: straight_through, embargo: 1, gates: strict}\nlanes: 3\nrandomness: always",
        "growth: {incubation: live, embargo: 0, dependence: false}\ntwin: false",
        "growth: {embargo: 1}\noptimizer: {host: {kind: sgd, learning_rate: 3}}\ngovernor: {rollbacks: 9}",
    ],
)
def test_whatever_the_ways_of_growth_every_episode_is_the_same_to_the_last_bit(tmp_path: Path, more: str) -> None:
    text = (RUN % AS_PLANNED).replace("growth: {nursery: 2, embargo: 1}", more).replace("steps: 6", "steps: 12")
    one = ran(tmp_path, text)
    names = [f"{arm}:{seed}" for arm in one.prepared.composition.every_arm for seed in range(4)]
    there = set(re.findall(r'"arm":"([\w-]+)","seed":(\d)', (one.path / "events.jsonl").read_text()))
    again = {name: one.replayed(name) for name in names if tuple(name.split(":")) in there}
    assert {name: found.difference for name, found in again.items()} == dict.fromkeys(again)
    assert len(again) >= 8
