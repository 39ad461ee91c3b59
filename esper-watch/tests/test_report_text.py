"""The words of a report: the headline, the hints, and one meaning for each term."""

import copy
import json
import math
import re
from dataclasses import asdict
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings, strategies as st

from esper_core.leyline import Cause, Evidence, Finding, Lack, Opinion, Reason
from esper_watch.report import read_report, report_page
from tests.support.html_pages import typed


def text_of(run: Path) -> str:
    """Return the text of the page with that of its marks, without script and style."""
    page = re.sub(r"<(script|style)>.*?</\1>", "", report_page(read_report(run)), flags=re.DOTALL)
    return typed(unescape(re.sub(r"<[^>]+>", "\n", page)))


def headline_of(run: Path) -> str:
    (headline,) = re.findall(r'<p class="headline">(.*?)</p>', report_page(read_report(run)))
    return typed(unescape(headline))


def section_of(run: Path, part: str, end: str = "</section>") -> str:
    (inside,) = re.findall(rf'<section id="{part}">(.*?){end}', report_page(read_report(run)), flags=re.DOTALL)
    return str(inside)


def marks_of(run: Path, part: str) -> list[str]:
    return [typed(unescape(title)) for title in re.findall(r"<title>(.*?)</title>", section_of(run, part))]


def rows_of(run: Path, part: str) -> list[list[str]]:
    """Return the rows of all tables in a section."""
    rows = re.findall(r"<tr>\s*(<td.*?)</tr>", section_of(run, part), flags=re.DOTALL)
    return [[typed(unescape(cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]


def killed(run: Path) -> Path:
    """Change the run as if it was killed while it wrote a line."""
    (run / "summary.json").unlink()
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(lines[: len(lines) // 2]) + lines[-2][:40])
    manifest = {"format": 1, "id": run.name, "status": "running", "started": "2026-11-21T10:15:12+00:00"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "latest").write_text("000002")
    return run


def stopped(run: Path, status: str, reason: str) -> Path:
    """Change how the run ended."""
    (run / "summary.json").unlink()
    end = json.dumps({"type": "run-finished", "v": 2, "status": status, "reason": reason})
    lines = (run / "events.jsonl").read_text().splitlines()[:-20]
    (run / "events.jsonl").write_text("\n".join([*lines, end]) + "\n")
    return run


def test_a_missing_summary_is_named_with_a_way_to_get_it(make_run):
    run = make_run(environments=2, steps=4, arms=("grown", "twin", "capacity"))
    summary = (run / "summary.json").read_text()
    (run / "summary.json").write_text(summary[: len(summary) // 2])
    assert headline_of(run).startswith("There is no verdict: cannot read summary.json: it is not JSON")
    assert f"To reproduce these numbers:  esper run runs/{run.name}" in text_of(run)
    for name in ("summary.json", "config.yaml", "manifest.json"):
        (run / name).unlink()
        missing = "summary.json" if (run / "manifest.json").exists() else "manifest.json"
        assert headline_of(run) == f"There is no verdict: {missing} is missing."
    assert "Copy manifest.json and summary.json" in text_of(run)


def test_a_run_with_one_arm_has_nothing_to_compare(make_run, change):
    run = make_run(environments=2, steps=4)
    change(run, "events.jsonl", r'.*"arm":"twin".*\n', "")
    change(run, "events.jsonl", r'"arms":\["grown","twin"\]', '"arms":["grown"]')
    change(run, "summary.json", r'"comparisons": \[.*?\]', '"comparisons": []')
    assert headline_of(run) == "The run had one arm, so there is nothing to compare."
    (run / "summary.json").unlink()
    assert headline_of(run) == "The run had one arm, so there is nothing to compare."


def test_networks_are_numbered_and_many_are_folded_up(make_run):
    text = text_of(make_run(environments=9, steps=20))
    phrases = ("9 pairs of networks", "9 networks each", "grown, network 3: ", "network 8", "1 more network of grown")
    assert [phrase for phrase in phrases if phrase not in text] == []


def test_steps_count_from_one_everywhere(make_run):
    """The event that germinates a network's second seed says step 8: that is the ninth step, where its bar begins."""
    run = make_run(environments=2, steps=40)
    marks = marks_of(run, "lives")
    life = "test/conv in early, 72 parameters: germinated at step 9, training in isolation at step 10, "
    assert life in " ".join(marks)
    assert "early  conv: germinated at step 9, training in isolation from step 10 to step 17. by the policy" in marks
    assert "early  conv: kept from step 33 to step 40. by the policy" in marks
    assert "early  conv: pruned at step 9. by the policy" in marks
    assert "governor, step 4: roll-back. surge" in marks
    rows = rows_of(run, "governor")
    assert rows[0][:3] == ["grown 1", "4", "roll-back"]
    assert rows[1][:3] == ["grown 1", "4", "conv in early"]
    assert ", step 9, training in isolation; pruned: by the policy" in " ".join(marks_of(run, "evidence"))


def test_a_capacity_control_keeps_no_seeds(make_run, change):
    run = make_run(environments=2, steps=4, arms=("grown", "twin", "capacity"))
    change(run, "events.jsonl", r'("arm":"capacity".*"fossils":)0', r"\g<1>1")
    (row,) = [row for row in rows_of(run, "arms") if row[0] == "capacity"]
    assert row[6] == "–"
    network_rows = [row for row in rows_of(run, "arms") if row[0] in ("0", "1")]
    assert [len(row) for row in network_rows] == [4, 4]
    assert network_rows[0][1].endswith(" %")


UNSURE = Opinion(Finding.NOT_SHOWN, evidence=Evidence(800, 0.02, 0.03, 0.01, -0.03, 0.07, 0.05, 3), price=0.005)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (Reason(Cause.NURSERY, "blueprints/conv_light"), "conv_light was chosen"),
        (Reason(Cause.POLICY), "by the policy"),
        (Reason(Cause.POLICY, "", "blending", Opinion(Finding.NOT_SHOWN)), "below its price"),
        (Reason(Cause.ROLLBACK, "a loss is not finite"), "rolled back"),
        (Reason(Cause.EPISODE_END), "the episode is over"),
        (Reason(Cause.EPISODE_END, "", "blending", Opinion(Finding.UNKNOWN, Lack.LOOKS, 2)), "the episode is over"),
        (Reason(Cause.POLICY, "", "blending", UNSURE), "gain not shown"),
    ],
)
def test_the_reason_for_pruning_is_shown_beside_a_seed(reason, expected, make_run, change):
    run = make_run(environments=1, steps=40)
    record = json.dumps(asdict(reason), separators=(",", ":"))
    change(run, "events.jsonl", r'("now":"pruned".*"reason":)\{[^}]*\}', rf"\1{record}")
    shown = re.findall(r"<text[^>]*>([^<]+)<", section_of(run, "evidence", "<details>"))
    assert expected in shown
    assert "kept" in shown


def test_a_dead_run_is_called_dead_and_can_be_resumed(make_run):
    run = killed(make_run(environments=2, steps=40))
    text = text_of(run)
    for phrase in (f"esper resume {run.name}", "the test split has not been read yet", "still living"):
        assert phrase in text
    assert "running or killed" not in text
    assert 'class="mark living"' in section_of(run, "evidence", "<details>")


def test_the_headline_of_an_unfinished_run_says_what_is_known(make_run, change):
    run = killed(make_run(environments=2, steps=40, arms=("grown", "twin", "capacity")))
    change(run, "events.jsonl", r'.*"arm":"capacity".*\n', "")
    assert headline_of(run).startswith("The run died: ")
    assert re.search(r"2 arms · 2 networks each · 40 steps .* · started [\d-]{10} \d\d:\d\d UTC", text_of(run))
    with FileLock(run / ".lock"):
        assert headline_of(run).startswith("The run is still going. ")
        assert re.search(r"% \(\d+ of 240 steps\), .* so far, .* steps/s, about .* left", text_of(run))
        manifest = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps(manifest | {"resumed": [{"at": manifest["started"]}]}))
        assert "of 240 steps), resumed" in text_of(run)
        assert "2 arms, then capacity · 2 networks each · 40 steps" in text_of(run)
        assert "esper resume" not in text_of(run)
    (run / "manifest.json").unlink()
    assert headline_of(run).startswith("The run has no final event")
    assert "esper resume" not in text_of(run)


def test_the_message_of_a_stopped_run_is_below_the_headline(make_run):
    message = 'E402 arm "grown", RNG seed 1, step 7: surge (governor.rollbacks)\n  A smaller learning rate may help.'
    run = stopped(make_run(environments=2, steps=40), "stopped", message)
    expected = r"The governor stopped the run\. \d+ % of the training is done; there is no verdict .*\."
    assert re.fullmatch(expected, headline_of(run))
    assert message in text_of(run)
    assert "steps count from 0" in text_of(run)


@pytest.mark.parametrize(
    ("status", "caution"),
    [
        ("failed", "Fix the cause first: resuming repeats the failed step."),
        ("stopped", "With the same settings it is stopped at the same step again."),
        ("interrupted", ""),
    ],
)
def test_resuming_is_offered_where_there_is_a_checkpoint_with_a_warning_where_it_repeats(status, caution, make_run):
    run = stopped(make_run(environments=2, steps=40), status, "E231 it raised")
    before = text_of(run)
    assert "esper resume" not in before, "there is no checkpoint"
    (run / "latest").write_text("000002")
    assert f"esper resume {run.name}" in text_of(run)
    assert caution in text_of(run)
    assert not caution or caution not in before


@pytest.mark.parametrize("value", ['"NaN"', "-1e308", "[]", "null"])
def test_figures_of_a_summary_that_are_not_usable_are_unknown(value, make_run, change):
    run = make_run(environments=2, steps=4)
    summary = (run / "summary.json").read_text()
    for names in (["difference"], ["n"], ["ci_low", "p", "p_holm", "why", "train", "total"]):
        (run / "summary.json").write_text(summary)
        for name in names:
            change(run, "summary.json", rf'"{name}": ("[^"]*"|[^,}}\]]+)', f'"{name}": {value}', count=1)
        text = text_of(run)
        assert "Provenance" in text
        assert re.findall(r"(?i)\bnan\b|\binf\b|infinity|\d{40}", text) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("NaN") | st.just(math.inf),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture
def small_run(make_run):
    return make_run(environments=2, steps=4)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_content_of_summary_and_manifest_gives_a_page(data, small_run):
    name = data.draw(st.sampled_from(["summary.json", "manifest.json"]))
    kept = (small_run / name).read_text()
    document = copy.deepcopy(json.loads(kept))
    container: Any = document
    while True:
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(container[key], dict | list) or not container[key] or data.draw(st.booleans()):
            break
        container = container[key]
    container[key] = data.draw(JSON)
    try:
        (small_run / name).write_text(json.dumps(document))
        assert "Provenance" in report_page(read_report(small_run))
    finally:
        (small_run / name).write_text(kept)


def test_the_table_of_networks_says_how_many_rows_it_leaves_out(make_run, monkeypatch):
    run = make_run(environments=3, steps=4)
    assert "more, in events.jsonl" not in text_of(run)
    monkeypatch.setattr("esper_watch.views.MAX_ROWS", 1)
    assert "… and 2 more, in events.jsonl." in text_of(run)
