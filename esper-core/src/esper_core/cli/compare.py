"""``esper compare``: which arm of these runs is better than which, as far as that is shown."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esper_core.cli.figures import in_full, left_out, print_arms
from esper_core.cli.rendering import print_json, print_line, print_warnings, print_wrapped, visible
from esper_core.leyline.errors import RunFolderError

if TYPE_CHECKING:
    from esper_core.runs.joining import Joined
    from esper_core.runs.records import Run


def _page_file(_context: click.Context, _parameter: click.Parameter, given: Path | None) -> Path | None:
    """A file that a page can be written to: who forgets it gives a run's name in its place."""
    if given is None:
        return None
    if given.is_dir():
        message = f"{given} is a folder: give a file in it, for example {given / 'comparison.html'}"
        raise click.BadParameter(visible(message))
    if given.suffix.lower() not in (".html", ".htm"):
        raise click.BadParameter(visible(f"expected a file that ends with .html, received {given}"))
    return given


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--runs-dir", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs are kept."
)
@click.option(
    "--arm",
    "arms",
    multiple=True,
    metavar="NAME",
    help="Compare the arms of this name, and no others; all of their pairs.",
)
@click.option("--all", "every", is_flag=True, help="Compare every pair of arms; each verdict then takes more seeds.")
@click.option("--json", "as_json", is_flag=True, help="Print {runs, metric, margin, arms, comparisons, warnings}.")
@click.option(
    "--html", "page", type=click.Path(path_type=Path), callback=_page_file, metavar="FILE", help="Write a page as well."
)
def compare(
    runs: tuple[str, ...], runs_dir: Path, arms: tuple[str, ...], page: Path | None, *, every: bool, as_json: bool
) -> None:
    """Compare the arms of one or several finished runs, and say what is shown.

    \b
    esper compare runs/20261121-101512-quiet-otter
    esper compare quiet-otter swift-heron
    esper compare quiet-otter swift-heron --arm heuristic
    esper compare quiet-otter --html comparison.html

    A run is its folder, or its id below --runs-dir, or the words of the id. Where two runs share their task and their
    seeds, their arms are compared seed by seed.

    Of one run those pairs of arms are compared that its summary compares. Of several runs each arm is compared with its
    own controls, with the other arms of its run, and with the arm of its name in the other runs, or with every arm
    there where none has a name in common. The controls themselves are compared with --all, or with --arm.
    """
    from esper_core.runs.joining import join
    from esper_core.runs.records import load_run

    records = [load_run(name, runs_dir=runs_dir) for name in runs]
    joined = join(records, arms, every=every)
    comparisons = joined.comparisons()
    print_warnings(joined.warnings)
    if page is not None:
        _write_page(page, joined, records, comparisons)
    if as_json:
        print_json(_plain(joined, records, comparisons))
    else:
        _print(joined, comparisons)


def _write_page(page: Path, joined: Joined, records: list[Run], comparisons: list[dict[str, Any]]) -> None:
    from esper_core.cli.page import comparison_page
    from esper_core.runs.directory import write_atomically

    try:
        write_atomically(page, comparison_page(joined, records, comparisons))
    except RunFolderError as error:
        hint = "Give --html a file in a folder that is there, and that can be written to."
        raise RunFolderError([replace(problem, hint=hint) for problem in error.problems]) from None
    print_line(f"Written: {visible(str(page))}", stream=sys.stderr)


def _print(joined: Joined, comparisons: list[dict[str, Any]]) -> None:
    print_arms(joined.metric, {one.sample.name: one.figures for one in joined.arms})
    for comparison in comparisons:
        print_line()
        for line in in_full(joined.metric, comparison, together=len(comparisons), margin=joined.margin):
            print_wrapped(line)
    if len(joined.arms) == 1:
        print_line("There is one arm, and nothing to compare it with.")
    elif joined.left_out:
        print_line()
        print_wrapped(left_out(joined))


def _plain(joined: Joined, runs: list[Run], comparisons: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "runs": [{"path": str(run.path), "id": run.id, "status": run.status} for run in runs],
        "metric": joined.metric,
        "margin": joined.margin,
        "arms": {one.sample.name: {"arm": one.arm, "runs": one.runs, **one.figures} for one in joined.arms},
        "comparisons": comparisons,
        "warnings": list(joined.warnings),
    }
