"""Follow the guides block by block in an empty folder: commands work, and print what the page shows.

``test_tutorials`` says how the blocks of a page are read. To be fast, ``esper`` and ``python`` run in this process; a
package that a page installs can be imported until the end of the page.
"""

import contextlib
import importlib.util
import io
import itertools
import os
import re
import runpy
import shlex
import site
import subprocess
import sys
import traceback
import unittest.mock
import warnings
from pathlib import Path

import pytest

from esper_core import cli
from tests.docs import test_tutorials as tutorials
from tests.docs.test_answers import script

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "guides"
INSTALL = 'pip install --editable ".[test]"'
SETTING = re.compile(r"[A-Z_]+=\S*")

# Pages with a test of their own: they need a browser, a Ctrl-C, a package, two minutes of training, or other libraries.
OWN_TEST = {"watch-a-run.md", "resume-a-run.md", "write-a-blueprint.md", "use-your-own-data.md", "grow-in-a-trainer.md"}
FOLLOWED = [page for page in sorted(PAGES.glob("*.md")) if page.name not in OWN_TEST]
LONG = {
    key: [pytest.mark.slow, pytest.mark.install]
    for key in (
        *("probe-a-model.md", "read-a-report.md", "test-a-plugin.md", "train-a-policy.md"),
        *("compare-runs.md", "use-a-gpu.md", "use-an-rl-library.md", "use-your-own-model.md", "write-a-policy.md"),
    )
}


answers = script(ROOT / "docs" / "answers.py")


def split_environment(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Separate the variables of a command, ``NAME=value`` before the program, from the rest."""
    settings = list(itertools.takewhile(SETTING.fullmatch, words))
    return dict(one.split("=", 1) for one in settings), words[len(settings) :]


class Quick(tutorials.Reader):
    """A reader who runs ``esper`` and Python scripts in this process."""

    def type(self, lines: str) -> None:
        """Run the lines, one after the other."""
        self.printed = ""
        for line in filter(None, map(str.strip, lines.splitlines())):
            match = tutorials.STATUS.fullmatch(line)
            command, status = (match["command"], int(match["status"])) if match else (line, 0)
            settings, (program, *arguments) = split_environment(shlex.split(command))
            if program == "cd":
                self.folder = (self.folder / arguments[0]).resolve()
                os.chdir(self.folder)
                continue
            if command == INSTALL:
                self.install()
                continue
            run = {"esper": self.esper, "python": self.script}.get(program, self.other)
            with unittest.mock.patch.dict(os.environ, settings):
                ended, told = run(program, arguments)
            self.forget()
            assert ended == status, f"{command} ended with {ended}\n{told}"
            self.printed += told

    def esper(self, _program: str, arguments: list[str]) -> tuple[int, str]:
        return self.in_here(lambda: cli.main(arguments))

    def script(self, _program: str, arguments: list[str]) -> tuple[int, str]:
        """Run a Python file of the folder."""
        file, before = str(self.folder / arguments[0]), (sys.path, sys.argv)
        sys.path, sys.argv = [str(self.folder), *sys.path], [file, *arguments[1:]]
        try:
            return self.in_here(lambda: runpy.run_path(file, run_name="__main__"))
        finally:
            sys.path, sys.argv = before

    def other(self, program: str, arguments: list[str]) -> tuple[int, str]:
        """Run another program as a module of the test environment, with the packages that the page installed."""
        module = [sys.executable, "-m", program, *(["-p", "no:cacheprovider"] if program == "pytest" else [])]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "ESPER"))}
        kept |= {"PYTHONPATH": os.pathsep.join(self.installed), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*module, *arguments], cwd=self.folder, env=kept, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def in_here(self, act) -> tuple[int, str]:
        """Return the exit status that ``act`` would have as a program, and its output."""
        told, ended = io.StringIO(), 0
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                act()
            except SystemExit as end:
                ended = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            except Exception:
                traceback.print_exc(file=told)
                ended = 1
        return ended, told.getvalue()

    def install(self) -> None:
        """Install the package of the folder beside the test environment."""
        target = self.folder.parent / "installed"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        subprocess.run(
            [*pip, "--no-index", "--no-build-isolation", "--target", str(target), "--editable", "."],
            cwd=self.folder,
            check=True,
            capture_output=True,
        )
        before = set(sys.path)
        site.addsitedir(str(target))
        self.installed = [path for path in sys.path if path not in before]

    def forget(self) -> None:
        """Unload modules from the page's files, so that changed files are imported again."""
        importlib.invalidate_caches()
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file is not None and (self.home / file).is_relative_to(self.home):
                del sys.modules[name]


@pytest.fixture
def reader(monkeypatch):
    """A reader in an empty folder; restores the import state of this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with answers._workplace() as folder:
        reader = Quick(folder, sys.executable)
        reader.home, reader.installed = folder, []
        yield reader


@pytest.fixture
def own_data():
    """The text of the page on data."""
    return (ROOT / "docs" / "guides" / "use-your-own-data.md").read_text(encoding="utf-8")


def test_the_quick_part_of_the_page_on_own_data_works(own_data, reader):
    begins, _, goes_on = own_data.partition("### Run it")
    tutorials.follow(begins, reader)
    for block in tutorials.BLOCK.finditer(goes_on):
        if named := tutorials.NAMED.match(block["body"]):
            reader.write(named["path"], block["body"])
            reader.type(f"esper check {named['path']}")


@pytest.mark.slow
def test_the_page_on_own_data_shows_the_figures_that_its_runs_print(own_data, reader):
    tutorials.follow(own_data, reader, tutorials.close)


@pytest.mark.slow
def test_get_started_shows_the_figures_that_its_runs_print(reader):
    page = (ROOT / "docs" / "get-started.md").read_text(encoding="utf-8")
    reader.write("plugins.yaml", (ROOT / "plugins.yaml").read_text(encoding="utf-8"))
    page = page.replace("make run", "esper run plugins.yaml").replace(".venv/bin/esper", "esper")
    tutorials.follow(page, reader, tutorials.close)
    assert list(reader.folder.glob("runs/*/report.html"))


@pytest.mark.parametrize("page", [pytest.param(one, marks=LONG.get(one.name, ()), id=one.stem) for one in FOLLOWED])
def test_a_guide_works_as_it_is_written(page, reader):
    tutorials.follow(page.read_text(encoding="utf-8"), reader, tutorials.counted)


STUDY, QUICK = "steps: 20, batches: 16, batch_size: 100", "steps: 6, batches: 2, batch_size: 20"


@pytest.mark.parametrize("study", [QUICK, pytest.param(STUDY, marks=pytest.mark.slow)])
def test_the_guide_on_reports_describes_every_section_in_order(study, reader):
    page = (PAGES / "read-a-report.md").read_text(encoding="utf-8")
    run, _, text = page.partition("## Sections")
    tutorials.follow(run.replace(STUDY, study), reader)
    report = (reader.folder / "otter.html").read_text(encoding="utf-8")
    described = re.findall(r"^\*\*(.+?)\.\*\*", text, re.MULTILINE)
    shown = re.findall("<h2>(.*?)</h2>", report)
    assert [section for section in described if section in shown] == shown
    assert described == shown or study == QUICK, "a short run grows nothing, so that some sections are missing"
    assert "Glossary" in report
