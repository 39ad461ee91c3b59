"""Every decision has a status and is listed, and what it is superseded by exists."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("[0-9]*.md"))}
STATUS = re.compile(r"# (?P<title>\d{4} .+)\n\nStatus: (?P<status>accepted|superseded by \[\d{4}\]\([\w.-]+\))")


def test_each_decision_has_a_status_and_is_listed_with_it() -> None:
    listed = re.findall(r"^\| \[(.+)\]\((.+)\) \| (.+) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    matches = {name: STATUS.match(page) for name, page in PAGES.items()}
    assert [name for name, match in matches.items() if match is None] == []
    assert listed == [(match["title"], name, match["status"]) for name, match in matches.items() if match]


def test_a_decision_is_superseded_by_one_that_says_so() -> None:
    for name, page in PAGES.items():
        for later in re.findall(r"^Status: superseded by \[\d{4}\]\((.+)\)", page, re.MULTILINE):
            assert f"({name})" in PAGES[later].splitlines()[2]
