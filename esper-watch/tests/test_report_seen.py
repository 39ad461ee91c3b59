"""What is on the screen when a report is opened: wide and narrow, in light and dark, by pointer and by keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esper_watch.report import write_report

MakeRun = Callable[..., Path]

VISIBLE = "document.body.innerText"
TOLD = "document.getElementById('told').hidden ? '' : document.getElementById('told').textContent"
WIDE = "document.documentElement.scrollWidth"

MIDDLE = """
(() => {
  const mark = document.querySelector("#lives .mark.stage-training");
  mark.scrollIntoView({ block: "center" });
  const box = mark.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
})()
"""

CONTRAST = """
(() => {
  const channel = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  };
  const ratio = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((m, n) => n - m);
    return (x + 0.05) / (y + 0.05);
  };
  const paper = getComputedStyle(document.documentElement).backgroundColor;
  const found = {};
  for (const one of document.querySelectorAll("p, td, th, figcaption, a, summary, h1, h2, h3"))
    found[one.tagName] = Math.min(found[one.tagName] ?? 99, ratio(getComputedStyle(one).color, paper));
  for (const one of document.querySelectorAll("svg text:not(.inside)"))
    found.text = Math.min(found.text ?? 99, ratio(getComputedStyle(one).fill, paper));
  for (const one of document.querySelectorAll("polyline.line"))
    found.line = Math.min(found.line ?? 99, ratio(getComputedStyle(one).stroke, paper));
  for (const one of document.querySelectorAll(".mark:not(.column):not(.host) > rect, .mark:not(.slot) > circle"))
    found.mark = Math.min(found.mark ?? 99, ratio(getComputedStyle(one).fill, paper));
  return found;
})()
"""


@pytest.fixture
def page(make_run: MakeRun, browser: Any) -> Any:
    return browser.open(write_report(make_run()))


def test_everything_that_was_asked_for_is_on_the_screen_and_nothing_is_fetched(page: Any) -> None:
    text = page.evaluate(VISIBLE)
    for said in (
        "Growing helped: grown ended better than the same networks that never grew.",
        "grown was better than twin by 30.0 points (95 % interval +28.0 to +32.0 points",
        "The arms",
        "How it went",
        "What it cost",
        "The seeds' lives",
        "16 seeds: 8 kept, 8 pruned.",
        "The networks that came out",
        "8 of 8 networks: 500 parameters of the host, 72 grown.",
        "What each seed was good for",
        "What the policies learnt",
        "Where the time went",
        "roll-back",
        "More",
        "Where this is from",
    ):
        assert said in text, said
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("file:")] == []
    assert len(page.requests) == 1


def test_where_the_pointer_rests_a_value_is_told(page: Any) -> None:
    page.resize(1000, 900)
    where = page.evaluate(MIDDLE)
    page.point(*where)
    assert page.evaluate(TOLD) == "early  conv: training in isolation from step 2 on, until step 8. asked for"
    page.point(2, 2)
    assert page.evaluate(TOLD) == ""


def test_the_arrow_keys_go_from_value_to_value(page: Any) -> None:
    page.evaluate("document.querySelector('#courses svg').focus()")
    page.press("ArrowRight")
    first = page.evaluate(TOLD)
    page.press("ArrowRight")
    second = page.evaluate(TOLD)
    page.press("ArrowLeft")
    assert page.evaluate(TOLD) == first
    assert first.startswith("after 1 step: grown ")
    assert "; twin " in first
    assert second.startswith("after 2 steps: ")
    page.press("Escape")
    assert page.evaluate(TOLD) == ""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_read_in_light_and_in_dark(page: Any, dark: bool) -> None:
    page.resize(1000, 900, dark=dark)
    found = page.evaluate(CONTRAST)
    drawn = {name: ratio for name, ratio in found.items() if name in ("line", "mark")}
    assert {name: ratio for name, ratio in drawn.items() if ratio < 3.0} == {}
    assert {name: ratio for name, ratio in found.items() if name not in drawn and ratio < 4.5} == {}


@pytest.mark.parametrize("width", [320, 390, 1400])
def test_no_screen_is_too_narrow(page: Any, width: int) -> None:
    page.resize(width, 800)
    assert page.evaluate(WIDE) <= width


def test_it_can_be_printed(page: Any) -> None:
    assert len(page.call("Page.printToPDF")["data"]) > 10_000
    page.resize(1000, 900, media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_it_is_opened_in_less_than_a_second(make_run: MakeRun, browser: Any) -> None:
    path = write_report(make_run(arms=("grown", "twin", "capacity")))
    browser.open(path)
    began = time.perf_counter()
    page = browser.open(path)
    assert time.perf_counter() - began < 1.0
    assert "How it went" in page.evaluate(VISIBLE)


def test_planted_markup_is_read_and_not_run(make_run: MakeRun, browser: Any) -> None:
    word = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    page = browser.open(write_report(make_run(word=word)))
    assert "owned" not in page.evaluate("document.title").replace(word, "")
    assert page.evaluate("document.images.length + document.querySelectorAll('script').length") == 1
    assert page.complaints == []
    assert "onerror" in page.evaluate(VISIBLE)
