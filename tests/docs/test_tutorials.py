"""Follow the guide on blueprints in a new environment; and how pages are followed.

A block whose first line is ``# PATH`` is written to that file. The lines of ``sh`` blocks are run in order, in the
folder that ``cd`` selected; ``# exit status N`` at the end of a line gives its exit status, 0 by default. The lines
of a ``text`` block must be in the output of the last ``sh`` block; whitespace is not compared, and figures only on
request.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEMBERS = ("esper-core", "esper-testing", "esper-blueprints", "esper-policies", "esper-rewards", "esper-tasks")
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (?P<path>[\w./-]+\.(?:py|yaml))\n")
STATUS = re.compile(r"(?P<command>.*?)\s*# exit status (?P<status>\d+)")

FIGURE = re.compile(r"(?<![\w.])(?P<sign>[+-]?)(?P<number>\d[\d,]*(?:\.\d+)?)(?!\w|\.\d)(?P<unit>(?: %| points)?)")
OF_THE_MOMENT = re.compile(r"\b\d{8}-\d{6}-|\d+(?:\.\d+)? ?(?:s|ms|seconds|minutes|MiB|GiB|cores)\b")
POINTS = 3.0
"""Largest difference of a mean over eight environments between machines, in points: about its interval."""

# Commands of the page, and what runs in their place: the same without a network. The environment has neither pip nor
# the programs of third-party packages, so their modules are started.
OFFLINE = {
    'pip install --editable ".[test]"': (
        "{pip} install --quiet --no-deps --no-index --no-build-isolation --editable ."
    ),
    "pip wheel --no-deps --wheel-dir dist .": (
        "{pip} wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir dist ."
    ),
    "pytest -k listed": "{python} -m pytest -q -p no:cacheprovider -k listed",
    "pip install CHECKOUT/examples/esper-blueprints-extra": (
        "{pip} install --quiet --no-deps --no-index --no-build-isolation "
        + str(ROOT / "examples/esper-blueprints-extra")
    ),
}

pytestmark = pytest.mark.install


@dataclass
class Reader:
    """Follows a page; has a current folder, and the latest output."""

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
                self.folder = self.folder / command.removeprefix("cd ")
                continue
            pip = f"{sys.executable} -m pip --disable-pip-version-check --python {self.python}"
            run = OFFLINE.get(command, command).format(pip=pip, python=self.python) if command in OFFLINE else command
            kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "ESPER"))}
            kept["PATH"] = f"{Path(self.python).parent}{os.pathsep}{kept['PATH']}"
            done = subprocess.run(
                run, shell=True, cwd=self.folder, env=kept, capture_output=True, text=True, check=False
            )
            assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
            self.printed += done.stdout + done.stderr


def plain(text: str) -> str:
    """Return ``text`` with single spaces, and with numbers replaced by 0 unless they count checks."""
    return re.sub(r"\d+(?!\d| checks)", "0", re.sub(r"[ \t]+", " ", text))


def counted(shown: str, printed: str) -> bool:
    """Return whether two lines of equal words have equal counts: integers without unit or sign."""
    return all(one == other for one, other in figures(shown, printed) if one.is_count)


def close(shown: str, printed: str) -> bool:
    """Return whether two lines of equal words have equal figures, as far as machines agree.

    Counts are equal. Measurements, which have a unit or a sign, differ by at most ``POINTS``. Other fractions, which
    are p-values, are on the same side of 0.05.
    """
    measured = [both for both in figures(shown, printed) if both[0].has_unit]
    shares = [both for both in figures(shown, printed) if not (both[0].has_unit or both[0].is_count)]
    return (
        counted(shown, printed)
        and all(abs(one.value - other.value) <= POINTS for one, other in measured)
        and all((one.value < 0.05) == (other.value < 0.05) for one, other in shares)
    )


@dataclass(frozen=True)
class Figure:
    """A number of a line."""

    value: float
    has_unit: bool
    is_count: bool


def figures(*lines: str) -> list[tuple[Figure, ...]]:
    """Return the numbers of lines with equal words, side by side, without those of times and names of runs."""
    return list(zip(*(map(figure, FIGURE.finditer(OF_THE_MOMENT.sub("", line))) for line in lines), strict=True))


def figure(found: re.Match[str]) -> Figure:
    number = found["number"].replace(",", "")
    has_unit = bool(found["sign"] or found["unit"])
    return Figure(float(found["sign"] + number), has_unit, not has_unit and "." not in number)


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
    words = re.sub(r"\d+", r"\\d+", re.escape(re.sub(r"[ \t]+", " ", shown))).replace(r"\ ", "[ \t]+")
    return not figures(shown) or any(same(shown, found[0]) for found in re.finditer(words, printed))


@pytest.mark.slow
def test_the_guide_on_blueprints_works_in_a_new_environment(new_environment, tmp_path):
    page = (ROOT / "docs" / "guides" / "write-a-blueprint.md").read_text(encoding="utf-8")
    reader = Reader(tmp_path, new_environment(*MEMBERS).python)
    follow(page, reader)
    assert set(OFFLINE) <= set(reader.typed), "a substitution that is not used"
