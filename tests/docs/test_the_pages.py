"""Every page is in the navigation, and a broken link or a page outside of it makes ``make docs`` fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LISTED_BY_AN_INDEX = "errors"
"""The folder whose pages are reached from its own index page."""


def pages_in(nav: object) -> set[str]:
    """Collect the paths of all pages in the ``nav`` of mkdocs.yml."""
    if isinstance(nav, str):
        return {nav}
    entries = nav.values() if isinstance(nav, dict) else nav
    return set().union(*map(pages_in, entries))


def test_every_page_is_in_the_navigation():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != LISTED_BY_AN_INDEX or page.stem == "index"}
    assert pages_in(nav) == {page.relative_to(DOCS).as_posix() for page in pages}


@pytest.mark.slow
@pytest.mark.install
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs comes with make docs")
@pytest.mark.parametrize("fault", ["[x](nope.md)", "[x](guides/compare-runs.md#nope)", "a page outside the navigation"])
def test_make_docs_fails_where_a_page_is_at_fault(tmp_path, fault):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs")
    if fault.startswith("["):
        with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as page:
            page.write(f"\n{fault}\n")
    else:
        (tmp_path / "docs" / "alone.md").write_text("# Alone\n", encoding="utf-8")
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    arguments = re.search(r"\$\(BIN\)/mkdocs (.+)", recipe).group(1).split()
    done = subprocess.run([sys.executable, "-m", "mkdocs", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "WARNING" in done.stderr
