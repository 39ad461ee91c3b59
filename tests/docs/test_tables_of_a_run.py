"""Does the page on runs in notebooks name just the columns that the tables of a run have?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from esper_core.runs import rows

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "look-at-a-run-in-a-notebook.md"
TABLES = {
    "steps": rows.StepRow,
    "seeds": rows.SeedRow,
    "stages": rows.StageRow,
    "episodes": rows.EpisodeRow,
    "comparisons": rows.ComparisonRow,
    "governor": rows.GovernorRow,
}


def columns_on(page: str) -> dict[str, set[str]]:
    """What stands in the first cells of the table under each heading that names a method."""
    found = {}
    for name, body in re.findall(r"^### `(\w+)\(\)`\n(.*?)(?=^#|\Z)", page, flags=re.DOTALL | re.MULTILINE):
        cells = re.findall(r"^\| (`.*?) \|", body, flags=re.MULTILINE)
        found[name] = {column for cell in cells for column in re.findall(r"`(\w+)`", cell)}
    return found


def test_there_is_a_table_for_each_kind_of_row() -> None:
    assert set(columns_on(PAGE.read_text(encoding="utf-8"))) == set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_the_page_names_every_column_and_no_other(name: str) -> None:
    assert columns_on(PAGE.read_text(encoding="utf-8"))[name] == set(get_type_hints(TABLES[name]))
