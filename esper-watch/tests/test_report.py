"""Reports: what they say of a run, and how they are written."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from esper_core import EsperError
from esper_core.leyline import RunInfo, RunOutcome
from esper_watch import plugin
from esper_watch.report import read_report, report_page, write_report
from tests.support.html_pages import Page


def compare_also(run: Path, *more: dict[str, object]) -> None:
    """Add comparisons to a summary: the one that it has, with these changes."""
    summary = json.loads((run / "summary.json").read_text())
    comparisons = summary["results"]["comparisons"]
    summary["results"]["comparisons"] += [{**comparisons[0], **changes} for changes in more]
    (run / "summary.json").write_text(json.dumps(summary))


def test_a_pipe_is_refused_and_a_symbolic_link_is_kept_but_not_followed_in_the_run_directory(make_run, tmp_path):
    run, pipe, link, behind = make_run(environments=2, steps=4), *(tmp_path / name for name in ("pipe", "link", "page"))
    os.mkfifo(pipe)
    with pytest.raises(EsperError, match="a device or a pipe"):
        write_report(run, pipe)
    assert pipe.is_fifo()
    link.symlink_to(behind)
    write_report(run, link)
    assert link.is_symlink()
    assert behind.read_text().startswith("<!doctype html>")
    behind.write_text("mine")
    (run / "report.html").symlink_to(behind)
    assert not write_report(run).is_symlink()
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert behind.read_text() == "mine"


def test_an_unfinished_run_is_drawn_up_to_its_last_step(make_run, change):
    run = make_run(environments=2, steps=40, arms=("grown", "twin", "capacity"))
    (run / "summary.json").unlink()
    change(run, "events.jsonl", r'.*("step":3[6-9]\b|"type":"(episode|update|run)-finished").*\n', "")
    change(run, "events.jsonl", r'.*"arm":"capacity".*\n', "")
    record = read_report(run)
    assert 0.55 < record.history.share_done < 0.65, "two of three arms, 36 of 40 steps"
    assert record.history.steps_of((0, record.history.arms[0], 0)) == 36
    ends = re.findall(r"from step \d+ to step (\d+)", report_page(record))
    assert max(map(int, ends)) == 36


def test_a_run_without_steps_has_a_report(make_run):
    run = make_run(environments=2, steps=4)
    (run / "summary.json").unlink()
    first = (run / "events.jsonl").read_text().splitlines(keepends=True)[0]
    for text in ("", first):
        (run / "events.jsonl").write_text(text)
        assert "0 % of the training is done" in Page(report_page(read_report(run))).text


def test_the_headline_says_that_no_difference_was_shown(make_run, change):
    run = make_run(environments=2, steps=4)
    change(run, "summary.json", '"better", "why": null', '"no difference shown", "why": "too few seeds"')
    text = Page(report_page(read_report(run))).text
    headline = "No difference was shown between networks with growth and the same networks without"
    assert f"{headline}: there were too few networks." in text
    assert "grown against twin: no difference shown. Measured: +30.0 points" in text
    assert "A verdict needs 8 networks of each arm" in text
    assert "there are 2." in text


def test_figures_that_are_not_finite_are_unknown(make_run, change):
    run = make_run(environments=3, steps=6)
    for name in ("test_metric", "validation_metric"):
        change(run, "events.jsonl", rf'"{name}":[-0-9.e]+', f'"{name}":"NaN"', count=3)
    page = report_page(read_report(run))
    assert "unknown" in Page(page).text
    assert [value for value in re.findall(r'="([^"]*)"', page) if "nan" in re.split(r"[ ,]", value)] == []


def test_the_headline_reports_harm_and_claims_no_growth_where_nothing_was_kept(make_run, change):
    run = make_run(environments=8, steps=20, arms=("grown", "twin", "greedy"))
    compare_also(run, {"a": "greedy", "verdict": "worse", "difference": -0.2})
    text = Page(report_page(read_report(run))).text
    assert "Growing helped: grown ended better" in text
    assert "Growing hurt: greedy ended worse" in text
    change(run, "summary.json", '"(better|worse)", "why": null', '"no difference shown", "why": "interval"')
    change(run, "events.jsonl", '"fossils":1', '"fossils":0')
    text = Page(report_page(read_report(run))).text
    assert "Nothing was kept: every network ended with the parts it started with" in text


def test_controls_are_neither_green_nor_red(make_run):
    """A twin that is worse than the static control says nothing about growth."""
    run = make_run(environments=8, steps=20, arms=("grown", "twin", "capacity"))
    worse = {"verdict": "worse", "difference": -0.2, "b": "capacity"}
    compare_also(run, {**worse, "a": "twin"}, {"a": "capacity"}, {**worse, "a": "grown"})
    sentences = re.findall(r'<li class="(better|worse|neither)">(\w+ was \w+ than \w+)', report_page(read_report(run)))
    of_grown = [("better", "grown was better than twin"), ("worse", "grown was worse than capacity")]
    of_controls = [("neither", "twin was worse than capacity"), ("neither", "capacity was better than twin")]
    assert sentences == of_grown + of_controls


@pytest.mark.parametrize(("out", "reason"), [("", "it is a folder"), ("not/there.html", "No such file or directory")])
def test_a_file_that_cannot_be_written_is_an_error(out, reason, make_run, tmp_path):
    with pytest.raises(EsperError, match=reason) as caught:
        write_report(make_run(environments=2, steps=4), tmp_path / out)
    assert caught.value.problems[0].code == "E410"


def outcome_of(path: Path) -> tuple[RunInfo, RunOutcome]:
    run = RunInfo(path.name, path, ("grown", "twin"), rounds=1, environments=2, steps=4, device="cpu")
    return run, RunOutcome("failed", reason="its folder is gone")


@pytest.mark.parametrize("left", [False, True], ids=["folder", "events"])
def test_the_hook_is_silent_if_the_folder_was_removed(left, make_run):
    path = make_run(environments=2, steps=4)
    (path / "events.jsonl").unlink() if left else shutil.rmtree(path)
    plugin.esper_run_finished(*outcome_of(path))
    assert not (path / "report.html").exists()


def test_the_hook_raises_if_the_report_cannot_be_written(make_run):
    path = make_run(environments=2, steps=4)
    (path / "report.html").mkdir()
    with pytest.raises(EsperError, match="it is a folder"):
        plugin.esper_run_finished(*outcome_of(path))
