"""Write the output of the examples on the error pages; with ``--check``, report the pages that are out of date.

A block whose first line is ``# NAME`` is written to a file. In a ``console`` block, each line that begins with ``$`` is
run in a directory with these files and the project's plugins.yaml, and its output is inserted below. A ``python`` block
without a name is run, and the ``text`` block that follows shows the error that it raises. Others stay as they are.

Where the output on a page has a line ``…``, lines are omitted: the page keeps its number of lines above and below.
``MACHINES`` replaces what differs between machines; ``scenes`` prepares what an example needs and does not show.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import warnings
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from esper_core import EsperError
from esper_run import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

DOCS = Path(__file__).parent
ROOT = DOCS.parent
ERRORS = DOCS / "reference" / "errors"
BLOCK = re.compile(r"^```(?P<kind>[a-z]+)\n(?P<body>.*?)^```\n", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"# (E\d{3}) ")
CALL = re.compile(r"\$ (?P<given>(?:[A-Z_]+=\S+ )*)(?P<command>esper .*)\n(?P<answer>(?:(?!\$ ).*\n)*)")
MACHINES = {
    r"torch \S+ sees": "torch 2.13.0+cpu sees",
}
"""Patterns of output that differs between machines, and their replacements."""

BEGAN = "20261121-101512"
"""The start time in the names of all runs. A run without a name is called quiet-otter."""

LEFT_OUT = "…\n"
NAMED = re.compile(r"# (?P<name>[\w-]+\.(?:yaml|py))\n")


def answered(page: str, ends: list[int] | None = None) -> str:
    """Return ``page`` with every answer as the code gives it now.

    ends: receives the exit code of each example, if given.
    """
    code = CODE.match(page)
    with _workplace() as folder, _runs_named(), _scenes().scene(code[1] if code else "", folder):
        raised: list[str] = []
        exit_codes = [] if ends is None else ends
        names = _scenes().NAMES.get(code[1], dict) if code else dict
        return BLOCK.sub(lambda block: _block(block["kind"], block["body"], folder, raised, exit_codes, names), page)


def _block(
    kind: str,
    body: str,
    folder: Path,
    raised: list[str],
    ends: list[int],
    names: Callable[[], dict[str, object]],
) -> str:
    if named := NAMED.match(body):
        (folder / named["name"]).write_text(body, encoding="utf-8")
    elif kind == "console":
        body = CALL.sub(lambda call: _call(call, folder, ends), body)
    elif kind == "python":
        error = _error(body, names())
        raised.append(f"{error}\n")
        ends.append(error.exit_code)
    elif kind == "text" and raised:
        body = _as_shown(raised.pop(), body)
    return f"```{kind}\n{body}```\n"


def _call(call: re.Match[str], folder: Path, ends: list[int]) -> str:
    """Return a command with its answer, as much of it as the page shows."""
    variables = dict(word.split("=", 1) for word in call["given"].split())
    with mock.patch.dict(os.environ, variables):
        text = _answer(call["command"], folder, ends)
    return f"$ {call['given']}{call['command']}\n{_as_shown(text, call['answer'])}"


def _as_shown(text: str, before: str) -> str:
    """Return ``text`` without the lines that ``before``, its earlier version on the page, leaves out."""
    lines = text.splitlines(keepends=True)
    above, left_out, below = before.partition(LEFT_OUT)
    if left_out and len(lines) > (shown := above.count("\n") + below.count("\n")):
        lines[above.count("\n") : len(lines) - below.count("\n")] = [LEFT_OUT]
        assert len(lines) == shown + 1
    return "".join(lines)


def _answer(command: str, folder: Path, ends: list[int]) -> str:
    """Return what ``esper …`` prints, both streams in their order."""
    program, *arguments = shlex.split(command)
    assert program == "esper", command
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            cli.main(arguments)
    except SystemExit as end:
        ends.append(end.code if isinstance(end.code, int) else 0)
    text = output.getvalue().replace(f"{folder}{os.sep}", "")
    for pattern, instead in MACHINES.items():
        text = re.sub(pattern, instead, text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines()).replace("\n\n\n", "\n\n")


def _error(program: str, names: dict[str, object]) -> EsperError:
    """Return the error that a program of a page raises. Its warnings do not belong to the output of `make docs`."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            exec(compile(program, "example.py", "exec"), {"__name__": "example", **names})  # our own pages
    except EsperError as error:
        return error
    message = f"the example does not raise an EsperError:\n{program}"
    raise AssertionError(message)


@contextlib.contextmanager
def _workplace() -> Iterator[Path]:
    """Yield an empty folder with the project's configuration; it is the current folder inside the block."""
    with tempfile.TemporaryDirectory() as name, _environment({"COLUMNS": "120", "NO_COLOR": "1"}):
        folder = Path(name).resolve()
        shutil.copy(ROOT / "plugins.yaml", folder)
        imported = set(sys.modules)
        with contextlib.chdir(folder):
            yield folder
        for module in set(sys.modules) - imported:
            if str(getattr(sys.modules[module], "__file__", None)).startswith(str(folder)):
                del sys.modules[module]


def _runs_named() -> contextlib.AbstractContextManager[object]:
    """Fix the start time of runs to ``BEGAN`` and the default name to quiet-otter inside the block."""
    return mock.patch("esper_run.runs.directory.new_run_id", lambda _, name: f"{BEGAN}-{name or 'quiet-otter'}")


@cache
def _scenes() -> ModuleType:
    """Import the script beside this one by its path: it is in no package."""
    spec = spec_from_file_location("scenes", DOCS / "scenes.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Apply ``changes`` to the environment and remove Esper's own variables inside the block."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("ESPER_")]:
        del os.environ[name]
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main(arguments: Sequence[str]) -> int:
    """Write what is out of date; with ``--check`` only name it."""
    stale = []
    for page in sorted(ERRORS.glob("E*.md")):
        text = page.read_text(encoding="utf-8")
        if (now := answered(text)) != text:
            stale.append(page.name)
            if "--check" not in arguments:
                page.write_text(now, encoding="utf-8")
    if stale and "--check" in arguments:
        sys.stderr.write(f"out of date, `make docs` writes them: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
