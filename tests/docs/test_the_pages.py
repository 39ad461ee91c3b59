"""Are the pages whole? Each is to be found from the first one, and a link that leads nowhere is not built."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)#:]+\.md)[^)]*\)")
BELOW_AN_INDEX = ("decisions", "errors")
"""Folders whose pages are listed on a page of their own, which the first one leads to."""


def test_every_page_is_linked_on_the_first_one():
    linked = set(LINK.findall((DOCS / "index.md").read_text(encoding="utf-8")))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name not in BELOW_AN_INDEX}
    assert pages - linked == {"index.md"}


@pytest.mark.slow
@pytest.mark.install
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs comes with make docs")
@pytest.mark.parametrize("fault", ["[x](nope.md)", "[x](guides/compare-runs.md#nope)", "a page outside the list"])
def test_make_docs_ends_with_an_error_where_a_page_is_at_fault(tmp_path, fault):
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
