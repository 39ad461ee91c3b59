"""Options of commands that name runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esper_core.leyline.files import is_url

if TYPE_CHECKING:
    from collections.abc import Callable


class PathOrURL(click.Path):
    """A path, or the URL of a stored run or of a folder of them, which stays text."""

    is_local = False

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a Path, or the URL."""
        if is_url(value) and self.is_local:
            self.fail(f"runs are written to a folder, and uploaded with  --set store={value}", param, ctx)
        return value if is_url(value) else super().convert(value, param, ctx)


class LocalPath(PathOrURL):
    """A path alone."""

    is_local = True


def _runs_dir_option(**settings: Any) -> Callable[[Any], Any]:
    return click.option("--runs-dir", default=Path("runs"), show_default=True, **settings)


runs_dir_option = _runs_dir_option(type=PathOrURL(path_type=Path), help="The folder of run directories, or a store.")
local_runs_option = _runs_dir_option(type=LocalPath(path_type=Path), help="The folder of run directories.")
