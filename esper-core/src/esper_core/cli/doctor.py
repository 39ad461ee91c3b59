"""``esper doctor``: would a run work here, and what mends what would not?"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from esper_core.cli.rendering import aligned, print_json, print_line, visible

_COLOURS: Final = {"ok": "green", "warning": "yellow", "failed": "red"}
_FAILED: Final = 3


@click.command()
@click.option(
    "--runs-dir", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs are kept."
)
@click.option("--json", "as_json", is_flag=True, help="Print a list of {what, state, found, mend} as JSON.")
@click.pass_context
def doctor(context: click.Context, runs_dir: Path, *, as_json: bool) -> None:
    """Examine what a run needs here: Python, torch, packages, plugins, folder, terminal."""
    from esper_core.app.diagnosis import examine

    findings = list(examine(runs_dir))
    if as_json:
        print_json([finding.as_json() for finding in findings])
    else:
        rows = [(visible(one.what), one.state, visible(one.found)) for one in findings]
        for finding, line in zip(findings, aligned(rows), strict=True):
            print_line(_coloured(line, finding.state))
            if finding.mend is not None:
                print_line(f"  mend it:  {visible(finding.mend)}")
    context.exit(_FAILED if any(finding.state == "failed" for finding in findings) else 0)


def _coloured(line: str, state: str) -> str:
    before, found, after = line.partition(f"  {state}  ")
    return before + click.style(found, fg=_COLOURS[state]) + after if found else line
