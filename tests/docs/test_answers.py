"""The examples on the error pages print what their pages show, and every figure in prose has its source."""

import importlib.util
import re
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "reference" / "errors").glob("E*.md"))
RUN = re.compile(r"^```(?:console|python)$", re.MULTILINE)

WARNINGS = ["E349", "E360", "E361", *(f"E37{number}" for number in range(8)), "E380", "E381", "E382"]
COPIED = {
    "E343": "a test runs in one process",
    **dict.fromkeys(WARNINGS, "it is a warning of a training loop"),
    **dict.fromkeys(("E362", "E363", "E364", "E404", "E405"), "it needs a library that is not always installed"),
    "E403": "worker processes exist on Linux without a GPU only",
    "E433": "a server that can listen does not end",
    **dict.fromkeys(("E406", "E407"), "its run is killed"),
    "E436": "it is a warning whose moment depends on the machine",
    "E504": "every directory is writable for root",
}
"""Pages whose examples are copied from a test, and why they cannot run on every machine."""


def script(path: Path) -> ModuleType:
    """Import a Python file that no package holds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def answers():
    """The script that writes the output of the examples."""
    return script(DOCS / "answers.py")


def exit_codes() -> dict[str, set[int]]:
    """Return the exit codes of each error, by the table in the index."""
    index = (DOCS / "reference" / "errors" / "index.md").read_text(encoding="utf-8")
    codes = defaultdict(set)
    for numbers, errors in re.findall(r"^\| (\d[\d, ]*) \| (E\d.*) \|$", index, flags=re.MULTILINE):
        for first, last in re.findall(r"E(\d+)(?:–E(\d+))?", errors):
            for code in range(int(first), int(last or first) + 1):
                codes[f"E{code}"] |= {int(number) for number in numbers.split(", ")}
    return codes


@pytest.mark.install  # CI runs it for every change
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in COPIED], ids=lambda page: page.stem)
def test_an_example_prints_what_its_page_shows(answers, page):
    text = page.read_text(encoding="utf-8")
    assert RUN.search(text), "the page has no command and no program to run"
    ends = []
    assert answers.answered(text, ends) == text, "`python docs/answers.py` writes it"
    assert {end for end in ends if end} <= exit_codes()[page.stem], "the index has another exit code"


def test_the_index_has_an_exit_code_for_every_error_except_the_warnings():
    assert {page.stem for page in PAGES} - set(exit_codes()) == {"E222", "E228", "E237", "E436", *WARNINGS}


def test_only_these_pages_show_copied_output(answers):
    copying = set()
    for page in PAGES:
        blocks = answers.BLOCK.finditer(page.read_text())
        kinds = [(block["kind"], answers.NAMED.match(block["body"])) for block in blocks]
        shown = sum(kind == "text" for kind, _ in kinds)
        copying |= {page.stem} if shown > sum(kind == "python" and not named for kind, named in kinds) else set()
    assert copying == set(COPIED)


figures = script(DOCS / "figures.py")


@pytest.mark.parametrize("page", figures.PAGES, ids=str)
def test_every_figure_of_a_page_has_a_source_and_every_listed_one_is_there(page):
    assert figures.problems(page) == []


def test_every_page_with_figures_is_listed():
    assert figures.unlisted() == []
