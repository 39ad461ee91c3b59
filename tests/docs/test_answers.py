"""Are the examples in the pages of the errors what the code says?"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "reference" / "errors").glob("E*.md"))
RUN = re.compile(r"^```(?:console|python)$", re.MULTILINE)

# Their examples were copied from a run or from a test: to provoke them anew would need a second package, a machine
# without something, a signal, a damaged file, or a fault of ours.
COPIED = {
    *("E100", "E102", "E103", "E123", "E212", "E222", "E223", "E224", "E228", "E229", "E231", "E232", "E233", "E234"),
    *("E236", "E412", "E413"),
    *("E301", "E302", "E303", "E304", "E307", "E308", "E320", "E331", "E333", "E334", "E335"),
    *("E401", "E402", "E410", "E411", "E421", "E430", "E431", "E504"),
}


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
    assert f"xit code {ends[-1]}" in " ".join(text.split())


def test_those_that_are_copied_are_just_those_that_run_nothing() -> None:
    assert {page.stem for page in PAGES if not RUN.search(page.read_text(encoding="utf-8"))} == COPIED


def test_a_false_example_is_found_out(answers) -> None:
    page = "```console\n$ esper check nowhere.yaml\nall is well\n```\n"
    assert "all is well" not in answers.answered(page)
    assert "E101 there is no such file\n" in answers.answered(page)


def test_an_example_that_ends_in_no_error_is_found_out(answers) -> None:
    with pytest.raises(AssertionError, match="does not"):
        answers.answered("```python\nx = 1\n```\n\n```text\nE1 x\n```\n")
