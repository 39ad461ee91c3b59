"""Options of commands that name runs, and completion of these names by the shell."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esper_core.leyline.files import is_url, words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem


class PathOrURL(click.Path):
    """A path, or the URL of a stored run or of a folder of them, which stays text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a Path, or the URL."""
        return value if is_url(value) else super().convert(value, param, ctx)


def _runs_dir_option(**settings: Any) -> Callable[[Any], Any]:
    # It is eager, so that it is known when the shell completes the name of a run.
    return click.option("--runs-dir", default=Path("runs"), show_default=True, is_eager=True, **settings)


runs_dir_option = _runs_dir_option(type=PathOrURL(path_type=Path), help="The folder of run directories, or a store.")
local_runs_option = _runs_dir_option(type=click.Path(path_type=Path), help="The folder of run directories.")


def run_name(*, finished: bool | None = None) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a function by which the shell completes the names of runs: of all, or of those with or without results."""

    def complete(context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if "/" in start:
            return [CompletionItem(start, type="dir")]
        names = complete_name(Path(context.params.get("runs_dir") or "runs"), start, finished=finished)
        return [CompletionItem(name) for name in names]

    return complete


def complete_name(root: Path, start: str, *, finished: bool | None = None) -> list[str]:
    """Return what the name of a run in ``root`` may be that begins with ``start``, the newest first.

    It is the words of an id, or the whole id where ``start`` begins one, or several runs have the same words.

    Args:
        root: Folder of the runs.
        start: What was typed so far.
        finished: Only runs with results, or only those without.
    """
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []
    counts = Counter(words_of(folder.name) for folder in folders)
    names = []
    for folder in reversed(folders):
        if not (folder / "manifest.json").exists() or finished not in (None, (folder / "summary.json").exists()):
            continue
        id_, words = folder.name, words_of(folder.name)
        names.append(id_ if (start and id_.startswith(start)) or counts[words] > 1 else words)
    return [name for name in names if name.startswith(start)]
