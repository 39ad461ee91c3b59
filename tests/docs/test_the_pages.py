"""Every page is in the navigation, and a broken link or a page outside of it makes ``make docs`` fail."""

from pathlib import Path

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
