"""A report tells what its run did, no more; nobody's words become markup; and it stays small."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.dom import minidom

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from esper_core import EsperError
from esper_core.leyline import RunInfo, RunOutcome
from esper_watch import plugin
from esper_watch.command import report
from esper_watch.report import page_of, read_record, write_picture, write_report
from esper_watch.report.markup import EMPTY, UNPRINTABLE, element
from esper_watch.report.scale import Scale, around

MakeRun = Callable[..., Path]

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></svg></style><script>alert(1)</script>",
    "<a href=javascript:alert(1)>x</a>",
    "]]><!--",
    "&lt;script&gt;",
    "\u202egnihtemos",
    "{{constructor.constructor('alert(1)')()}}",
]


class Seen(HTMLParser):
    """What a browser would make of it: the elements that are open, all attributes, all text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.comments: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def seen(page: str) -> Seen:
    parser = Seen()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


@given(text=st.text(), name=st.text())
def test_every_text_comes_back_as_it_was_given(text: str, name: str) -> None:
    told = seen(element("p", element("b", text, title=name), None).render())
    assert told.tags == ["p", "b"]
    assert told.text == UNPRINTABLE.sub("\ufffd", text).replace("\r\n", "\n").replace("\r", "\n") or told.text == text
    assert told.attributes == [("title", UNPRINTABLE.sub("\ufffd", name))]


@pytest.mark.parametrize("name", ["onclick", "on_load", "a b", "", "1x", 'x"'])
def test_no_attribute_runs_anything_and_no_name_is_markup(name: str) -> None:
    with pytest.raises(ValueError, match="no element and no attribute"):
        element("p", **{name: "x"})


@pytest.mark.parametrize("word", HOSTILE)
def test_names_of_plugins_and_files_are_told_and_do_nothing(word: str, make_run: MakeRun) -> None:
    page = write_report(make_run(environments=2, steps=10, word=word)).read_text(encoding="utf-8")
    told = seen(page)
    assert told.tags.count("script") == 1
    assert told.tags.count("style") == 1
    assert not {"img", "a href", "iframe", "object", "link", "base", "form"} & set(told.tags)
    assert [
        name for name, _ in told.attributes if name.startswith("on") or name in ("src", "style", "xlink:href")
    ] == []
    assert {value[:1] for name, value in told.attributes if name == "href"} == {"#"}
    assert told.comments == []
    readable = UNPRINTABLE.sub("\ufffd", word)
    for said in ("grown", "mind the gap", "More", "of it", "own", "surge", "esper-test", "plugins.yaml", "loss"):
        assert f"{said}{readable}" in told.text or f"{said} {readable}" in told.text, said
    assert re.search(r"https?://", re.sub(r"<pre.*?</pre>", "", page)) is None


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_stays_what_it_is(kind: str, make_run: MakeRun, tmp_path: Path) -> None:
    run, place, behind = make_run(environments=2, steps=4), tmp_path / "out.html", tmp_path / "behind.html"
    if kind == "pipe":
        os.mkfifo(place)
        with pytest.raises(EsperError, match="a device or a pipe"):
            write_report(run, place)
        assert place.is_fifo()
    else:
        place.symlink_to(behind)
        write_report(run, place)
        assert place.is_symlink()
        assert behind.read_text().startswith("<!doctype html>")


def test_nothing_is_drawn_of_what_is_not_known_yet(make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=40, arms=("grown", "twin", "capacity"))
    (run / "summary.json").unlink()
    late = re.compile(r'"step":(3[6-9])\b|"type":"(episode|update|run)-finished"')
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    known = [line for line in lines if not late.search(line) and ("capacity" not in line or "run-started" in line)]
    (run / "events.jsonl").write_text("".join(known))
    record = read_record(run)
    assert 0.55 < record.share_done < 0.65, "two of three arms, 36 of 40 steps"
    assert record.steps_of((0, record.arms[0], 0)) == 36
    ends = re.findall(r"from step \d+ to step (\d+)", page_of(record))
    assert max(map(int, ends)) == 36


def test_a_run_without_an_end_has_no_verdict(make_run: MakeRun) -> None:
    run = make_run(environments=4, steps=20)
    (run / "summary.json").unlink()
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(lines[: len(lines) // 2]) + lines[-2][:40])
    told = seen(page_of(read_record(run)))
    assert re.search(
        r"It did not end, as far as its events tell: [^.]*\. 4\d % of it was trained; there is no verdict", told.text
    )
    assert "was better" not in told.text
    assert "How it went" in told.text
    assert "The seeds' lives" in told.text
    assert "The arms" not in told.text, "no episode ended"


def test_a_run_that_has_just_begun_is_told_too(make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4)
    (run / "summary.json").unlink()
    first = (run / "events.jsonl").read_text().splitlines(keepends=True)[0]
    for text in ("", first):
        (run / "events.jsonl").write_text(text)
        assert "0 % of it was trained" in seen(page_of(read_record(run))).text


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"results": 3, "timing": {}}', '{"results": {}, "timing": {}}', "\x00"]
)
def test_a_summary_that_is_none_is_done_without(text: str, make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4)
    for name in ("summary.json", "manifest.json"):
        (run / name).write_text(text)
    told = seen(page_of(read_record(run))).text
    assert "There is no verdict: the run came to its end, but its summary.json cannot be read." in told
    assert "single arm" not in told


def test_where_nothing_was_shown_the_page_says_so(make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4)
    told = (
        (run / "summary.json")
        .read_text()
        .replace('"better", "why": null', '"no difference shown", "why": "too few seeds"')
    )
    (run / "summary.json").write_text(told)
    text = seen(page_of(read_record(run))).text
    assert "No difference was shown between networks that grew and the same networks that never did: there were" in text
    assert "too few networks to show one" in text
    assert "grown against twin: no difference shown. Measured: +30.0 points" in text
    assert "A verdict takes 8 environment seeds at least, a network of each arm for each; here there are 2." in text


def test_figures_that_are_no_numbers_are_unknown(make_run: MakeRun) -> None:
    run = make_run(environments=3, steps=6)
    told = (run / "events.jsonl").read_text()
    for name in ("test_metric", "validation_metric"):
        told = re.sub(rf'"{name}":[-0-9.e]+', f'"{name}":"NaN"', told, count=3)
    (run / "events.jsonl").write_text(told)
    page = page_of(read_record(run))
    assert "unknown" in seen(page).text
    assert [value for value in re.findall(r'="([^"]*)"', page) if "nan" in re.split(r"[ ,]", value)] == []


def test_what_was_seen_of_a_seed_in_the_step_that_decided_on_it_is_told(make_run: MakeRun) -> None:
    first, second = read_record(make_run(environments=1, steps=40)).lives
    assert first.shown is not None
    assert second.shown is not None
    assert (first.stages[-1][0], first.shown.step) == (8, 8), "pruned on what was measured then"
    assert (second.stages[-1][0], second.shown.step) == (32, 32), "kept on what was measured then"


def test_the_headline_hides_no_harm_and_claims_no_growth(make_run: MakeRun) -> None:
    run = make_run(environments=8, steps=20, arms=("grown", "twin", "greedy"))
    told = json.loads((run / "summary.json").read_text())
    (better,) = told["results"]["comparisons"]
    told["results"]["comparisons"].append({**better, "a": "greedy", "verdict": "worse", "difference": -0.2})
    (run / "summary.json").write_text(json.dumps(told))
    text = seen(page_of(read_record(run))).text
    assert "Growing helped: grown ended better" in text
    assert "Growing did harm: greedy ended worse" in text

    told["results"]["comparisons"] = [{**better, "verdict": "no difference shown", "why": "interval"}]
    (run / "summary.json").write_text(json.dumps(told))
    events = (run / "events.jsonl").read_text().replace('"fossils":1', '"fossils":0')
    (run / "events.jsonl").write_text(events)
    assert "Nothing was kept: every network ended with the parts it began with" in seen(page_of(read_record(run))).text


def test_only_what_grew_is_called_good_or_bad_by_a_colour(make_run: MakeRun) -> None:
    """That the twin is worse than a control by capacity is told, and is no bad news of anything that grew."""
    run = make_run(environments=8, steps=20, arms=("grown", "twin", "capacity"))
    told = json.loads((run / "summary.json").read_text())
    (better,) = told["results"]["comparisons"]
    worse = {"verdict": "worse", "difference": -0.2}
    told["results"]["comparisons"] += [
        {**better, **worse, "a": "twin", "b": "capacity"},
        {**better, "a": "capacity", "b": "twin"},
        {**better, **worse, "a": "grown", "b": "capacity"},
    ]
    (run / "summary.json").write_text(json.dumps(told))
    found = re.findall(r'<li class="(better|worse|neither)">(\w+ was \w+ than \w+)', page_of(read_record(run)))
    assert found == [
        ("better", "grown was better than twin"),
        ("worse", "grown was worse than capacity"),
        ("neither", "twin was worse than capacity"),
        ("neither", "capacity was better than twin"),
    ]


def test_what_the_clock_calls_shadow_is_told_in_words(make_run: MakeRun) -> None:
    (time_part,) = re.findall(r'<section id="time">(.*?)</section>', page_of(read_record(make_run())), flags=re.DOTALL)
    assert time_part.count("shadow (seeds learning in isolation)") == 5, (
        "the bar, its drawing's words twice, legend, and table"
    )


def test_what_plugins_say_stands_where_the_pages_say(make_run: MakeRun) -> None:
    parts = re.findall(r'<section id="([\w-]+)">', page_of(read_record(make_run())))
    assert parts[parts.index("governor") :] == ["governor", "plugin-0", "provenance"]


def test_the_same_run_gives_the_same_page(make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4)
    assert page_of(read_record(run)) == page_of(read_record(run))


def test_a_page_of_a_usual_run_is_small(make_run: MakeRun) -> None:
    run = make_run(arms=("grown", "twin", "capacity"))
    assert write_report(run).stat().st_size < 250_000, "500 kB are the bound"


def test_a_page_of_a_large_run_is_not_large(make_run: MakeRun) -> None:
    run = make_run(environments=64, steps=200, arms=("grown", "twin", "capacity"))
    began = time.perf_counter()
    path = write_report(run)
    assert path.stat().st_size < 5_000_000
    assert time.perf_counter() - began < 30


@pytest.mark.parametrize("word", ["", *HOSTILE])
def test_a_picture_stands_alone_and_nobodys_words_do_anything_in_it(
    word: str, make_run: MakeRun, tmp_path: Path
) -> None:
    run, path = make_run(environments=4, steps=20, word=word), tmp_path / "growing.svg"
    answer = CliRunner().invoke(report, [str(run), "--picture", str(path)])
    assert (answer.exit_code, answer.output) == (0, f"{path}\n")
    text = path.read_text(encoding="utf-8")
    drawn = minidom.parseString(text)
    assert drawn.documentElement is not None
    assert drawn.documentElement.tagName == "svg"
    tags = {one.tagName for one in drawn.getElementsByTagName("*")}
    assert tags <= {
        "svg",
        "style",
        "g",
        "rect",
        "line",
        "polyline",
        "polygon",
        "circle",
        "path",
        "text",
        "title",
        "desc",
    }
    assert not (run / "report.html").exists()
    both = CliRunner().invoke(report, [str(run), "--picture", str(path), "--out", str(path)])
    assert both.exit_code == 2


def test_a_run_without_a_step_has_an_empty_picture(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(environments=2, steps=4)
    (run / "events.jsonl").write_text("")
    assert minidom.parseString(write_picture(run, tmp_path / "x.svg").read_text()).getElementsByTagName("text") == []


def test_the_command_says_where_the_page_is(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(environments=2, steps=4)
    answer = CliRunner().invoke(report, [str(run)])
    assert (answer.exit_code, answer.output) == (0, f"{run / 'report.html'}\n")
    answer = CliRunner().invoke(report, [str(run), "--out", str(tmp_path / "other.html")])
    assert (tmp_path / "other.html").read_text() == (run / "report.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["20261121-101512-quiet-otter", "other.html"]


def test_a_run_is_found_by_the_words_of_its_name(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(environments=2, steps=4)
    (tmp_path / "runs").mkdir()
    manifest = {"format": 1, "id": run.name, "status": "done", "started": "2026-11-21T10:15:12+00:00"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    run.rename(tmp_path / "runs" / run.name)
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(report, ["quiet-otter"])
    assert (answer.exit_code, answer.output) == (0, f"runs/{run.name}/report.html\n")
    assert isinstance(CliRunner().invoke(report, ["loud-otter"]).exception, EsperError)


@pytest.mark.parametrize(("out", "said"), [("", "it is a folder"), ("not/there.html", "No such file or directory")])
def test_a_place_where_nothing_can_be_written_is_told(out: str, said: str, make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(EsperError, match=said) as caught:
        write_report(make_run(environments=2, steps=4), tmp_path / out)
    assert caught.value.problems[0].code == "E410"


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(EsperError, match="no run directory") as caught:
        write_report(tmp_path)
    assert caught.value.problems[0].code == "E420"


def outcome_of(path: Path) -> tuple[RunInfo, RunOutcome]:
    run = RunInfo(path.name, path, ("grown", "twin"), rounds=1, environments=2, steps=4, device="cpu")
    return run, RunOutcome("failed", reason="its folder is gone")


@pytest.mark.parametrize("left", [False, True], ids=["folder", "events"])
def test_of_a_run_whose_folder_was_taken_away_nothing_is_said(left: bool, make_run: MakeRun) -> None:
    """The run itself tells it: whoever writes reports is not to blame."""
    path = make_run(environments=2, steps=4)
    (path / "events.jsonl").unlink() if left else shutil.rmtree(path)
    plugin.esper_run_finished(*outcome_of(path))
    assert not (path / "report.html").exists()


def test_of_a_run_that_is_there_it_is_said_why_it_has_no_report(make_run: MakeRun) -> None:
    path = make_run(environments=2, steps=4)
    (path / "report.html").mkdir()
    with pytest.raises(EsperError, match="it is a folder"):
        plugin.esper_run_finished(*outcome_of(path))


@pytest.mark.parametrize("name", ["x.png", "x", "x.html"])
def test_a_picture_is_an_svg_and_is_called_so(name: str, make_run: MakeRun, tmp_path: Path) -> None:
    answer = CliRunner().invoke(report, [str(make_run(environments=2, steps=4)), "--picture", str(tmp_path / name)])
    assert answer.exit_code == 2
    told = " ".join(answer.stderr.replace("│", " ").split())
    assert f"a file that ends with .svg, received {tmp_path / name}" in told
    assert not (tmp_path / name).exists()


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6), st.floats(1, 1e3))
@example([1.7e308, -1.7e308, 0.5], 100.0)
def test_every_number_finds_its_place_on_a_scale(numbers: list[float], width: float) -> None:
    scale = around(numbers, start=10.0, end=10.0 + width)
    finite = [number for number in numbers if abs(number) < 1e150]
    assert all(10.0 - 1e-6 <= scale(number) <= 10.0 + width + 1e-6 for number in finite)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_within(low: float, width: float) -> None:
    ticks = Scale(low, low + width, 0.0, 1.0).ticks()
    assert len(ticks) <= 12
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in ticks)
