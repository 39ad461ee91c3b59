"""Where is a run that did not come to its end, and how does it go on? Whoever ended it is told, whatever it was.

What the manifest and the report say of the end is said before, and without this: there, one knows where it is.
"""

from __future__ import annotations

import shlex
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper_core.app.ending import status_of
from esper_core.leyline.errors import EsperError, GovernorStop, Interrupted, PluginError, RunFolderError
from esper_core.leyline.text import printable
from esper_core.runs.records import DIED, resume_hint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline.protocols import RunStatus

REPORT: Final = "report.html"
"""What a run directory calls its report, where a package is installed that writes one."""

TOLD: Final = (Interrupted, GovernorStop, PluginError, RunFolderError)
"""What ends a run that could go on. Of a wrong configuration, or a folder that is gone, there is no more to say."""


UNWRITABLE: Final = "E410"


@contextmanager
def told_where(folder: Path) -> Iterator[None]:
    """A block in which a run takes place in ``folder``; what ends it says where it is, and how it goes on.

    A problem has it at the end of its hint; what is no error of ours, as a note below its traceback.
    """
    try:
        yield
    except TOLD as error:
        if isinstance(error, RunFolderError) and not _still_there(error, folder):
            raise
        *others, last = error.problems
        told = _whereabouts(folder, status_of(error)[0])
        error.problems = (*others, replace(last, hint=f"{last.hint}\n{told}" if last.hint else told))
        raise
    except Exception as error:
        if not isinstance(error, EsperError | BrokenPipeError):
            error.add_note(_whereabouts(folder, status_of(error)[0]))
        raise


def tell_of_end(folder: Path | None = None) -> None:
    """Say at once on stderr, to who has asked for the end, when it comes; and how the run in ``folder`` goes on."""
    told = ["Ends when this step is done; asked again, at once." + (" Either way:" if folder is not None else "")]
    if folder is not None:
        told.append(f"  {printable(resume_hint(folder, DIED))}")
    print("\n".join(told), file=sys.stderr, flush=True)


def _still_there(error: RunFolderError, folder: Path) -> bool:
    """Whether all that is wrong is that nothing more can be written, as where a disk is full."""
    written = (folder / name for name in ("manifest.json", "events.jsonl"))
    return error.problems[-1].code == UNWRITABLE and all(map(Path.is_file, written))


def _whereabouts(folder: Path, status: RunStatus) -> str:
    told = [f"It is in {folder}"]
    if (report := folder / REPORT).is_file():
        told.append(f"Its report: {report}")
    told.append(resume_hint(folder, status))
    if status == "failed":
        told.append("Mend first what failed: it is done again.")
    elif status == "stopped":
        anew = f"esper run {shlex.quote(str(folder))} --set PATH=VALUE"
        told.append(f"As it is, it is stopped at the same step again; a new one with other settings:  {anew}")
    return "\n".join(told)
