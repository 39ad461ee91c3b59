"""Are the examples in the pages of the errors what the code says?"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "reference" / "errors").glob("E*.md"))
RUN = re.compile(r"^```(?:console|python)$", re.MULTILINE)

COPIED = {
    "E403": "processes that share a run: elsewhere than on Linux, and beside a GPU, there are none",
    "E504": "a full disk, or a folder that is closed: to an administrator none is",
}
"""Pages whose examples were copied from a test, and what it would take to provoke them on any machine."""

BESIDE = {
    "E228": "a sink that is slower than the run, by a number of events that no two runs have in common",
    "E334": "a checkpoint of another network, which a run refuses before by its sums",
}
"""Pages with an example that was copied beside one that is run."""


@pytest.fixture(scope="module")
def answers():
    """The script that writes the examples."""
    found = importlib.util.spec_from_file_location("answers", DOCS / "answers.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in COPIED], ids=lambda page: page.stem)
def test_an_example_is_what_the_code_answers(answers, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert RUN.search(text), "an example that is run has a command or a program"
    ends = []
    assert answers.answered(text, ends) == text, "`python docs/answers.py` writes it"
    told = " ".join(text.split())
    assert [end for end in ends if end and f"xit code {end}" not in told] == [], "a warning alone has none"


def test_those_that_are_copied_are_just_those_that_run_nothing() -> None:
    assert {page.stem for page in PAGES if not RUN.search(page.read_text(encoding="utf-8"))} == set(COPIED)


def test_an_example_that_is_copied_beside_one_that_is_run_is_named_here(answers) -> None:
    found = set()
    for page in PAGES:
        kinds = [(one["kind"], answers.NAMED.match(one["body"])) for one in answers.BLOCK.finditer(page.read_text())]
        told = sum(kind == "text" for kind, _ in kinds)
        found |= {page.stem} if told > sum(kind == "python" and not named for kind, named in kinds) else set()
    assert found == {*COPIED, *BESIDE}


def test_a_false_example_is_found_out(answers) -> None:
    page = "```console\n$ esper check nowhere.yaml\nall is well\n```\n"
    assert "all is well" not in answers.answered(page)
    assert "E101 there is no such file\n" in answers.answered(page)


def test_what_a_page_leaves_out_of_an_answer_is_left_out_and_what_it_shows_is_told(answers) -> None:
    page = "```console\n$ esper check plugins.yaml --set task=nothing\nE0 first\n…\nlast\n```\n"
    _, command, first, between, *last, _ = answers.answered(page).splitlines()
    assert command == "$ esper check plugins.yaml --set task=nothing"
    assert first.startswith("E20")
    assert (between, len(last)) == ("…", 1)
    assert last != ["last"]


def test_no_run_of_an_example_is_called_by_the_clock_and_nothing_of_a_machine_is_told(answers) -> None:
    page = (DOCS / "reference" / "errors" / "E412.md").read_text(encoding="utf-8")
    for _ in range(2):
        told = answers.answered(page)
        assert "runs/20261121-101512-quiet-otter is in use by another process\n" in told


def test_an_example_that_ends_in_no_error_is_found_out(answers) -> None:
    with pytest.raises(AssertionError, match="does not"):
        answers.answered("```python\nx = 1\n```\n\n```text\nE1 x\n```\n")
