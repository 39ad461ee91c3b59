"""``esper replay``: is an episode what was recorded of it, and what if another thing had been done in it?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from esper_core.cli.figures import difference as difference_of
from esper_core.cli.figures import fits, value
from esper_core.cli.progress import progress
from esper_core.cli.rendering import print_json, print_line, print_table, print_warnings, visible
from esper_core.cli.run import prepared_run
from esper_core.leyline.constants import MIN_SEEDS_FOR_VERDICT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.app.preparing import Prepared
    from esper_core.app.recording import Recording
    from esper_core.app.replaying import Replay, Wish
    from esper_core.leyline.events import StepFinished

OTHER_NUMBERS: Final = 1
"""Exit code where a replay did not come to the numbers of the record."""

SIDES: Final = ("recorded", "replayed")


@click.command()
@click.argument("run")
@click.option(
    "--episode", required=True, metavar="ARM:SEED", help="Which one; of a run with one policy SEED is enough."
)
@click.option("--step", type=click.IntRange(min=0), metavar="K", help="The step, from 0, that is asked about.")
@click.option("--action", metavar="WORDS", help="What is done after step K instead.  [default: say what is possible]")
@click.option(
    "--then",
    type=click.Choice(["recorded", "wait"]),
    default="recorded",
    show_default=True,
    help="What is done after that: what was recorded, as far as it is possible then, or nothing.",
)
@click.option(
    "--runs-dir", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs are kept."
)
@click.option("--quiet", is_flag=True, help="No progress.")
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
    """Play an episode of a run again, or what if another thing had been done in it.

    \b
    esper replay quiet-otter --episode heuristic:3
    esper replay quiet-otter --episode heuristic:3 --step 7
    esper replay quiet-otter --episode heuristic:3 --step 7 --action "prune early"
    esper replay quiet-otter --episode heuristic:3 --step 7 --action "germinate early conv_light blend=gate speed=8"

    An episode is told by its arm and its seed, as events.jsonl and summary.json have them. An action is OP, SLOT and
    BLUEPRINT, as far as the op takes them, then blend, speed, curve and target as KEY=VALUE. With --step alone it says
    what could have been done after that step.

    Exit code 1 where the numbers are not those of the record, to the last bit, as far as they have to be.
    """
    if action is not None and step is None:
        msg = "--action needs --step: after which step is it to be done?"
        raise click.UsageError(msg, context)
    from esper_core.runs.directory import changed_packages
    from esper_core.runs.records import find_run

    record = find_run(run, runs_dir)
    prepared = prepared_run(record.path / "config.yaml", ())
    versions = list(changed_packages(record.manifest, record.path))
    print_warnings((*prepared.warnings, *versions))

    from esper_core.app.recording import recording_in
    from esper_core.app.replaying import replay as play

    notes: list[str] = []
    recording = recording_in(record.path, episode, prepared.composition.controls, notes.append)
    notes += _about(recording, record.status)
    print_warnings(notes)
    before = len(notes)
    with progress(quiet=quiet) as listeners:
        played = play(prepared, recording, _wish(prepared, step, action, then), listeners=listeners, tell=notes.append)
    print_warnings(notes[before:])
    told = _as_json(str(record.path), prepared, played, [*versions, *notes])
    print_json(told) if as_json else _show(told)
    if played.difference is not None:
        context.exit(OTHER_NUMBERS)


def _wish(prepared: Prepared, step: int | None, action: str | None, then: Literal["recorded", "wait"]) -> Wish | None:
    from esper_core.app.asking import action_asked
    from esper_core.app.replaying import Wish

    if step is None:
        return None
    return Wish(step, None if action is None else action_asked(action, prepared.composition.space), then)


def _about(recording: Recording, status: str) -> list[str]:
    """What is to be known of a record that does not tell everything."""
    from esper_core.leyline.actions import ARGUMENTS, Op

    notes = []
    if recording.ending is None:
        notes.append(f"the record of {recording.name} ends after step {len(recording.steps) - 1}: the run is {status}")
    untold = [event.step for event in recording.steps if event.action.startswith(Op.GERMINATE) and not event.arguments]
    if untold:
        left = ", ".join(ARGUMENTS[Op.GERMINATE][2:])
        notes.append(f"an older version wrote these events: {left} of an action are not told, and taken by default")
    return notes


def _as_json(run: str, prepared: Prepared, played: Replay, notes: Sequence[str]) -> dict[str, Any]:
    """The one object that ``--json`` prints; the text is made from it."""
    recording, wish, metric = played.recording, played.wish, prepared.composition.task.metric
    told: dict[str, Any] = {
        "run": run,
        "episode": recording.name,
        "round": recording.round,
        "step": None if wish is None else wish.step,
        "action": None,
        "then": None,
        "steps": len(played.steps),
        "same": played.difference is None,
        "difference": None,
        "stopped": played.stopped,
        "possible": list(played.possible),
        "metric": {"name": metric.name, "direction": metric.direction, "unit": metric.unit},
        "course": _course(recording.steps, played.steps),
        "test": _test(played),
        "notes": list(notes),
    }
    if played.difference is not None:
        first = played.difference
        told["difference"] = {
            "step": first.step,
            "what": first.what,
            "recorded": first.recorded,
            "replayed": first.replayed,
        }
    if wish is not None and wish.action is not None:
        told |= {"action": _in_words(played.steps[wish.step]), "then": wish.then}
    return told


def _course(recorded: Sequence[StepFinished], replayed: Sequence[StepFinished]) -> list[dict[str, Any]]:
    """Each step on both sides; None where one of them is over."""
    sides = [{event.step: event for event in events} for events in (recorded, replayed)]
    return [
        {"step": step, "recorded": _told(sides[0].get(step)), "replayed": _told(sides[1].get(step))}
        for step in range(max(map(len, sides)))
    ]


def _told(event: StepFinished | None) -> dict[str, Any] | None:
    return None if event is None else {"metric": event.signals.validation_metric, "action": _in_words(event)}


def _in_words(event: StepFinished) -> str:
    from esper_core.app.asking import as_typed
    from esper_core.trainer.event_records import action_of

    return as_typed(action_of(event))


def _test(played: Replay) -> dict[str, float] | None:
    then, now = played.recording.ending, played.ending
    if then is None or now is None:
        return None
    return {
        "recorded": then.test_metric,
        "replayed": now.test_metric,
        "difference": now.test_metric - then.test_metric,
    }


def _show(told: Mapping[str, Any]) -> None:
    print_line(visible(f"{told['run']}  episode {told['episode']}"))
    if told["action"] is None:
        _show_sameness(told)
        _show_possible(told)
        return
    if not told["same"]:
        _show_sameness(told)
        print_line("What follows shows that, too, and not the action alone.")
    _show_course(told)
    print_line()
    if told["stopped"]:
        print_line(visible(f"The governor stopped it: {told['stopped']}"))
    _show_test(told)


def _show_sameness(told: Mapping[str, Any]) -> None:
    """Whether it came to the same numbers, and where not, to which."""
    if told["same"]:
        end = ", and in the test at the end" if told["test"] is not None else ""
        print_line(f"The same to the last bit in {told['steps']} steps{end}.")
        if told["stopped"]:
            print_line(visible(f"The governor stopped it then as now: {told['stopped']}"))
        return
    first = told["difference"]
    where = "at its end" if first["step"] is None else f"from step {first['step']} on"
    print_line(visible(f"Not the same {where}: {first['what']} was {first['recorded']}, and is {first['replayed']}."))
    print_line("Other versions, or another machine, may be why: see manifest.json and packages.txt.")


def _show_possible(told: Mapping[str, Any]) -> None:
    if told["possible"]:
        print_line(f"\nAfter step {told['step']} could be done:")
    for action in told["possible"]:
        print_line(visible(f"  {action}"))


def _show_course(told: Mapping[str, Any]) -> None:
    """A table from the step of the action on; where it would be too wide, two lines for each step."""
    metric = told["metric"]
    rows = [
        [str(row["step"]), *(_cell(metric, row[side]) for side in SIDES), *(_done(row[side]) for side in SIDES)]
        for row in told["course"][told["step"] :]
    ]
    head = ["step", f"recorded {metric['name']}", "what if", "recorded action", "what if"]
    if fits(head, rows):
        print_table(head, rows)
        return
    for step, then, now, done_then, done_now in rows:
        print_line(visible(f"step {step}, recorded: {', '.join(filter(None, (then, done_then)))}"))
        print_line(visible(f"  what if: {', '.join(filter(None, (now, done_now)))}"))


def _cell(metric: Mapping[str, Any], side: Mapping[str, Any] | None) -> str:
    return "over" if side is None else value(metric, side["metric"])


def _done(side: Mapping[str, Any] | None) -> str:
    return "" if side is None or side["action"] == "wait" else str(side["action"])


def _show_test(told: Mapping[str, Any]) -> None:
    metric, test = told["metric"], told["test"]
    if test is None:
        print_line("There is no test to compare: one of the two does not reach the end of the episode.")
    else:
        better = "more" if metric["direction"] == "up" else "less"
        figures = f"recorded {value(metric, test['recorded'])}, what if {value(metric, test['replayed'])}"
        change = difference_of(metric, test["difference"])
        print_line(visible(f"test {metric['name']}: {figures}: {change} ({better} is better)"))
    print_line("One episode shows nothing (n = 1): with another seed it may be the other way round.")
    print_line(f"Make the two an arm each, and compare them over {MIN_SEEDS_FOR_VERDICT} seeds or more.")
