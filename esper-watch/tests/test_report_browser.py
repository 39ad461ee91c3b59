"""The report in a browser: on wide and narrow screens, in light and dark, by pointer, keys and touch."""

import base64
import re
from itertools import combinations
from typing import Any

import pytest

from esper_watch.report import write_report
from tests.support.html_pages import TOOLTIP, TRAINING_MARK, typed

VISIBLE = "document.body.innerText"
WIDE = "document.documentElement.scrollWidth"


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
  // What is seen of a colour: as much as its own opacity and that of all around it lets through, over what is behind.
  const over = (text, behind, own, one) => {
    let share = own * Number((text.match(/[\\d.]+/g) ?? [])[3] ?? 1);
    for (let at = one; at; at = at.parentElement) share *= Number(getComputedStyle(at).opacity);
    const [front, back] = [text, behind].map((one) => one.match(/[\\d.]+/g).slice(0, 3).map(Number));
    return `rgb(${front.map((value, at) => share * value + (1 - share) * back[at]).join()})`;
  };
  const seen = (one, what, behind) => {
    const style = getComputedStyle(one);
    if (style[what] === "none" || (what === "stroke" && !parseFloat(style.strokeWidth))) return 0;
    return ratio(over(style[what], behind, Number(style[`${what}Opacity`]), one), behind);
  };
  const paper = getComputedStyle(document.documentElement).backgroundColor;
  const found = {};
  for (const one of document.querySelectorAll("p, td, th, figcaption, a, summary, h1, h2, h3"))
    found[one.tagName] = Math.min(
      found[one.tagName] ?? 99,
      ratio(over(getComputedStyle(one).color, paper, 1, one), paper),
    );
  for (const one of document.querySelectorAll("svg text:not(.inside)"))
    found.text = Math.min(found.text ?? 99, seen(one, "fill", paper));
  for (const one of document.querySelectorAll("svg text.inside")) {
    const box = getComputedStyle(one.parentElement.querySelector("rect")).fill;
    found.inside = Math.min(found.inside ?? 99, seen(one, "fill", box));
  }
  for (const one of document.querySelectorAll("polyline.line, polyline.front"))
    found.line = Math.min(found.line ?? 99, seen(one, "stroke", paper));
  // A column is there for the pointer alone, and shows nothing. The band of a curve is no mark: see page.css.
  for (const one of document.querySelectorAll(".mark:not(.column)"))
    for (const shape of one.querySelectorAll("rect, circle, path, polygon, line"))
      found.mark = Math.min(found.mark ?? 99, Math.max(seen(shape, "fill", paper), seen(shape, "stroke", paper)));
  return found;
})()
"""

TAPPED = """
(() => {
  for (const mark of document.querySelectorAll("#%s .mark")) {
    mark.scrollIntoView({ block: "center", inline: "center" });
    const box = mark.getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    // Another may lie upon its middle.
    if (document.elementFromPoint(x, y).closest(".mark") === mark)
      return [mark.querySelector("title").textContent, x, y];
  }
})()
"""

LETTERS = """
[...document.querySelectorAll("#%s figure svg text")].map((text) => {
  // The box of a text has room for accents, which no figure has: letters reach so far above and below their line.
  const [box, seen] = [text.getBoundingClientRect(), text.getScreenCTM()];
  const [size, line] = [parseFloat(getComputedStyle(text).fontSize) * seen.d, Number(text.getAttribute("y"))];
  const [on, wide] = [line * seen.d + seen.f, seen.a / seen.d];
  const content = text.firstChild.textContent;
  return { content, size, wide, left: box.left, right: box.right, top: on - 0.76 * size, bottom: on + 0.24 * size };
})
"""


STROKES = """
[...document.querySelectorAll("#%s figure svg :is(.price, .whisker)")].map((stroke) => {
  const { left, right, top, bottom } = stroke.getBoundingClientRect();
  return { left, right, top, bottom };
})
"""


CALLED = """
// The names of what belongs together begin with the part that it is of.
for (const part of ["courses", "lives", "evidence"]) {
  const first = document.querySelector(`#${part} figure`);
  const held = [document.querySelector(`#${part} h2`), document.querySelector(`#${part} .legend`)];
  held.push(first.querySelector("figcaption") ?? first.appendChild(document.createElement("figcaption")));
  if (part === "lives") held.push(document.querySelector(`#${part} h3`));
  for (const [at, one] of held.entries()) {
    one.role = "heading";
    one.ariaLevel = "3";
    one.textContent = `${part} ${at}`;
  }
}
1
"""

CUT_OFF = """
[...document.querySelectorAll("figure div")].filter((one) => {
  const inside = [...one.querySelectorAll("svg .mark, svg text")].map((mark) => mark.getBoundingClientRect());
  const own = one.getBoundingClientRect();
  return inside.some((box) => box.right > own.right + 1 || box.left < own.left - 1);
}).map((one) => `${one.closest("section").id}: ${one.className}`)
"""

SETTLED = "new Promise((tell) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(tell, 50))))"
"""Waits for two frames, so that the work of the next one is done."""

REGION = f"""
{SETTLED}.then(() => {{
  const one = document.querySelector("#arms .scroll:has(table)");
  return ["tabindex", "role", "aria-label"].map((name) => one.getAttribute(name));
}})
"""

HINT = f"""
{SETTLED}.then(() => getComputedStyle(document.querySelector("#arms .scroll:has(table)"), "::before").content)
"""


@pytest.fixture
def page(usual_report, browser):
    return browser.open(usual_report)


def test_all_sections_are_visible_and_nothing_is_fetched(page):
    text = typed(page.evaluate(VISIBLE))
    for phrase in (
        "Growing helped: grown ended better than the same networks without growth.",
        "grown was better than twin by 30.0 points (95 % interval +28.0 to +32.0 points",
        *("Arms", "Learning curves", "Seed lives", "16 seeds: 8 kept, 8 pruned."),
        *("Evidence for each seed", "Policy updates", "roll-back", "Provenance"),
    ):
        assert phrase in text, phrase
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("file:")] == []
    assert len(page.requests) == 1


def test_the_pointer_shows_the_value_of_a_mark(page):
    page.resize(1000, 900)
    position = page.evaluate(TRAINING_MARK)
    page.point(*position)
    life = "early  conv: germinated at step 1, training in isolation from step 2 to step 9. by the policy"
    assert page.evaluate(TOOLTIP) == life
    page.point(2, 2)
    assert page.evaluate(TOOLTIP) == ""


def test_the_arrow_keys_go_from_mark_to_mark(page):
    page.evaluate("document.querySelector('#courses svg').focus()")
    page.press("ArrowRight")
    first = page.evaluate(TOOLTIP)
    page.press("ArrowRight")
    second = page.evaluate(TOOLTIP)
    page.press("ArrowLeft")
    assert page.evaluate(TOOLTIP) == first
    assert first.startswith("after 1 step: grown ")
    assert "; twin " in first
    assert second.startswith("after 2 steps: ")
    page.press("Escape")
    assert page.evaluate(TOOLTIP) == ""


def faint(page):
    """Return what has too little contrast: less than 3 for lines and marks, less than 4.5 for text."""
    ratios = page.evaluate(CONTRAST)
    return {name: ratio for name, ratio in ratios.items() if ratio < (3.0 if name in ("line", "mark") else 4.5)}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast_is_sufficient_in_light_and_dark(page, dark):
    page.resize(1000, 900, dark=dark)
    assert {"text", "inside", "line", "mark", "P", "TD"} <= page.evaluate(CONTRAST).keys()
    assert faint(page) == {}


def printed(page: Any, marked: str) -> dict[str, int]:
    """Return the sheet of each heading by its text, and of what a script marks as a heading."""
    page.evaluate(marked)
    pdf = page.call("Page.printToPDF", generateTaggedPDF=True, generateDocumentOutline=True)["data"]
    entries = re.findall(rb"/Title \((.*?)\)\n/Dest \[(\d+) 0 R /XYZ", base64.b64decode(pdf), re.DOTALL)
    return {title.decode("latin-1").replace("\\", ""): int(sheet) for title, sheet in entries}


@pytest.mark.parametrize("before", [300, *(pytest.param(n, marks=pytest.mark.slow) for n in range(0, 900, 200))])
def test_headings_and_legends_are_printed_with_their_charts(page, before):
    """At any position on a sheet: so many pixels are before them."""
    page.evaluate(f"document.querySelector('main').style.paddingTop = '{before}px'")
    sheets = printed(page, CALLED)
    together = [[name for name in sheets if name.startswith(f"{part} ")] for part in ("courses", "lives", "evidence")]
    assert [len(names) for names in together] == [3, 4, 3], sheets
    for names in together:
        assert len({sheets[name] for name in names}) == 1, {name: sheets[name] for name in names}


@pytest.mark.install  # CI runs it for every change
def test_nothing_is_wider_than_a_sheet_of_paper(page):
    """Chromium prints 739 pixels on a sheet of 8.5 inches."""
    page.resize(390, 800)
    page.evaluate(SETTLED)
    page.resize(390, 800, media="print")
    assert page.evaluate(HINT) == "none"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    page.resize(739, 900, media="print")
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true; 1")
    assert page.evaluate(WIDE) <= 739


@pytest.mark.install  # CI runs it for every change
def test_a_tap_shows_the_value_of_a_mark(page):
    page.resize(390, 800)
    for part in ("arms", "courses", "lives", "evidence"):
        expected, x, y = page.evaluate(TAPPED % part)
        page.tap(x, y)
        assert page.evaluate(TOOLTIP) == expected, part
        page.tap(2, 2)
        assert page.evaluate(TOOLTIP) == "", "a tap elsewhere takes it away"
    page.tap(x, y)
    page.press("Escape")
    assert page.evaluate(TOOLTIP) == ""


def test_a_tap_on_another_chart_moves_the_value(page):
    """The tapped chart takes the focus from the one before, which must not hide the value."""
    page.resize(390, 4000)
    for part in ("arms", "courses", "arms"):
        expected, x, y = page.evaluate(TAPPED % part)
        page.call("Input.synthesizeTapGesture", x=x, y=y)
        assert page.evaluate(TOOLTIP) == expected, part


def gaps(pairs):
    """Return the vertical gaps between elements above one another; below 0: they overlap."""
    for first, second in pairs:
        if first["left"] < second["right"] and second["left"] < first["right"]:
            gap = max(first["top"], second["top"]) - min(first["bottom"], second["bottom"])
            yield gap, first["content"], second["content"]


PARTS = {"arms": 10.9, "courses": 10.9, "lives": 10.0, "evidence": 10.0}
LONG = {"test/conv": "blueprints/conv_light_and_more", "early": "layer2.block.mlp"}
ARMS = ("grown-by-a-careful-gardener", "twin", "capacity-of-it-all")


@pytest.mark.parametrize(
    ("parts", "gap", "arms", "names"),
    [(PARTS, 2.0, ("grown", "twin"), {}), (dict.fromkeys(("arms", "lives", "evidence"), 9.0), 0.0, ARMS, LONG)],
    ids=["short names", "long names"],
)
def test_text_on_a_phone_is_large_enough_and_does_not_overlap(parts, gap, arms, names, make_run, change, browser):
    run = make_run(arms=arms)
    for short, long in names.items():
        change(run, "events.jsonl", f'"{short}"', f'"{long}"')
    page = browser.open(write_report(run))
    page.resize(390, 800)
    for part, least in parts.items():
        letters = page.evaluate(LETTERS % part)
        assert min(letter["size"] for letter in letters) >= least, part
        as_wide_as_made = all(abs(letter["wide"] - 1) < 0.01 for letter in letters)
        assert names or as_wide_as_made
        assert min(letter["left"] for letter in letters) >= 0, part
        assert max(letter["right"] for letter in letters) <= 390, part
        assert [overlap for overlap in gaps(combinations(letters, 2)) if overlap[0] < gap] == []
        crossed = [
            (stroke, letter["content"])
            for stroke in page.evaluate(STROKES % part)
            for letter in letters
            if stroke["left"] < letter["right"] and stroke["right"] > letter["left"]
            and stroke["top"] < letter["bottom"] and stroke["bottom"] > letter["top"]
        ]  # fmt: skip
        assert crossed == [], part


def test_links_on_a_phone_are_as_large_as_a_thumb_and_the_headline_is_seen_at_once(page):
    page.resize(390, 844)
    small = """[...document.querySelectorAll("a, button, summary")].map((one) => one.getBoundingClientRect())
        .filter((box) => box.height && box.height < 40).length"""
    assert page.evaluate(small) == 0
    assert page.evaluate("scrollTo(0, 0), document.querySelector('.headline').getBoundingClientRect().bottom") < 422


@pytest.mark.install  # CI runs it for every change
@pytest.mark.parametrize("steps", [40, 200])
def test_no_chart_is_cut_off_on_a_phone(steps, make_run, browser):
    page = browser.open(write_report(make_run(steps=steps)))
    for width in (320, 390, 600):
        page.resize(width, 800)
        assert page.evaluate(CUT_OFF) == []
        assert page.evaluate(WIDE) <= width


def test_a_table_that_is_cut_off_says_so_and_can_be_focused_and_scrolled(page):
    page.resize(390, 800)
    tab, role, name = page.evaluate(REGION)
    assert (tab, role) == ("0", "region")
    assert name == "Arms: wider than the screen, scrolls sideways"
    style = "getComputedStyle(document.querySelector('#arms .scroll:has(table)'))"
    assert "gradient" in page.evaluate(f"{style}.backgroundImage")
    assert "wider than the screen" in page.evaluate(HINT)
    page.resize(1400, 800)
    assert page.evaluate(REGION) == [None, None, None]
    assert page.evaluate(HINT) == "none"
    page.call("Page.printToPDF")
    page.evaluate(SETTLED)
    assert page.complaints == [], "as when an observer changes what it observes immediately"


def test_the_page_of_a_killed_run_is_readable(make_run, browser):
    """Its events end in the middle of a line, without the end of an episode."""
    run = make_run(environments=4, steps=40)
    (run / "summary.json").unlink()
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(lines[: len(lines) // 2]) + lines[len(lines) // 2][:40])
    page = browser.open(write_report(run))
    assert "events not read" in page.evaluate(VISIBLE)
    for dark in (False, True):
        page.resize(390, 800, dark=dark)
        assert page.evaluate(WIDE) <= 390
        assert faint(page) == {}
    expected, x, y = page.evaluate(TAPPED % "evidence")
    page.tap(x, y)
    assert page.evaluate(TOOLTIP) == expected
    assert page.complaints == []
