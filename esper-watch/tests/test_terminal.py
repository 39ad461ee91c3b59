"""``esper watch``: histories of finished, torn and foreign runs, and how they are drawn in a terminal."""

import io
import json
import math
import re
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from filelock import FileLock
from rich.cells import cell_len
from rich.console import Console

from esper_core import EsperError
from esper_core.leyline import Signals, Stage
from esper_core.leyline.events import EpisodeFinished, GovernorActed, RunFinished, RunStarted, StepFinished
from esper_core.telemetry import encode
from esper_run import load_run
from esper_run.cli import main
from esper_watch import read_history
from esper_watch.command import _followed, watch
from esper_watch.history import History
from esper_watch.progress import follow
from esper_watch.terminal import as_json, draw, phase_text, sparkline
from tests.support.run_folders import stage_changed
from tests.support.waiting import until

HOSTILE = "\x1b]0;pwned\x07\x9b2J\nsecond\u202eline"
"""Sets the terminal's title, clears it, adds a line, and reverses the text that follows."""

changed = partial(stage_changed, seed=3, blueprint="blueprints/conv_light")


def finished(arm: str, step: int, metric: float) -> StepFinished:
    signals = Signals(step, 1.0, 1.0, metric, 10, 10, ())
    return StepFinished(round=0, arm=arm, seed=3, step=step, signals=signals)


EVENTS = [
    RunStarted(run="r", arms=("grown", "twin"), rounds=1, environments=1, steps=8),
    *(finished(arm, step, 0.1 * step) for step in range(8) for arm in ("grown", "twin")),
    changed(0, None, Stage.GERMINATED),
    changed(1, Stage.GERMINATED, Stage.TRAINING),
    changed(3, Stage.TRAINING, Stage.BLENDING),
    changed(5, Stage.BLENDING, Stage.HOLDING),
    changed(6, Stage.HOLDING, Stage.FOSSILISED),
    EpisodeFinished(
        round=0, arm="grown", seed=3, test_loss=1.0, test_metric=0.75, validation_metric=0.7,
        parameters=20, host_parameters=10, fossils=1, steps=8, reward=5.0,
    ),
    RunFinished(status="done"),
]  # fmt: skip


def write(run: Path, *events: object) -> Path:
    (run / "events.jsonl").write_text("".join(encode(event) + "\n" for event in events))
    return run


@pytest.fixture
def run(tmp_path):
    manifest = {"format": 1, "id": "quiet-otter", "status": "running", "started": "2026-11-21T10:15:12+00:00"}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return write(tmp_path, *EVENTS)


@pytest.mark.parametrize("status", ["running", "died"])
def test_an_unfinished_run_is_running_or_died(run, status):
    write(run, *EVENTS[:9])
    with FileLock(run / ".lock") if status == "running" else nullcontext():
        assert load_run(run).status == status
        assert read_history(run).status == status
        assert draw(read_history(run)).startswith(f"quiet-otter   {status}, 50 % trained\n")


def test_skipped_events_are_reported(run):
    with (run / "events.jsonl").open("a") as file:
        file.write('{"type": "seed-moved", "v": 2}\n{"type": "step-fin')
    history = read_history(run)
    assert history.share_done == 1.0
    skipped = ['events of type "seed-moved" are skipped', f"the last line, line {len(EVENTS) + 2}, is incomplete"]
    assert [note[: len(start)] for note, start in zip(as_json(history)["left_out"], skipped, strict=True)] == skipped
    drawing = draw(history, width=60)
    assert max(map(len, drawing.splitlines())) <= 60
    assert all(start in " ".join(drawing.split()) for start in skipped)


def test_the_drawing_fits_its_width_and_shows_lives(run):
    drawing = draw(read_history(run), width=80)
    assert max(len(line) for line in drawing.splitlines()) <= 80
    assert "  3 early conv_light  ··░░▒▒▓█" in drawing
    assert "100 % trained" in drawing


def test_the_command_prints_a_drawing_or_json(run):
    by_name = CliRunner().invoke(watch, [run.name, "--runs-dir", str(run.parent)])
    assert "quiet-otter" in by_name.stdout
    output = json.loads(CliRunner().invoke(watch, [str(run), "--json"]).stdout)
    assert output["arms"]["grown"]["test"] == 0.75
    assert output["lives"][0]["stages"][-1] == {"step": 6, "stage": "fossilised"}


@pytest.mark.parametrize(
    ("words", "start", "names"),
    [
        (["watch"], "", ["swift-heron", "20261121-101513-quiet-otter", "20261121-101512-quiet-otter"]),
        (["report"], "sw", ["swift-heron"]),
        (["compare", "swift-heron"], "", ["20261121-101512-quiet-otter"]),
        (["resume"], "20261121-101512", []),
        (["resume"], "20261121-101513", ["20261121-101513-quiet-otter"]),
        (["runs", "show"], "quiet", []),
        (["watch"], "some/where", ["some/where"]),
    ],
)
def test_the_shell_completes_names_of_runs(words, start, names, tmp_path):
    for name in ("20261121-101512-quiet-otter", "20261121-101513-quiet-otter", "20261122-090000-swift-heron"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    (tmp_path / "20261121-101512-quiet-otter/summary.json").touch()
    (tmp_path / "20261123-090000-no-run").mkdir()
    completions = ShellComplete(main, {}, "esper", "_ESPER_COMPLETE").get_completions(
        [*words, "--runs-dir", str(tmp_path)], start
    )
    assert [completion.value for completion in completions] == names


def test_a_run_is_followed_on_a_terminal_until_it_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("esper_watch.progress.LOOK_SECONDS", 0.02)
    events = write(tmp_path, *EVENTS[:9]) / "events.jsonl"
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=24, color_system=None)

    def go_on() -> None:
        until(lambda: "step 4 of 8" in screen.getvalue())
        with events.open("a") as file:
            file.write("".join(encode(event) + "\n" for event in EVENTS[9:]))

    writer = threading.Thread(target=go_on)
    writer.start()
    history = follow(tmp_path, console)
    writer.join()
    assert history.status == "done"
    assert "grown, twin, step 4 of 8, 1 network" in screen.getvalue()
    assert "50 %" in screen.getvalue()


def test_on_a_terminal_a_run_that_cannot_be_followed_is_printed(run, monkeypatch):
    """A link in a run directory could lead anywhere, so it is not followed; printing reads two files."""
    (run / "data").symlink_to(run.parent)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(EsperError, match="it is a link"):
        follow(run, Console(file=io.StringIO(), force_terminal=True))
    assert _followed(run) is None
    assert "100 % trained" in CliRunner().invoke(watch, [str(run)]).stdout


def test_curves_share_a_scale_and_the_difference_to_the_twin_is_in_points(make_run):
    drawing = draw(read_history(make_run(environments=8)))
    head, grown, twin, scale = drawing.splitlines()[2:6]
    assert head.split() == ["validation", "accuracy", "test", "to", "twin", "95", "%", "interval"]
    assert re.fullmatch(r"  grown  ▁[▁-█]+█  80.2 %  \+30.0 points  \+30.0 to \+30.0", grown)
    assert "█" not in twin
    assert set(twin.split()[1]) <= set("▁▂▃▄▅")
    assert re.fullmatch(r" +▁ \d\d?.\d %  █ 77.\d %", scale)


def test_a_run_without_a_test_split_shows_what_it_reached_on_validation_data(run):
    """As that of a Gardener."""
    unread = [replace(event, test_metric=math.nan) if isinstance(event, EpisodeFinished) else event for event in EVENTS]
    write(run, *unread)
    drawing = draw(read_history(run))
    assert re.search(r"validation metric +now +to twin", drawing)
    assert re.search(r"grown +[▁-█]+ +0.7 +\+0", drawing)


def test_a_control_is_a_phase_of_its_own_unless_nothing_grew():
    began = replace(EVENTS[0], arms=("grown", "twin", "capacity"))
    history = History()
    for event in [began, *EVENTS[1:-2]]:
        history.add(event)
    assert history.phases == [("grown", "twin"), ("capacity",)]
    assert history.share_done == pytest.approx(2 / 3)
    assert phase_text(history) == "phase 1 of 2 (grown, twin), step 8 of 8, 1 network"
    history.add(finished("capacity", 0, 0.5))
    assert phase_text(history) == "phase 2 of 2 (capacity), step 1 of 8, 1 network"
    history = History()
    for event in [began, *EVENTS[1:-7], replace(EVENTS[-2], fossils=0)]:
        history.add(event)
    assert (history.phases, history.share_done) == ([("grown", "twin")], 1.0)


def test_a_sparkline_leaves_values_that_are_not_finite_blank():
    assert sparkline([0.0, float("nan"), 1.0], 8) == "▁ █"
    assert sparkline([], 8) == ""
    assert sparkline([2.0, 2.0], 8) == "▁▁"
    assert len(sparkline(range(1000), 40)) == 40
    assert sparkline([0.0, 1.0], 8, (0.0, 2.0)) == "▁▅"


def test_acts_of_the_governor_are_shown_and_a_stopped_episode_counts_as_done(run):
    kept = [event for event in EVENTS if not (isinstance(event, StepFinished) and event.step > 4)]
    kept = [replace(event, steps=5) if isinstance(event, EpisodeFinished) else event for event in kept]
    acts = [
        GovernorActed(round=0, arm="grown", seed=3, step=step, act=act, verdict="panic", reason="too hot")
        for step, act in [(1, "warn"), (2, "roll-back"), (4, "early-stop")]
    ]
    twin = replace(next(event for event in kept if isinstance(event, EpisodeFinished)), arm="twin")
    write(run, *kept[:-1], twin, *acts, kept[-1])
    history = read_history(run)
    assert history.share_done == 1.0
    assert [act["act"] for act in as_json(history)["governor"]] == ["warn", "roll-back", "early-stop"]
    drawing = draw(history)
    assert "governor: roll-back of grown 3, step 3: too hot" in drawing
    assert "governor: 1 warning" in drawing
    assert max(map(len, draw(history, width=50).splitlines())) <= 50
    history.governor = acts * 9
    assert "governor: 15 earlier acts" in draw(history)


def test_control_characters_of_a_run_are_escaped(run):
    arms = (f"grown{HOSTILE}", "twin")
    hostile = [
        replace(EVENTS[0], arms=arms),
        *(replace(event, arm=arms[0]) for event in EVENTS[1:-1] if getattr(event, "arm", "") == "grown"),
        replace(changed(0, None, Stage.GERMINATED), arm=arms[0], seed_id=1, slot=HOSTILE, blueprint=f"a/{HOSTILE}"),
        GovernorActed(round=0, arm=arms[0], seed=3, step=2, act=HOSTILE, verdict="panic", reason=f"hot{HOSTILE}"),
        GovernorActed(round=0, arm=arms[0], seed=3, step=2, act="roll-back", verdict=HOSTILE, reason=""),
        RunFinished(status="failed", reason=f"E232 it raised {HOSTILE}"),
    ]
    write(run, *hostile)
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"type": f"moved{HOSTILE}", "v": 2}) + "\n")
    (run / "manifest.json").write_text(json.dumps({"id": f"otter{HOSTILE}"}))
    for width in (20, 80, 2000):
        answer = CliRunner().invoke(watch, [str(run)], env={"COLUMNS": str(width)})
        assert answer.exception is None, answer.exception
        drawing = answer.stdout
        assert all(sign.isprintable() for sign in drawing if sign != "\n")
        assert not [line for line in drawing.splitlines() if line.startswith("second")]
        assert max(map(len, drawing.splitlines()[1:])) <= width, "all but the name, which can be copied"
    for phrase in ("otter\\x1b]0;pwned", "E232 it raised \\x1b]0;pwned", "hot\\x1b", "moved"):
        assert phrase in drawing


def test_a_life_ends_with_the_last_step_of_its_environment(run):
    write(run, *(event for event in EVENTS[:-2] if getattr(event, "step", 0) < 5))
    history = read_history(run)
    drawing = draw(history)
    assert "conv_light  ··░░▒" in drawing
    assert "conv_light  ··░░▒▒" not in drawing
    assert as_json(history)["lives"][0]["last_step"] == 4


@pytest.mark.parametrize("strange", [math.nan, -math.inf])
def test_figures_that_are_not_finite_are_null_in_json(run, strange):
    events = [replace(event, test_metric=strange) if isinstance(event, EpisodeFinished) else event for event in EVENTS]
    events[1] = finished("grown", 0, strange)
    write(run, *events)

    def refused(name: str) -> None:
        raise AssertionError(name)

    output = json.loads(CliRunner().invoke(watch, [str(run), "--json"]).stdout, parse_constant=refused)
    assert output["arms"]["grown"]["test"] is None
    assert output["arms"]["grown"]["validation"][:2] == [None, 0.1]


def test_figures_without_a_mean_are_drawn_as_blanks(run):
    huge = [finished("grown", 0, metric) for metric in (math.inf, -math.inf)]
    huge += [finished("grown", 1, 1.7e308), finished("grown", 1, 1.7e308)]
    huge += [finished("grown", 2, 1.7e308), finished("grown", 3, -1.7e308)]
    write(run, EVENTS[0], *huge)
    history = read_history(run)
    assert as_json(history)["arms"]["grown"]["validation"] == [None, None, 1.7e308, -1.7e308]
    assert "grown    █▁" in draw(history)


# --- names in other scripts

SEED = replace(changed(0, None, Stage.GERMINATED), blueprint="a/conv")


def lines_of(run: Path, arms: tuple[str, ...], *events: object, width: int = 80) -> list[str]:
    start = RunStarted(run="r", arms=arms, rounds=1, environments=1, steps=8)
    write(run, start, *events, RunFinished(status="failed", reason="双" * 200))
    return draw(read_history(run), width=width).splitlines()


def before(line: str, sign: str) -> int:
    """Return the columns in front of a text."""
    head, matched, _ = line.partition(sign)
    assert matched, line
    return cell_len(head)


NAMES = ("grown", "双子", "🌱 seeds", "re\N{COMBINING ACUTE ACCENT}seau", "ตัวที่หนึ่ง")


def test_names_in_any_script_are_aligned_in_columns(tmp_path):
    arms = [line for line in lines_of(tmp_path, NAMES) if line.endswith("–")]
    assert len(arms) == len(NAMES)
    assert {cell_len(line) for line in arms} == {80}
    started = [finished(name, 0, 0.5) for name in NAMES]
    curves = [line for line in lines_of(tmp_path, NAMES, *started) if "▁" in line][: len(NAMES)]
    assert {before(line, "▁") for line in curves} == {2 + max(map(cell_len, NAMES)) + 2}
    seeds = [replace(SEED, seed_id=number, slot=name, blueprint="a/conv") for number, name in enumerate(NAMES)]
    steps = [replace(change, step=1, was=Stage.GERMINATED, now=Stage.TRAINING) for change in seeds]
    lines = [line for line in lines_of(tmp_path, ("grown",), *seeds, *steps) if line.startswith("  3 ")]
    assert len(lines) == len(NAMES)
    widest = max(cell_len(f"3 {name} conv") for name in NAMES)
    assert {before(line, "··") for line in lines} == {2 + widest + 2}


@pytest.mark.parametrize("width", [33, 80])
def test_no_line_with_wide_letters_is_wider_than_the_terminal(tmp_path, width):
    long = "双子座と植物園の庭師たち" * 5
    seeds = [replace(SEED, arm=long, slot=long)]
    lines = lines_of(tmp_path, (long, "twin"), *seeds, width=width)
    assert max(map(cell_len, lines)) <= width
    assert len([line for line in lines if "…" in line]) >= 3, "the arm, the life and the reason"


@pytest.mark.parametrize("width", [40, 80])
def test_on_a_narrow_terminal_the_name_is_whole_and_no_word_is_cut(tmp_path, width):
    """A column that does not fit whole is left out, as is the arm of lives that all have the same."""
    run = tmp_path / "20261121-101512-a-name-that-is-longer-than-most"
    run.mkdir()
    lines = lines_of(run, ("heuristic", "twin"), replace(SEED, arm="heuristic"), width=width)
    assert lines[0].startswith(run.name)
    assert [line for line in lines if "…" in line and "双" not in line] == [], "the reason may be long"
