"""How a run ends in its manifest, and what must be unchanged to resume it."""

import json
import os
import shutil
import signal
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

import esper_run
from esper_core.leyline import ConfigError, GovernorStop, PluginError, Problem, RunFolderError
from esper_core.telemetry import EventFile, read_events
from esper_run.app import run as run_module
from esper_run.app.compose import Composition, prepare
from esper_run.app.recipes import digest_data
from esper_run.app.resolution import resolved_config
from esper_run.app.run import resume, run
from esper_run.config import load_config
from esper_run.runs import RunDirectory
from esper_run.runs.checkpoint_files import Checkpoints
from esper_run.runs.records import read_run
from tests.support.configurations import rewritten
from tests.support.core_worlds import slow
from tests.support.studies import EventRecorder

pytestmark = pytest.mark.members


def test_configuration_can_be_given_as_plain_data_with_overrides(configured, tmp_path) -> None:
    configuration = yaml.safe_load(configured().read_text())
    changes = ["environments=1", "twin=false", "capacity=false"]
    outcome = run(configuration, overrides=changes, runs_dir=tmp_path / "runs")
    assert list(outcome.results["arms"]) == ["schedule"]
    kept = load_config(outcome.path / "config.yaml").config
    assert (kept.environments, kept.episode.steps) == (1, 3)
    with pytest.raises(ConfigError) as raised:
        run({**configuration, "environments": 0}, runs_dir=tmp_path / "runs")
    assert (raised.value.problems[0].file, raised.value.problems[0].path) == ("configuration", "environments")
    with pytest.raises(ConfigError, match="E111"):
        run({**configuration, "task": object()})


@pytest.mark.parametrize("kind", [GovernorStop, PluginError])
def test_control_that_fails_is_left_out_of_the_results(run_small, monkeypatch, kind) -> None:
    """For example, a block that was kept late can make a host diverge that has it from the start."""
    studies: list[object] = []

    def run_one(course, pause):
        studies.append(course)
        if len(studies) == 2:
            raise kind(Problem("E402", "a loss is not finite"))
        return real(course, pause)

    real = run_module.run_study
    monkeypatch.setattr(run_module, "run_study", run_one)
    monkeypatch.setattr(Composition, "follow_up", lambda self, around, finished: self.study(around))
    result = run_small()
    assert len(studies) == 2
    assert list(result["summary"]["results"]["arms"]) == ["schedule", "twin"]
    assert result["manifest"]["status"] == "done"
    warning = "the static control failed and is left out of the results: E402 a loss is not finite"
    assert result["summary"]["warnings"][-1] == warning


def test_run_from_python_takes_a_file_and_ignores_a_hang_up_as_it_writes_results(configured, tmp_path, monkeypatch):
    """A terminal that is closed sends SIGHUP, too, when the last step is done."""
    received: list[int] = []
    real, hang_up = RunDirectory.write_results, partial(os.kill, os.getpid(), signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, lambda number, frame: received.append(number))
    try:
        monkeypatch.setattr(RunDirectory, "write_results", lambda *results: [hang_up(), real(*results)])
        outcome = esper_run.run(str(configured()), runs_dir=str(tmp_path / "runs"))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (read_run(outcome.path).status, received) == ("done", [])
    assert set(outcome.results["arms"]) >= {"schedule", "twin"}


def test_run_directory_holds_every_source_and_a_configuration_that_runs_without_them(configured, tmp_path) -> None:
    """A glob of blueprints matches those for other kinds of slots, too, of which the configuration names none."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "own_plugin.py").write_text("from esper_core import hookimpl\n")
    file = rewritten(configured("plugins: {local: [inner/own_plugin.py]}\n"), "[conv_light]", '["*"]')
    sets = ["environments=1", "episode.steps=2", "seed=3"]
    path = run(prepare(file, sets), runs_dir=tmp_path / "runs").path
    for name, source in {"config.source.yaml": file, "own_plugin.py": inner / "own_plugin.py"}.items():
        assert (path / name).read_bytes() == source.read_bytes()
    again = load_config(path / "config.yaml")
    assert (again.config.environments, again.config.episode.steps, again.config.seed) == (1, 2, 3)
    assert len(again.config.slots["early"].blueprints) > 1
    assert resolved_config(prepare(path / "config.yaml").resolution) == again.config


KEPT: dict[str, Path] = {}
"""The directories of runs that several tests begin with, which no test changes."""


@pytest.fixture
def halfway(configured, after_step, tmp_path, tmp_path_factory) -> Path:
    """Return the directory of a run that was interrupted after its second step; it has an empty plugin file."""

    def end() -> None:
        raise KeyboardInterrupt

    if "halfway" not in KEPT:
        (tmp_path / "own_plugin.py").write_text("from esper_core import hookimpl\n")
        prepared = prepare(configured("checkpoints: {every: 1}\nplugins: {local: [own_plugin.py]}"))
        after_step(2, end)
        runs = tmp_path_factory.mktemp("halfway")
        with pytest.raises(KeyboardInterrupt):
            run(prepared, runs_dir=runs)
        (KEPT["halfway"],) = runs.iterdir()
    return shutil.copytree(KEPT["halfway"], tmp_path / "runs" / KEPT["halfway"].name)


def go_on(directory: Path, *changes: str) -> None:
    """Resume after replacing texts in the configuration: old, new, old, new, …"""
    resume(prepare(rewritten(directory / "config.yaml", *changes)), read_run(directory))


def test_run_resumes_with_the_same_configuration_and_data_only_apart_from_lanes(halfway, monkeypatch) -> None:
    kept = [(file, file.read_bytes()) for file in (halfway / "events.jsonl", halfway / "manifest.json")]
    with pytest.raises(RunFolderError, match=r"E413 .*config\.yaml changed.*: episode\.steps is 4, and was 3"):
        go_on(halfway, "steps: 3", "steps: 4")
    monkeypatch.setattr(run_module, "digest_data", lambda recipe: digest_data(recipe) | {"test": "0" * 64})
    with pytest.raises(RunFolderError, match=r"E413 the data of the task changed since .*: test\n  Restore"):
        go_on(halfway, "steps: 4", "steps: 3")
    assert [file.read_bytes() for file, _ in kept] == [content for _, content in kept]
    rewritten(halfway / "manifest.json", '"data"', '"more"')  # runs of older versions do not name their data
    go_on(halfway, "lanes: auto", "lanes: 1")
    assert read_run(halfway).status == "done"


@pytest.mark.parametrize("storage", ["resident", "streamed"])
def test_digests_of_data_follow_their_values_and_not_their_layout(configured, storage) -> None:
    recipe = prepare(configured(), [f"compute.data={storage}"]).recipe
    inputs, digests = recipe.data["train"].inputs, digest_data(recipe)
    inputs.set_(inputs.mT.contiguous().mT)
    assert digest_data(recipe) == digests
    inputs.copy_(inputs.flip(0))
    assert [name for name, digest in digest_data(recipe).items() if digest != digests[name]] == ["train"]


def test_changed_plugin_file_is_reported_when_a_run_is_resumed(halfway, esper) -> None:
    file = halfway / "own_plugin.py"
    file.write_text(f"{file.read_text()}# mended\n")
    warning = f"own_plugin.py changed since {halfway.name} began: the numbers may differ"
    assert warning in esper("resume", halfway, "--quiet").err


def checkpoint_numbers(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in (directory / "checkpoints").iterdir())


def events_at(directory: Path, number: int) -> int:
    state = json.loads((directory / "checkpoints" / f"{number:06}" / "state.json").read_bytes())["state"]
    return int(state["events"]["bytes"])


@pytest.fixture
def expected(configured, tmp_path_factory) -> list[str]:
    """Return the lines of events.jsonl, without the run's id, of the uninterrupted run of ``halfway``."""
    if "whole" not in KEPT:
        runs = tmp_path_factory.mktemp("whole")
        KEPT["whole"] = run(prepare(configured("checkpoints: {every: 1}")), runs_dir=runs).path
    return (KEPT["whole"] / "events.jsonl").read_text().splitlines()[1:]


def test_run_13_events_are_on_the_disk_before_the_checkpoint_that_needs_them(configured, tmp_path, monkeypatch) -> None:
    """A power cut must not leave a checkpoint of which no event is left."""
    done: list[str] = []

    def noted(name: str, method: Any) -> Any:
        return lambda *arguments: [done.append(name), method(*arguments)][1]

    monkeypatch.setattr(EventFile, "sync", noted("events", EventFile.sync))
    monkeypatch.setattr(Checkpoints, "write", noted("checkpoint", Checkpoints.write))
    run(prepare(configured("checkpoints: {every: 1}")), runs_dir=tmp_path / "runs")
    assert len(done) > 4
    assert done == ["events", "checkpoint"] * (len(done) // 2)


def test_nothing_behind_the_checkpoints_position_is_read_when_a_run_is_resumed(expected, halfway) -> None:
    """Resuming cuts the file there, so later lines need not be valid, and no listener receives them."""
    file = halfway / "events.jsonl"
    assert '"episode-finished"' in expected[-2]
    file.write_text(file.read_text() + "\n".join([expected[-2], "not an event", "torn"]))
    heard = EventRecorder()
    resume(prepare(halfway / "config.yaml"), read_run(halfway), listeners=[heard])
    assert file.read_text().splitlines()[1:] == expected
    assert heard == list(read_events(file))


def flip(data: bytes, place: int) -> bytes:
    """Return the bytes with another bit at this place."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def swap(data: bytes, end: int) -> bytes:
    """Return the bytes with the last two lines before ``end`` in the other order."""
    *lines, second, last = data[:end].splitlines(keepends=True)
    return b"".join([*lines, last, second]) + data[end:]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data, length: data[: length - 1], "has {short} bytes; the checkpoint was written after {length}"),
        slow(lambda data, length: data[: length - 1] + b" " * 10 + b"\n", "changed since the checkpoint was written"),
        (lambda data, length: flip(data, length - 10), "changed since the checkpoint was written"),
        slow(swap, "changed since the checkpoint was written"),
    ],
    ids=["cut", "another line", "one bit", "swapped lines"],
)
def test_run_13_events_that_changed_since_the_newest_checkpoint_are_recomputed(expected, halfway, change, reason):
    file, (older, newest) = halfway / "events.jsonl", checkpoint_numbers(halfway)
    length = events_at(halfway, newest)
    file.write_bytes(change(file.read_bytes(), length))
    warnings: list[str] = []
    outcome = resume(prepare(halfway / "config.yaml"), read_run(halfway), on_warning=warnings.append)
    reason = reason.format(short=f"{length - 1:,}", length=f"{length:,}")
    warning = f"resuming from checkpoint {older:06}: newer ones cannot be used ({newest:06}: events.jsonl {reason})"
    assert warnings == [warning]
    assert outcome.warnings[-1] == warning
    assert file.read_text().splitlines()[1:] == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data, length: flip(data, length - 10), "changed since the checkpoint was written"),
        (swap, "changed since the checkpoint was written"),
        (lambda data, length: data[:100], "has 100 bytes"),
        (None, "cannot be read: No such file or directory"),
    ],
    ids=["one bit", "swapped lines", "cut", "gone"],
)
def test_events_that_fit_no_checkpoint_are_refused_and_nothing_changes(halfway, change, reason) -> None:
    file, numbers = halfway / "events.jsonl", checkpoint_numbers(halfway)
    changed = change and change(file.read_bytes(), events_at(halfway, numbers[0]))
    file.unlink() if change is None else file.write_bytes(changed)
    with pytest.raises(RunFolderError, match=rf"E413 .*\n(.|\n)*{numbers[0]:06}: events\.jsonl {reason}"):
        resume(prepare(halfway / "config.yaml"), read_run(halfway))
    assert checkpoint_numbers(halfway) == numbers
    assert (file.read_bytes() if file.exists() else None) == changed


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda plain: plain.update(study_number="0"), "study_number: Input should be a valid integer"),
        (lambda plain: plain.update(events=7), "events: Input should be"),
        (lambda plain: plain["study"].clear(), "checkpoint 000002 cannot be restored: KeyError"),
        (lambda plain: plain["study"].update(step="soon"), "checkpoint 000002 cannot be restored: "),
    ],
)
def test_forged_checkpoint_with_right_sums_is_refused_clearly(halfway, change, reason) -> None:
    for number in checkpoint_numbers(halfway):
        folder = halfway / "checkpoints" / f"{number:06}"
        state = json.loads((folder / "state.json").read_text())
        change(state["state"])
        forged = json.dumps(state).encode()
        (folder / "state.json").write_bytes(forged)
        sums = json.loads((folder / "COMPLETE").read_text())
        sums["state.json"] = {"bytes": len(forged), "sha256": sha256(forged).hexdigest()}
        (folder / "COMPLETE").write_text(json.dumps(sums))
    with pytest.raises(RunFolderError, match="E413") as refusal:
        resume(prepare(halfway / "config.yaml"), read_run(halfway))
    assert reason in str(refusal.value)


def test_checkpoint_that_does_not_fit_the_events_is_deleted_when_the_run_is_resumed(halfway, monkeypatch) -> None:
    """Otherwise later events could make the file long enough for it, with other events at its position."""

    def die(course: object, pause: object) -> None:
        raise KeyboardInterrupt

    older, newest = checkpoint_numbers(halfway)
    os.truncate(halfway / "events.jsonl", events_at(halfway, newest) - 10)
    monkeypatch.setattr(run_module, "run_study", die)
    with pytest.raises(KeyboardInterrupt):
        resume(prepare(halfway / "config.yaml"), read_run(halfway))
    assert checkpoint_numbers(halfway) == [older]
    assert (halfway / "latest").read_text() == f"{older:06}\n"
