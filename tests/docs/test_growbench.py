"""Does the page on growbench show what works, to its very figures, and name what there is?"""

from __future__ import annotations

import importlib.util
import re
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest

from esper_tasks.growbench import growing, plans, playing, puzzles, table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "growbench.md"
SOURCES = ROOT / "esper-tasks" / "src" / "esper_tasks" / "growbench"


def script(path: Path) -> ModuleType:
    """A Python file of the project that no package holds."""
    found = importlib.util.spec_from_file_location(f"{path.stem}_for_growbench", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


how_to = script(Path(__file__).with_name("test_how_to.py"))
reader = how_to.reader


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_page_works_and_shows_the_very_figures(page, reader) -> None:
    home = resources.files("esper_tasks.growbench")
    if not (home / table.NUMBERS).is_file() and not (home / table.CARD).is_file():
        pytest.skip("no table is shipped with this copy: python -m esper_tasks.growbench --pack FOLDER makes one")
    parts = [part for part in page.split("\n## ") if "```text" in part]
    assert len(parts) == 2
    for part in parts:
        how_to.tutorials.follow(part, reader)
        (shown,) = re.findall(r"^```text\n(.*?)^```", part, flags=re.DOTALL | re.MULTILINE)
        assert reader.printed == shown


def test_the_page_counts_right(page) -> None:
    assert f"{len(plans.nodes())} places to be, {len(list(plans.ends()))} of them ends" in page
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \| \d \|$", page, flags=re.MULTILINE))
    assert rows == {
        slot: ", ".join(f"`{one.removeprefix('blueprints/')}`" for one in own) for slot, own in puzzles.ROOM.items()
    }
    assert f"`decide_every: {puzzles.EVERY}`" in page


def test_every_error_on_the_page_is_one_that_is_told(page) -> None:
    said = re.findall(r"^\| `(.*?)` \|", page.partition("## Errors")[2], flags=re.MULTILINE)
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.py"))
    assert len(said) == 6
    assert [words for words in said if words not in sources] == []


def test_every_name_on_the_page_exists(page) -> None:
    told = {*re.findall(r"`(?:Bench|plans)?\.?(\w+)\(", page)}
    known = {name for module in (playing, plans, puzzles, growing, table, table.Table) for name in vars(module)}
    assert told - known == set()
    assert {"shipped", "load_table", "puzzle", "nodes", "Bench", "growing"} <= told
