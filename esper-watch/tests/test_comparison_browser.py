"""The page of ``esper compare`` in a browser: it has no script, and adapts by CSS only."""

from __future__ import annotations

import pytest

HINTS = """
new Promise((tell) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(tell, 50)))).then(() =>
  [...document.querySelectorAll(".wide")].map((one) => [
    one.scrollWidth > one.clientWidth,
    getComputedStyle(one, "::before").content.includes("wider than the screen"),
    getComputedStyle(one).backgroundImage.includes("gradient"),
    one.tabIndex,
    one.getAttribute("aria-label"),
  ]))
"""


@pytest.fixture
def page(write_run, esper, tmp_path, browser):
    write_run("20261121-101512-quiet-otter", {"grown": [0.5 + 0.01 * n for n in range(8)], "twin": [0.3] * 8})
    assert esper("compare", "quiet-otter", "--html", tmp_path / "page.html").status == 0
    return browser.open(tmp_path / "page.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_table_that_is_cut_off_on_a_phone_says_so(page, dark):
    page.resize(390, 800, dark=dark)
    assert page.evaluate(HINTS) == [
        [True, True, True, 0, f"{name}; where it is wider than the screen, it scrolls sideways"]
        for name in ("Arms", "Comparisons")
    ]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.complaints == []


def test_a_table_that_has_room_says_nothing_of_it(page):
    page.resize(1400, 800)
    assert [one[:2] for one in page.evaluate(HINTS)] == [[False, False]] * 2


def test_on_a_sheet_nothing_is_cut_off(page):
    """Chromium prints 739 pixels on a sheet of 8.5 inches."""
    page.resize(739, 900, media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 739
    assert [one[1:3] for one in page.evaluate(HINTS)] == [[False, False]] * 2
