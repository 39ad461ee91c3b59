"""The command ``esper replay``."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from esper_core.leyline.constants import MIN_SEEDS_FOR_VERDICT
from esper_core.leyline.errors import printable
from esper_study.actions import format_action, parse_action

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline import Metric
    from esper_core.leyline.events import StepFinished
    from esper_study.replay import Recording, Replay

OTHER_NUMBERS: Final = 1
"""Exit code if the replay differs from the recording."""


@click.command()
@click.argument("run")
@click.option(
    "--episode", required=True, metavar="ARM:SEED", help="The episode; SEED is enough for a run with one policy."
)
@click.option("--step", type=click.IntRange(min=0), metavar="K", help="The step to examine, counted from 0.")
@click.option("--action", metavar="WORDS", help="Action to take after step K.  [default: list what is possible]")
@click.option(
    "--then",
    type=click.Choice(["recorded", "wait"]),
    default="recorded",
    show_default=True,
    help="After the action: take the recorded actions, if possible, or wait.",
)
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="The folder of run directories.",
)
@click.option("--quiet", is_flag=True, help="Print no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last, on stdout.")
@click.pass_context
def replay(
    context: click.Context,
    run: str,
    episode: str,
    step: int | None,
    action: str | None,
    then: Literal["recorded", "wait"],
    runs_dir: Path,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Replay an episode of a run, as recorded or with another action.

    \b
    esper replay quiet-otter --episode heuristic:3
    esper replay quiet-otter --episode heuristic:3 --step 7
    esper replay quiet-otter --episode heuristic:3 --step 7 --action "prune early"
    esper replay quiet-otter --episode heuristic:3 --step 7 --action "germinate early conv_light blend=gate speed=8"

    An action is OP, SLOT and BLUEPRINT, as far as the op takes them, then blend, speed, curve and target as KEY=VALUE.
    --step without --action lists the actions that were possible after that step.

    The exit code is 1 if the replay differs from the recording, in any bit.
    """
    if action is not None and step is None:
        msg = "--action needs --step, the step after which it is taken"
        raise click.UsageError(msg, context)
    from esper_run import load_run
    from esper_run.app.episode import Episode
    from esper_study.replay import Change, read_recording, replay as replay_episode

    record, notes = load_run(run, runs_dir=runs_dir), list[str]()
    recording = read_recording(record.path, episode, notes.append)
    notes += _notes(record.path.name, record.manifest, record.status, recording)
    _warn(notes)
    if not quiet:
        _print(f"Replaying {recording.name} …", err=True)
    play = Episode.of(record.path / "config.yaml")
    change = None
    if step is not None:
        change = Change(step, None if action is None else parse_action(action, play.space), then)
    late: list[str] = []
    result = replay_episode(play, recording, change, warn=late.append)
    _warn(late)
    report = _report(record.path, play.metric, result, [*notes, *late])
    if as_json:
        click.echo(json.dumps(_json(report), allow_nan=False))
    else:
        _show(report)
    if result.difference is not None:
        context.exit(OTHER_NUMBERS)


def _notes(name: str, manifest: Mapping[str, Any], status: str, recording: Recording) -> list[str]:
    """Return notes about other versions, and about what the recording leaves open."""
    recorded = {package: manifest["machine"].get(package) for package in ("torch", "esper-core")}
    recorded |= {plugin["package"]: plugin["version"] for plugin in manifest.get("plugins", [])}
    installed = {
        distribution.name: distribution.version
        for distribution in metadata.distributions()
        if distribution.name in recorded
    }
    notes = [
        f"{name} was made with {package} {recorded[package]}, and {version} is installed: numbers may differ"
        for package, version in installed.items()
        if recorded[package] not in (None, version)
    ]
    if recording.ending is None:
        last = recording.steps[-1].step
        notes.append(f"the recording of {recording.name} ends after step {last}: the run is {status}")
    return notes


def _report(run: Path, metric: Metric, result: Replay, notes: Sequence[str]) -> dict[str, Any]:
    """Return the object that ``--json`` prints; the text is made from it."""
    recording, change, ending = result.recording, result.change, result.recording.ending
    acts = change is not None and change.action is not None
    course = [
        {"step": step, "recorded": _cell(recording.steps, step), "replayed": _cell(result.steps, step)}
        for step in range(max(len(recording.steps), len(result.steps)))
    ]
    test = None
    if ending is not None and result.test is not None:
        then, now = ending.test_metric, result.test[1]
        test = {"recorded": then, "replayed": now, "difference": now - then}
    return {
        "run": str(run),
        "episode": recording.name,
        "round": recording.steps[0].round,
        "step": change.step if change else None,
        "action": _cell(result.steps, change.step)["action"] if change and acts else None,
        "then": change.then if change and acts else None,
        "steps": len(result.steps),
        "same": result.difference is None,
        "difference": asdict(result.difference) if result.difference else None,
        "stopped": result.stopped,
        "possible": list(result.possible),
        "metric": {"name": metric.name, "direction": metric.direction, "unit": metric.unit},
        "course": course,
        "test": test,
        "notes": list(notes),
    }


def _cell(steps: Sequence[StepFinished], step: int) -> Any:
    """Return metric and action of a step, or None if the episode is over by then."""
    if step >= len(steps):
        return None
    return {"metric": steps[step].signals.validation_metric, "action": format_action(steps[step].action)}


def _json(value: Any) -> Any:
    """Return plain data for JSON, which has no NaN and no infinities: they become null."""
    if isinstance(value, dict):
        return {key: _json(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_json(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)


def _show(report: Mapping[str, Any]) -> None:
    _print(f"{report['run']}  episode {report['episode']}")
    if report["action"] is None or not report["same"]:
        _show_difference(report)
    if report["action"] is not None:
        _show_course(report)
        _show_test(report)
    elif report["possible"]:
        _print("", f"Possible after step {report['step']}:", *(f"  {action}" for action in report["possible"]))


def _show_difference(report: Mapping[str, Any]) -> None:
    first = report["difference"]
    if first is None:
        end = ", and in the test at the end" if report["test"] is not None else ""
        _print(f"The same to the last bit in {report['steps']} steps{end}.")
        if report["stopped"]:
            _print(f"The governor stopped both: {report['stopped']}")
        return
    position = "at its end" if first["step"] is None else f"from step {first['step']} on"
    _print(f"Different {position}: {first['what']} was {first['recorded']}, and is {first['replayed']} now.")
    _print("Other versions or another machine may be the reason: see manifest.json and packages.txt.")
    if report["action"] is not None:
        _print("Part of what follows is due to that difference, not to the action.")


def _show_course(report: Mapping[str, Any]) -> None:
    """Print the steps from the one of the action on, recorded and replayed."""
    rows = [["step", f"recorded {report['metric']['name']}", "replayed", "recorded action", "replayed"]]
    for row in report["course"][report["step"] :]:
        sides = [row["recorded"], row["replayed"]]
        figures = ["over" if side is None else _figure(report, side["metric"]) for side in sides]
        actions = ["" if side is None or side["action"] == "wait" else side["action"] for side in sides]
        rows.append([str(row["step"]), *figures, *actions])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        _print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    if report["stopped"]:
        _print("", f"The governor stopped it: {report['stopped']}")


def _show_test(report: Mapping[str, Any]) -> None:
    metric, test = report["metric"], report["test"]
    if test is None:
        _print("", "There is no test to compare: one of the two does not reach the end of the episode.")
    else:
        percent = metric["unit"] == "%"
        change = f"{100 * test['difference']:+.1f} points" if percent else f"{test['difference']:+.4g}"
        figures = f"recorded {_figure(report, test['recorded'])}, replayed {_figure(report, test['replayed'])}"
        better = "more" if metric["direction"] == "up" else "less"
        _print("", f"test {metric['name']}: {figures}: {change} ({better} is better)")
    _print("One episode is no evidence (n = 1): another RNG seed may show the opposite.")
    _print(f"Make each variant an arm, and compare {MIN_SEEDS_FOR_VERDICT} RNG seeds or more.")


def _figure(report: Mapping[str, Any], number: float) -> str:
    return f"{100 * number:.1f} %" if report["metric"]["unit"] == "%" else f"{number:.4g}"


def _warn(notes: Sequence[str]) -> None:
    _print(*(f"warning: {note}" for note in notes), err=True)


def _print(*lines: str, err: bool = False) -> None:
    """Print lines with control characters escaped, since names of arms and plugins come from files."""
    for line in lines:
        click.echo(printable(line), err=err)
