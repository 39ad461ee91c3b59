"""The code on the page about observations works, and the page explains every column."""

from pathlib import Path

from esper_core.leyline import observations as features
from tests.docs import test_how_to as how_to

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "observations.md"

generate = how_to.script(ROOT / "docs" / "generate.py")
reader = how_to.reader


def test_the_page_works_as_it_is_written(reader):
    how_to.tutorials.follow(PAGE.read_text(encoding="utf-8"), reader, how_to.tutorials.counted)


def test_every_column_is_on_the_page_once_and_in_order():
    parts = generate.columns().split("### ")[1:]
    for part, names in zip(
        parts, (features.GLOBAL_COLUMNS, features.SLOT_COLUMNS, features.CANDIDATE_COLUMNS), strict=True
    ):
        cells = [line.split(" | ") for line in part.splitlines() if line.startswith("| ") and "---" not in line][1:]
        shown = [name.strip("`") for columns, _ in cells for name in columns.removeprefix("| ").split()]
        assert tuple(shown) == names
        assert all(meaning.strip(" |") for _, meaning in cells)
