"""Does a tutorial work as it is written, block by block, in an environment where Esper was just installed?

A block whose first line is ``# PATH`` is written to that file. The lines of ``sh`` blocks are run in their order, in
the folder to which ``cd`` led; ``# exit status N`` behind one says how it ends. What a ``text`` block shows has to be
in what the last ``sh`` block printed; figures and the width of gaps are not compared.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEMBERS = ("esper-core", "esper-testing", "esper-blueprints", "esper-policies", "esper-rewards", "esper-tasks")
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (?P<path>[\w./-]+\.(?:py|yaml))\n")
STATUS = re.compile(r"(?P<command>.*?)\s*# exit status (?P<status>\d+)")

# What a reader types, and what is run here in its place: the same without a network. The environment has no pip and no
# programs of third-party packages of its own, so these are started by their modules.
OFFLINE = {
    'pip install --editable ".[test]"': (
        "{pip} install --quiet --no-deps --no-index --no-build-isolation --editable ."
    ),
    "pip wheel --no-deps --wheel-dir dist .": (
        "{pip} wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir dist ."
    ),
    "pytest -k listed": "{python} -m pytest -q -p no:cacheprovider -k listed",
}

pytestmark = pytest.mark.install


@dataclass
class Reader:
    """Somebody who does what the page says: where they are, and what was printed last."""

    folder: Path
    python: str
    printed: str = ""
    typed: list[str] = field(default_factory=list)

    def write(self, path: str, text: str) -> None:
        """Writes a file, over what is there."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def type(self, lines: str) -> None:
        """Types the lines, one after the other."""
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
    """``text`` with each gap as one space, and each run of digits as 0 but where it says how many checks there were."""
    return re.sub(r"\d+(?!\d| checks)", "0", re.sub(r"[ \t]+", " ", text))


def follow(page: str, reader: Reader) -> None:
    """Does everything that the page says, in its order."""
    for block in BLOCK.finditer(page):
        kind, body = block["kind"], block["body"]
        if named := NAMED.match(body):
            reader.write(named["path"], body)
        elif kind == "sh":
            reader.type(body)
        elif kind == "text":
            missing = [line for line in body.splitlines() if plain(line.strip()) not in plain(reader.printed)]
            assert not missing, f"shown and not printed: {missing}\n{reader.printed}"
        else:
            pytest.fail(f"a {kind} block that nobody would run:\n{body}")


@pytest.mark.slow
def test_the_first_blueprint_package_works_as_it_is_written(new_environment, tmp_path) -> None:
    page = (ROOT / "docs" / "tutorials" / "first-blueprint-package.md").read_text(encoding="utf-8")
    reader = Reader(tmp_path, new_environment(*MEMBERS).python)
    follow(page, reader)
    assert set(OFFLINE) <= set(reader.typed), "a substitution that stands for nothing"


def test_a_page_that_shows_what_is_not_printed_is_found_out(tmp_path) -> None:
    reader = Reader(tmp_path, sys.executable)
    follow("```sh\necho 12  apples\n```\n\n```text\n3 apples\n```\n", reader)
    with pytest.raises(AssertionError, match="shown and not printed"):
        follow("```sh\necho pears\n```\n\n```text\napples\n```\n", reader)
    with pytest.raises(AssertionError, match="false"):
        follow("```sh\nfalse\n```\n", reader)


def test_the_smallest_plugin_has_ten_lines_at_most_and_one_import() -> None:
    page = (ROOT / "docs" / "tutorials" / "first-blueprint-package.md").read_text(encoding="utf-8")
    (plugin,) = re.findall(r"```python\n# tiny\.py\n(.*?)```", page, flags=re.DOTALL)
    lines = plugin.splitlines()
    assert len(lines) <= 10
    assert [line for line in lines if "import" in line] == ["from esper_core import BlueprintSpec, hookimpl"]
