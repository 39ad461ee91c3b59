"""The page on growbench shows code that works, its exact output, and names that exist."""

import re
from pathlib import Path

import pytest

from esper_study import growbench
from esper_study.growbench import puzzles
from tests.docs import test_how_to as how_to

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "growbench.md"


reader = how_to.reader


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_the_page_works_and_shows_the_very_figures(page, reader):
    parts = [part for part in page.split("\n## ") if "```text" in part]
    assert len(parts) == 2
    for part in parts:
        how_to.tutorials.follow(part, reader)
        (shown,) = re.findall(r"^```text\n(.*?)^```", part, flags=re.DOTALL | re.MULTILINE)
        assert reader.printed == shown


def test_the_page_counts_right(page):
    assert f"{len(growbench.nodes())} states, {len(growbench.end_nodes())} of them final" in page
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \| \d \|$", page, flags=re.MULTILINE))
    assert rows == {
        slot: ", ".join(f"`{one.removeprefix('blueprints/')}`" for one in own) for slot, own in puzzles.SLOTS.items()
    }
    assert f"`decide_every: {puzzles.DECIDE_EVERY}`" in page


def test_every_name_on_the_page_exists(page):
    named = {*re.findall(r"`(\w+)\(", page)}
    assert named - set(growbench.__all__) == set()
    assert {"shipped_table", "load_table", "puzzle", "nodes", "Bench", "live_table"} <= named
