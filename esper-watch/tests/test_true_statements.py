"""What pages say is true: of runs on a branch and in the shadow, still being read, of loops, with lost seeds."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline import Cause, Evidence, Finding, Opinion, Reason
from esper_watch.growth import picture
from esper_watch.headline import headline
from esper_watch.history import read_history
from esper_watch.report import read_report, report_page, write_report
from esper_watch.web import followed_run
from esper_watch.web.fragments import LivePage
from tests.support.html_pages import TOOLTIP, TRAINING_MARK, Page, typed

KEPT = {
    "branch": "change no curve until one is kept: up to then a network is what it would be without growth.",
    "shadow": "change no curve until one is blended in: up to then a network is what it would be without growth.",
}


def incubating(run: Path, incubation: str) -> Path:
    """Write how the seeds of a run incubated."""
    (run / "config.yaml").write_text(f"task: mnist1d\ngrowth:\n  incubation: {incubation}\n")
    return run


@pytest.mark.parametrize("incubation", ["branch", "shadow"])
def test_a_page_says_until_when_a_network_equals_its_twin(incubation, make_run):
    """Below the curves and below the lives of seeds; where the configuration is missing it says what holds of each."""
    run = incubating(make_run(environments=2, steps=40), incubation)
    text = Page(report_page(read_report(run))).text
    (other,) = KEPT.keys() - {incubation}
    assert (text.count(KEPT[incubation]), text.count(KEPT[other])) == (2, 0)
    (run / "config.yaml").unlink()
    text = Page(report_page(read_report(run))).text
    assert [text.count(sentence) for sentence in KEPT.values()] == [2, 2]


@pytest.mark.parametrize("incubation", ["branch", "shadow"])
def test_a_line_to_a_seed_is_whole_once_the_seed_acts_on_its_network(incubation, make_run):
    """On a branch that is when it is kept; until then its strength is that on its branch, and is not shown."""
    run = incubating(make_run(environments=2, steps=40), incubation)
    history, seed = read_history(run), 0
    drawn = picture(history, "grown", seed, history.seeds_by_environment(0, "grown")[seed], incubation)
    (lane,) = drawn.data["lanes"]
    acting = {frame.stage for frame in lane.frames if frame.alpha}
    assert acting >= ({"fossilised", "blending", "holding"} if incubation == "shadow" else {"fossilised"})
    assert incubation == "shadow" or acting.isdisjoint({"blending", "holding"})
    assert any("blending 50" in typed(frame.state) for frame in lane.frames) == (incubation == "shadow")
    text = Page(report_page(read_report(run))).text
    assert ("the thicker, the more the seed acts" in text) == (incubation == "shadow")


def test_lost_seeds_are_told_below_the_headline(make_run):
    run = make_run(environments=2, steps=40)
    sentence = "Lost 1 of 5 seeds of test/conv, from esper-test: it raised ValueError: no."
    report = report_page(read_report(run))
    assert sentence in [typed(text) for text in re.findall(r'<p class="problem">(.*?)</p>', report)]


def test_nothing_is_said_of_a_run_before_all_its_events_are_read(make_run, monkeypatch):
    """A finished run is not "still running", and no section is drawn of half a run, nor again at every look."""
    monkeypatch.setattr(followed_run, "CHUNK", 4096)
    run = make_run(environments=2, steps=40)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": "done"}))
    page = LivePage(run)
    (head,) = page.fragments(0.0)
    assert re.search(r"Reading events: \d+ % of \d+ MB\. The run is done\. The page follows", Page(head.html).text)
    assert "still" not in head.html
    assert len(page.fragments()) > 5


def test_a_torn_last_line_does_not_keep_a_killed_run_from_being_shown(make_run):
    run = make_run(environments=2, steps=4)
    with (run / "events.jsonl").open("a") as file:
        file.write('{"type":')
    page = LivePage(run)
    assert (len(page.fragments(60.0)) > 5, page.followed.is_behind) == (True, False)


def own_loop(run: Path, change: Any) -> Path:
    """Change a run into that of a Gardener: one arm, one network, no twin, and another program."""
    accuracy = r'"name": ?"accuracy", ?"direction": ?"up", ?"unit": ?"%"'
    loss = '"name":"loss","direction":"down","unit":""'
    for name, pattern, text in (
        ("events.jsonl", r'.*"arm":"twin".*\n', ""),
        ("events.jsonl", r'"arms":\["grown","twin"\]', '"arms":["grown"]'),
        ("events.jsonl", accuracy, loss),
        ("events.jsonl", '"parameters":572', '"parameters":10145'),
        ("summary.json", r'"comparisons": \[.*?\]', '"comparisons": []'),
        ("summary.json", accuracy, loss),
        ("summary.json", '"train": 38.0', '"train": 4.0'),
        ("summary.json", '"other": 2.0', '"other": 36.0'),
        ("manifest.json", "/usr/bin/esper", "python"),
    ):
        change(run, name, pattern, text)
    return run


def test_the_page_of_a_loop_says_what_it_kept_and_what_that_changed(make_run, change):
    run = own_loop(make_run(environments=1, steps=40), change)
    report = read_report(run)
    course = read_history(run).courses(0, "grown", 1)[0]
    before, after = (f"{course[step]:.3g}" for step in (32, 33))
    change_of_loss = f"validation loss {before} before, {after} a step later."
    assert headline(report) == f"conv was kept in slot early after step 33: {change_of_loss}"
    text = Page(report_page(report)).text
    assert "+9,645 parameters (20.3 times as many)" in text
    change(run, "events.jsonl", r'.*"now":"fossilised".*\n', "")
    assert headline(read_report(run)).startswith("Nothing was kept in this loop")


REST = "new Promise((tell) => setTimeout(tell, 150))"


@pytest.mark.install  # CI runs it for every change
@pytest.mark.parametrize("move", ["scrollBy(0, 600)", "location.hash = '#step=8'"])
def test_a_tooltip_goes_when_what_it_is_about_goes(move, make_run, browser):
    page = browser.open(write_report(make_run(environments=2, steps=40)))
    page.resize(1000, 600)
    position = page.evaluate(TRAINING_MARK)
    page.evaluate(REST)
    page.point(*position)
    assert "training in isolation" in page.evaluate(TOOLTIP)
    page.evaluate(f"{move}; {REST}")
    assert page.evaluate(TOOLTIP) == ""


@pytest.mark.install  # CI runs it for every change
def test_a_tooltip_of_the_keys_stays_with_its_mark_while_the_page_scrolls(make_run, browser):
    page = browser.open(write_report(make_run(environments=2, steps=40)))
    page.resize(1000, 900)
    page.evaluate("document.querySelector('#courses svg').focus()")
    page.press("ArrowRight")
    page.evaluate(f"scrollBy(0, 40); {REST}")
    assert page.evaluate(TOOLTIP).startswith("after 1 step")
    page.evaluate(f"scrollTo(0, document.body.scrollHeight); {REST}")
    assert page.evaluate(TOOLTIP) == ""


UNSHOWN = Opinion(Finding.NOT_SHOWN, evidence=Evidence(800, -0.02, 0.03, 0.01, -0.03, 0.07, 0.05, 3), price=0.005)
GATED = json.dumps(asdict(Reason(Cause.POLICY, "", "fossilisation", UNSHOWN)), separators=(",", ":"))
"""A reason with the last conclusion of a gate, as events have it, with negative numbers."""

STRAYS = {
    "another word for kept": r"[Ff]ossili",
    "another word for a network": r"(?<!called an )\b[Ee]nv(?:ironment)?s?\b",
    "a hyphen as a minus": r"(?<![\w-])-\d",
    "more than four digits": r"\d\.\d{5,}",
    "a duration in large seconds": r"\b\d{3,}(?:\.\d+)?.s\b",
}
BREAKS = r"\d (?:%|points|ms|min|s|h|MB|steps/s)(?![\w])"
"""A number that a line could end behind, without its unit."""


def test_every_view_has_one_vocabulary_and_one_way_to_write_figures(make_run, change, esper_cli, tmp_path):
    """Page, comparison, and all that commands print of a run; on pages units stay with numbers."""
    run = make_run(environments=8, steps=40, arms=("grown", "twin", "capacity"))
    change(run, "events.jsonl", r'("now":"(?:pruned|fossilised)".*"reason":)\{[^}]*\}', rf"\g<1>{GATED}")
    change(run, "summary.json", '"difference": 0.3, "ci_low": 0.28', '"difference": -0.3, "ci_low": -0.28')
    (run / "config.yaml").unlink()  # which would be shown as it is
    views = {"page": Page(report_page(read_report(run))).source}
    assert re.findall(BREAKS, views["page"]) == []
    for command in (["runs", "show"], ["runs", "show", "--seeds"]):
        answer = esper_cli(*command, str(run))
        assert answer.status == 0, answer.err
        views[" ".join(command)] = re.sub(r"/\S+", "", answer.out)
    for name, text in views.items():
        strays = {what: re.findall(stray, text) for what, stray in STRAYS.items()}
        assert {what: hits for what, hits in strays.items() if hits} == {}, name
