"""``esper replay`` reproduces recorded episodes to the last bit, and follows another action."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline import WAIT, ConfigError, RunFolderError
from esper_core.leyline.events import StepFinished
from esper_run.app.episode import Episode
from esper_study.actions import parse_action
from esper_study.replay import Change, Recording, Replay, read_recording, replay
from tests.end_to_end.conftest import run_once

pytestmark = [pytest.mark.slow, pytest.mark.install]  # CI runs it for every change

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
growth: {gates: "off", nursery: 2, embargo: 1}
capacity: true
environments: 2
rounds: 2
episode: {steps: 6, batches: 2, batch_size: 20}
"""
AS_PLANNED = ", blend: gate, speed: 2"
OTHERWISE = ", blend: multiply, speed: 1, curve: cosine"


@dataclass
class Ran:
    """A finished run, ready to be replayed."""

    path: Path
    warnings: list[str] = field(default_factory=list)

    def play(self) -> Episode:
        return Episode.of(self.path / "config.yaml")

    def recording(self, episode: str) -> Recording:
        return read_recording(self.path, episode, pytest.fail)

    def replayed(self, episode: str, change: Change | None = None, warn: Callable[[str], Any] = pytest.fail) -> Replay:
        recording = self.recording(episode)
        return replay(self.play(), recording, change, warn=warn)

    def what_if(self, episode: str, step: int, action: str, **more: Any) -> Replay:
        """Replay with another action; recorded actions that are not possible any more are in ``warnings``."""
        self.warnings = []
        change = Change(step, parse_action(action, self.play().space), **more)
        return self.replayed(episode, change, self.warnings.append)


def ran(folder: Path, text: str) -> Ran:
    return Ran(run_once(folder, text))


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("planned"), RUN % AS_PLANNED)


@pytest.fixture
def copied(planned, tmp_path):
    """A run directory that a test may damage."""
    return Ran(Path(shutil.copytree(planned.path, tmp_path / planned.path.name)))


def rewrite(run: Ran, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change each recorded event; None removes it."""
    file = run.path / "events.jsonl"
    events = [change(json.loads(line)) for line in file.read_text().splitlines()]
    file.write_text("".join(f"{json.dumps(event)}\n" for event in events if event is not None))


def measured(steps: Sequence[StepFinished]) -> list[str]:
    """Return the measurements without the actions, as a repr, in which NaN equals NaN."""
    return [repr(replace(step, action=WAIT)) for step in steps]


def actions(replayed: Replay, start: int = 0) -> list[str]:
    return [event.action.title for event in replayed.steps[start:]]


@pytest.mark.parametrize("episode", ["planned:3", "chance:2", "twin:3"])
def test_a_replay_is_the_same_to_the_last_bit(planned, episode):
    recording, again = planned.recording(episode), planned.replayed(episode)
    assert again.difference is None
    assert list(map(repr, again.steps)) == list(map(repr, recording.steps))
    assert recording.ending is not None
    assert again.test == (recording.ending.test_loss, recording.ending.test_metric)
    assert recording.steps[0].round == recording.seed // 2


def test_another_action_leads_to_what_a_run_with_that_action_leads_to(planned, tmp_path):
    less = RUN.replace("rounds: 2", "rounds: 1").replace("capacity: true", "capacity: false")
    other = ran(tmp_path / "other", less.replace("  chance: {policy: random}\n", "") % OTHERWISE)
    action = "germinate early conv_light blend=multiply speed=1 curve=cosine"
    replayed, recording = planned.what_if("planned:1", 0, action), other.recording("planned:1")
    assert replayed.difference is None
    assert list(map(repr, replayed.steps)) == list(map(repr, recording.steps))
    assert recording.ending is not None
    assert replayed.test == (recording.ending.test_loss, recording.ending.test_metric)
    assert measured(replayed.steps) != measured(planned.recording("planned:1").steps)


def test_recorded_actions_that_are_not_possible_any_more_become_waits(planned):
    recorded, replayed = planned.recording("planned:0"), planned.what_if("planned:0", 2, "prune early speed=0")
    assert replayed.difference is None
    assert measured(replayed.steps[:3]) == measured(recorded.steps[:3])
    assert measured(replayed.steps[3:]) != measured(recorded.steps[3:])
    assert actions(replayed, 2) == ["prune early", "wait", "wait", "germinate late blueprints/mlp"]
    message = "step 4: the recorded action is not possible any more, so the replay waits: fossilise early"
    assert planned.warnings == [message]


def test_possible_actions_are_listed_and_can_be_taken(planned):
    replayed = planned.replayed("planned:0", Change(0))
    assert (len(replayed.steps), replayed.difference, replayed.test) == (1, None, None)
    assert replayed.possible == (
        "wait",
        "germinate early blueprints/conv_light",
        "germinate early blueprints/pointwise",
        "germinate late blueprints/mlp",
    )
    assert actions(planned.what_if("planned:0", 0, replayed.possible[2]))[0] == replayed.possible[2]


def test_an_impossible_action_is_rejected_with_the_possible_ones(planned):
    with pytest.raises(ConfigError) as refusal:
        planned.what_if("planned:0", 2, "germinate early conv_light speed=9")
    (problem,) = refusal.value.problems
    assert problem.message.startswith("germinate early blueprints/conv_light speed=9 is not possible after step 2 of")
    assert problem.hint == "Possible then: wait, retarget early, prune early, fossilise early"


@pytest.mark.parametrize(
    ("episode", "step", "message", "hint"),
    [
        ("planned:4", None, 'no episode "planned:4"', "planned:0 to planned:3"),
        ("planed:0", None, 'no episode "planed:0"', 'Did you mean "planned"?'),
        ("0", None, "2 arms have a policy", "planned:0 or chance:0"),
        ("", None, '"" names no episode', "planned:0"),
        ("planned:٣", None, "names no episode", "planned:0"),
        (f"planned:{'9' * 5000}", None, "names no episode", "planned:0"),
        ("planned:0", 6, "no step 6 in planned:0", "0 to 5."),
        ("planned:0", -1, "no step -1 in planned:0", "0 to 5."),
        ("twin:0", 1, "no action is taken in the twin", "an arm that has a policy"),
        ("capacity-of-planned:0", None, "controls cannot be replayed", "There are: planned:0"),
    ],
)
def test_episodes_and_steps_that_do_not_exist_are_rejected(planned, episode, step, message, hint):
    with pytest.raises(ConfigError) as refusal:
        planned.replayed(episode, None if step is None else Change(step))
    (problem,) = refusal.value.problems
    assert problem.code == "E432"
    assert message in problem.message
    assert hint in (problem.hint or "")


@pytest.mark.parametrize(
    ("pattern", "text", "code"),
    [
        (r"(?s).*", "nonsense\n", "E421"),
        ('"op":"germinate"', '"op":"grow"', "E421"),
        ('"blend":"gate"', '"blend":"mix"', "E421"),
        (r"(?s).*", "", "E432"),
        (None, None, "E430"),
    ],
)
def test_unreadable_events_are_reported(copied, pattern, text, code):
    file = copied.path / "events.jsonl"
    if pattern is None:
        file.unlink()
    else:
        file.write_text(re.sub(pattern, text, file.read_text(), count=1))
    with pytest.raises(ConfigError if code == "E432" else RunFolderError) as refusal:
        copied.recording("planned:0")
    assert [problem.code for problem in refusal.value.problems] == [code]


def test_an_incomplete_recording_is_replayed_as_far_as_it_goes(copied):
    def first_steps(event: dict[str, Any]) -> dict[str, Any] | None:
        late = event["type"] in ("run-finished", "episode-finished") or event.get("step", 0) > 3
        return None if late or event.get("round", 0) > 0 else event

    rewrite(copied, first_steps)
    with (copied.path / "events.jsonl").open("a") as file:
        file.write('{"type": "step-fin')
    warnings: list[str] = []
    recording = read_recording(copied.path, "planned:1", warnings.append)
    assert "incomplete" in warnings[0]
    play = copied.play()
    again = replay(play, recording, warn=pytest.fail)
    assert (len(again.steps), again.difference, again.test) == (4, None, None)
    change = Change(3, parse_action("prune early", play.space))
    changed = replay(play, recording, change, warn=pytest.fail)
    assert (len(changed.steps), changed.test) == (4, None)


def test_a_run_that_the_governor_stopped_is_stopped_again(tmp_path):
    wild = "optimizer: {host: {kind: sgd, weight_decay: 1.0e+30}}\ngovernor: {rollbacks: 0}\n"
    stopped = ran(tmp_path / "wild", (RUN % "").replace("environments: 2", "environments: 1") + wild)
    again = [stopped.replayed(f"{arm}:0", warn=print) for arm in ("planned", "twin", "chance")]
    assert [outcome.difference for outcome in again] == [None] * 3
    assert any(outcome.stopped for outcome in again)


def test_the_command_reports_equality(esper, planned):
    answer = esper("replay", planned.path, "--episode", "chance:3", "--quiet")
    assert answer.status == 0
    assert "The same to the last bit in 6 steps, and in the test at the end." in answer.out
    assert answer.err == ""


def test_the_command_reports_the_first_difference(esper, copied):
    def touched(event: dict[str, Any]) -> dict[str, Any]:
        if (event.get("arm"), event.get("seed"), event.get("step"), "signals" in event) == ("planned", 0, 3, True):
            event["signals"]["validation_loss"] += 1e-9
        return event

    rewrite(copied, touched)
    arguments = ("replay", copied.path, "--episode", "planned:0")
    answer = esper(*arguments, "--json")
    assert (answer.status, answer.json["same"]) == (1, False)
    assert (answer.json["difference"]["step"], answer.json["difference"]["what"]) == (3, "signals.validation_loss")
    text = esper(*arguments, "--quiet")
    assert text.status == 1
    assert "Different from step 3 on: signals.validation_loss was" in text.out
    before = esper(*arguments, "--step", "2", "--action", "prune early", "--json")
    assert (before.status, before.json["same"]) == (0, True), "only what precedes the action has to be the same"
    after = esper(*arguments, "--step", "3", "--action", "prune early", "--quiet")
    assert after.status == 1
    assert "Part of what follows is due to that difference, not to the action." in after.out


def test_the_command_compares_another_action_with_the_recording(esper, planned):
    arguments = ("replay", planned.path, "--episode", "planned:0", "--step", "2", "--action", "prune early speed=0")
    text, report = esper(*arguments, "--quiet"), esper(*arguments, "--json").json
    assert text.status == 0
    assert "prune early speed=0" in text.out
    assert "One episode is no evidence (n = 1)" in text.out
    assert "warning: step 4: the recorded action is not possible any more" in text.err
    assert (report["episode"], report["step"], report["action"], report["then"]) == (
        *("planned:0", 2, "prune early speed=0"),
        "recorded",
    )
    ending = planned.recording("planned:0").ending
    assert ending is not None
    assert report["test"]["recorded"] == ending.test_metric
    assert report["test"]["difference"] == report["test"]["replayed"] - report["test"]["recorded"]
    assert [row["step"] for row in report["course"]] == list(range(6))
    assert report["course"][0]["recorded"] == report["course"][0]["replayed"]
    assert report["course"][0]["recorded"]["action"] == "germinate early blueprints/conv_light blend=gate speed=2"
    assert len(report["notes"]) == 1


def test_an_action_without_its_step_is_a_usage_error(esper, planned):
    answer = esper("replay", planned.path, "--episode", "planned:0", "--action", "wait")
    assert answer.status == 2
    assert "--action needs --step" in answer.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        'growth: {gates: "off", incubation: branch, nursery: 2, embargo: 1}\nlanes: 2',
        "growth: {embargo: 1, gates: strict}\nlanes: 3\nrandomness: always",
        'growth: {gates: "off", embargo: 0, dependence: false}\ntwin: false',
        'growth: {gates: "off"}\noptimizer: {host: {kind: sgd, learning_rate: 3}}\ngovernor: {rollbacks: 9}',
    ],
)
def test_replays_are_identical_with_any_growth_settings(tmp_path, more):
    text = (
        (RUN % AS_PLANNED)
        .replace('growth: {gates: "off", nursery: 2, embargo: 1}', more)
        .replace("steps: 6", "steps: 12")
    )
    recorded_run = ran(tmp_path / "run", text)
    environments = set(
        re.findall(r'"arm":"((?:planned|chance|twin))","seed":(\d)', (recorded_run.path / "events.jsonl").read_text())
    )
    again = {name: recorded_run.replayed(":".join(name), warn=print) for name in sorted(environments)}
    assert {name: outcome.difference for name, outcome in again.items()} == dict.fromkeys(again)
    assert len(again) >= 8
