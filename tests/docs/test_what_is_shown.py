"""Do the claims of the pages have commands that are there, and the figures that these commands give?

The figures of the default run are written into the page of the first run, which a slow test follows; here tables of
other pages are held against it, and against those that the studies wrote. What pages tell in words is held in
`test_figures`, and here what they say of runs without a figure.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from esper_core import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHOWN = DOCS / "why-grow.md"
FIRST_RUN = DOCS / "get-started.md"
RESULTS = ROOT / "benchmarks" / "science" / "incubation" / "results.md"
PAGES = [*sorted(DOCS.rglob("*.md")), *ROOT.glob("*.md")]
TESTS = "tests/(?:contract|docs|end_to_end|install)"
FILE = re.compile(rf"(?:examples|{TESTS}|benchmarks|esper-[a-z]+)/[\w./-]+\.(?:yaml|py|md|svg)")
MODULE = re.compile(r"python -m (benchmarks(?:\.\w+)*)")


def table(page: Path) -> list[str]:
    """The lines of a page's first block of text."""
    block = re.search(r"^```text\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert block
    return block[1].splitlines()


def figures(line: str) -> set[str]:
    """The numbers of a line that have a fraction, without signs."""
    return set(re.findall(r"\d+\.\d+", line))


def rows(page: Path, beginning: str) -> set[str]:
    """The figures of the rows of a page that begin so; there must be one."""
    found = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith(beginning)]
    assert found, beginning
    return set().union(*map(figures, found))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_file_or_a_module_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [one for one in FILE.findall(text) if not (ROOT / one).exists()] == []
    assert [one for one in MODULE.findall(text) if importlib.util.find_spec(one) is None] == []


@pytest.mark.parametrize(
    ("page", "beginning", "result"),
    [
        (DOCS / "concepts" / "incubation.md", "| operations of a whole training", "| conv_light | 5 |"),
    ],
)
def test_what_is_said_of_a_study_stands_in_its_table(page: Path, beginning: str, result: str) -> None:
    assert rows(page, beginning) <= rows(RESULTS, result)


def test_another_figure_is_found_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| a | +27.4 |\n| b | +1.0 |\n", encoding="utf-8")
    assert rows(page, "| a") == {"27.4"}
    assert not rows(page, "| a") <= figures("heuristic  twin  +27.3 points")


@pytest.mark.slow
def test_a_twin_that_is_trained_for_longer_does_not_come_to_what_was_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = re.findall(r"^```sh\nesper (.*)\n```", SHOWN.read_text(encoding="utf-8"), re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command.replace("plugins.yaml", shlex.quote(str(ROOT / "plugins.yaml"))))
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--set", "environments=2", "--quiet", "--json"])
    (arm,) = json.loads(capsys.readouterr().out)["results"]["arms"].values()
    assert 0.55 < arm["test"]["mean"] < 0.68
