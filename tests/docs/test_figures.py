"""Every figure in the prose of the documentation comes from a stored result or from a constant of the code."""

import pytest

from tests.docs.test_answers import DOCS, script

figures = script(DOCS / "figures.py")


@pytest.mark.parametrize("page", figures.PAGES, ids=str)
def test_every_figure_of_a_page_has_a_source_and_every_listed_one_is_there(page):
    assert figures.problems(page) == []


def test_every_page_with_figures_is_listed():
    assert figures.unlisted() == []
