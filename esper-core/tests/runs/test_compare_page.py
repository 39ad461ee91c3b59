"""What ``esper compare --html`` writes: a page that obeys no name, loads nothing, and says what the text says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from esper_core.leyline import Metric

NOISE = [0.30, 0.10, 0.50, 0.20, 0.40, 0.35, 0.15, 0.45]
BETTER = [value + 0.2 + 0.002 * place for place, value in enumerate(NOISE)]
OTTER = "20261121-101512-quiet-otter"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'--><svg/onload=alert(1)>",
    "</title></style><iframe src=//x>",
    "&lt;b&gt;\u202e\x1b[2J",
]
TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "br", "strong", "div", "table", "thead",
    "tbody", "tr", "th", "td", "svg", "rect", "line", "circle",
}  # fmt: skip


class Page(HTMLParser):
    """The elements of a page, with their attributes, the text in them, and whether each was closed."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page_of(esper, tmp_path: Path, *arguments: str | Path) -> Page:
    file = tmp_path / "page.html"
    answer = esper("compare", *arguments, "--html", file)
    assert (answer.status, answer.err.splitlines()[-1]) == (0, f"Written: {file}")
    return Page(file.read_text(encoding="utf-8"))


def test_the_page_says_what_the_text_says(esper, write_run, tmp_path):
    write_run(OTTER, {"grown": BETTER, "twin": NOISE}, margin=0.01)
    page = page_of(esper, tmp_path, OTTER)
    for told in ("grown is better than twin", "51.3 %", "39.1 % to 63.5 %", "+20.7 points", "+20.3 to +21.1", "0.0078"):
        assert told in page.text
    drawings = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(drawings) == 3
    assert all(one["role"] == "img" for one in drawings)
    assert "grown against twin: +20.7 points, +20.3 to +21.1" in page.texts
    assert "".join(page.texts).count("grown: 51.3 %, 39.1 % to 63.5 %") == 1


def test_the_text_and_the_json_are_as_they_are_without_a_page(esper, write_run, tmp_path):
    write_run(OTTER, {"grown": BETTER, "twin": NOISE})
    for more in ([], ["--json"]):
        with_page = esper("compare", OTTER, *more, "--html", tmp_path / "a.html")
        assert with_page.out == esper("compare", OTTER, *more).out


def test_no_name_becomes_markup(esper, write_run, tmp_path):
    arms = {f"{hostile}{number}": BETTER if number else NOISE for number, hostile in enumerate(HOSTILE)}
    metric = Metric(HOSTILE[0], "down", HOSTILE[1])
    for number, name in enumerate(("<b>&'\"", "<script>")):
        write_run(name, arms, metric=metric, first=number, plugins=[{"package": HOSTILE[2], "version": HOSTILE[3]}])
    page = page_of(esper, tmp_path, "<b>&'\"", "<script>")
    assert {tag for tag, _ in page.elements} <= TAGS
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "xlink:href")]
    for hostile in HOSTILE[:4]:
        assert hostile in page.text
    source = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not set("\x1b\u202e") & set(source)
    assert "less is better" in page.text


def test_the_page_loads_nothing_and_may_not(esper, write_run, tmp_path):
    write_run(OTTER, {"grown": BETTER, "twin": NOISE})
    page = page_of(esper, tmp_path, OTTER)
    policies = [one["content"] for tag, one in page.elements if one.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    source = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r"https?:|url\(|@import|<script|<link", source) is None
    assert len(source) < 10_000


@pytest.mark.parametrize(
    "arms",
    [
        {"a": [0.5], "b": [0.6]},
        {"a": [float("nan"), *NOISE[1:]], "b": NOISE},
        {"a": NOISE, "b": NOISE},
        {"a": [1e150, -1e150] * 4, "b": NOISE},
        {"alone": NOISE},
    ],
)
def test_figures_that_are_unknown_or_equal_or_enormous_are_drawn_as_far_as_they_are(esper, write_run, tmp_path, arms):
    write_run(OTTER, arms)
    page = page_of(esper, tmp_path, OTTER)
    numbers = [
        float(value)
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if tag in ("line", "circle", "rect") and name in ("x1", "x2", "cx", "x") and value is not None
    ]
    assert all(0 <= one <= 220 for one in numbers)
    assert "nan" not in page.text.split()


def contrast(one: str, other: str) -> float:
    def brightness(colour: str) -> float:
        full = colour if len(colour) == 7 else "#" + "".join(2 * sign for sign in colour[1:])
        parts = [int(full[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


def test_what_is_said_and_drawn_stands_out_in_light_and_in_dark():
    from esper_core.cli.page import STYLE

    themes = [dict(re.findall(r"--(\w+):(#\w+)", block)) for block in re.findall(r":root\{(.*?)\}", STYLE, re.S)]
    assert len(themes) == 2
    for theme in themes:
        assert contrast(theme["ink"], theme["paper"]) > 7
        assert contrast(theme["dim"], theme["paper"]) > 4.5
        assert contrast(theme["mark"], theme["paper"]) > 4.5
        assert contrast(theme["mark"], theme["band"]) > 3


def test_a_page_is_written_to_a_file_and_to_nothing_else(esper, write_run, tmp_path):
    write_run(OTTER, {"grown": BETTER, "twin": NOISE})
    folder = tmp_path / "folder.html"
    folder.mkdir()
    answer = esper("compare", OTTER, "--html", folder)
    assert answer.status == 2
    assert "is a folder: give a file in it" in answer.err
    answer = esper("compare", "--html", OTTER, OTTER)
    assert answer.status == 2
    assert f"expected a file that ends with .html, received {OTTER}" in answer.err
    answer = esper("compare", OTTER, "--html", tmp_path / "gone" / "page.html")
    assert (answer.status, answer.out) == (1, "")
    assert "E410 cannot write" in answer.err
    assert "--runs-dir" not in answer.err
    assert list(folder.iterdir()) == []
