"""The guide on notebooks names every column of the tables of a run."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from esper_core.leyline import Stage
from esper_core.leyline.events import StageChanged
from esper_watch.history import SeedLife, Step

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "use-a-notebook.md"


def seed_columns() -> list[str]:
    life = SeedLife(0, "a", 0, "early", 0, "b/conv", 1)
    change = StageChanged(
        round=0, arm="a", seed=0, step=0, slot="early", seed_id=0, blueprint="b/conv", was=None, now=Stage.GERMINATED,
        parameters=1, reason="",
    )  # fmt: skip
    life.changes.append(change)
    return list(life.as_row())


@pytest.mark.parametrize(
    ("title", "columns"), [("`steps`", [field.name for field in fields(Step)]), ("`seeds`, as rows", seed_columns())]
)
def test_the_page_names_every_column(title, columns):
    (table,) = re.findall(rf"^### {re.escape(title)}\n\n(.*?)\n\n", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(columns)
