"""A stranger is not misled: each word of a report means one thing, and says no more than is known."""

from __future__ import annotations

import copy
import json
import math
import os
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esper_watch.report import page_of, read_record

MakeRun = Callable[..., Path]

NOWHERE = {"pid": 2**22 + 1, "start": 1}
"""A process that there is not: numbers of processes end below."""


def text_of(run: Path) -> str:
    """What stands on the page, marks' own words included, without the script and the style."""
    page = re.sub(r"<(script|style)>.*?</\1>", "", page_of(read_record(run)), flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", "\n", page))


def headline_of(run: Path) -> str:
    (told,) = re.findall(r'<p class="headline">(.*?)</p>', page_of(read_record(run)))
    return unescape(told)


def marks_of(run: Path, part: str) -> list[str]:
    """What the titles in a part of the page say."""
    (inside,) = re.findall(rf'<section id="{part}">(.*?)</section>', page_of(read_record(run)), flags=re.DOTALL)
    return [unescape(one) for one in re.findall(r"<title>(.*?)</title>", inside)]


def killed(run: Path, process: object = NOWHERE) -> Path:
    """The same run, killed in the middle of writing a line."""
    (run / "summary.json").unlink()
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(lines[: len(lines) // 2]) + lines[-2][:40])
    manifest = {
        "format": 1, "id": run.name, "status": "running", "started": "2026-11-21T10:15:12+00:00", "process": process,
    }  # fmt: skip
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "latest").write_text("000002")
    return run


def stopped(run: Path, status: str, reason: str) -> Path:
    """The same run, with another end."""
    (run / "summary.json").unlink()
    end = json.dumps({"type": "run-finished", "v": 1, "status": status, "reason": reason})
    lines = (run / "events.jsonl").read_text().splitlines()[:-20]
    (run / "events.jsonl").write_text("\n".join([*lines, end]) + "\n")
    return run


def test_a_run_with_several_arms_and_no_summary_says_what_is_missing(make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4, arms=("grown", "twin", "capacity"))
    whole = (run / "summary.json").read_text()
    (run / "summary.json").write_text(whole[: len(whole) // 2])
    assert headline_of(run) == "There is no verdict: the run came to its end, but its summary.json cannot be read."
    assert f"can be trained again:  esper run runs/{run.name}" in text_of(run)
    for name in ("summary.json", "manifest.json", "config.yaml"):
        (run / name).unlink()
    assert headline_of(run) == "There is no verdict: the run came to its end, but its summary.json is missing."
    assert "put it beside events.jsonl" in text_of(run)
    assert "trained again" not in text_of(run), "nobody knows its configuration"


def test_a_run_with_a_single_arm_says_so_with_and_without_a_summary(make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4)
    events = [line for line in (run / "events.jsonl").read_text().splitlines() if '"arm":"twin"' not in line]
    (run / "events.jsonl").write_text("\n".join(events).replace('"arms":["grown","twin"]', '"arms":["grown"]') + "\n")
    told = json.loads((run / "summary.json").read_text())
    told["results"]["comparisons"] = []
    (run / "summary.json").write_text(json.dumps(told))
    assert headline_of(run) == "The run had a single arm, and nothing to compare it with."
    (run / "summary.json").unlink()
    assert headline_of(run) == "The run had a single arm, and nothing to compare it with."


def test_seeds_are_what_grows_and_networks_are_numbered(make_run: MakeRun) -> None:
    text = text_of(make_run(environments=9, steps=20))
    assert "16 pairs of seeds" not in text
    assert "9 pairs of networks" in text
    assert "network 8" in text
    assert "grown, network 3: " in text
    assert "1 more network of grown" in text
    assert "9 networks each" in text
    assert re.findall(r"(?i)\bseed \d|pairs of seeds|mean over environments|environments each", text) == []


def test_what_an_arm_is_and_what_the_words_mean_is_told(make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4, arms=("grown", "twin", "capacity"))
    text = " ".join(text_of(run).split())
    assert "grown : networks that may grow while they are trained" in text
    assert "twin : the same networks on the same data in the same order, in which nothing may grow." in text
    assert "capacity : networks that have from their first batch what the growing arm grew" in text
    for word in ("nats", "price", "gate", "slot", "governor", "seed"):
        assert re.search(rf"<dt>{word}</dt><dd>[A-Z]", page_of(read_record(run))), word


def test_steps_are_counted_in_one_way(make_run: MakeRun) -> None:
    """The second seed of a network is planted on the event of step 8: the ninth step, where its bar begins."""
    run = make_run(environments=2, steps=40)
    told = marks_of(run, "lives")
    assert "test/conv in early, 72 parameters: planted at step 9, training in isolation at step 10, " in " ".join(told)
    assert "early  conv: planted at step 9, training in isolation from step 10 to step 17. asked for" in told
    assert "early  conv: kept from step 33 to step 40. asked for" in told
    assert "early  conv: pruned at step 9. asked for" in told
    assert "governor, step 4: roll-back. surge" in told
    (acts,) = re.findall(r'<section id="governor">(.*?)</section>', page_of(read_record(run)), flags=re.DOTALL)
    assert '<td>grown 1</td><td class="number">4</td><td>roll-back</td>' in acts
    assert '<td>grown 1</td><td class="number">4</td><td>conv in early</td>' in acts
    assert ", step 9, training in isolation; pruned: asked for" in " ".join(marks_of(run, "evidence"))


def test_a_control_that_had_all_from_the_start_has_kept_nothing(make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4, arms=("grown", "twin", "capacity"))
    events = (run / "events.jsonl").read_text().splitlines()
    events = [line.replace('"fossils":0,', '"fossils":1,') if '"arm":"capacity"' in line else line for line in events]
    (run / "events.jsonl").write_text("\n".join(events) + "\n")
    (row,) = re.findall(r"<tr><td>capacity</td>(.*?)</tr>", page_of(read_record(run)))
    assert re.findall(r">([^<]*)</td>", row)[4] == "–"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("blueprints/conv_light was chosen from the nursery", "conv_light was chosen"),
        ("asked for", "pruned by its policy"),
        ("rolled back: a loss is not finite", "rolled back"),
        ("", "pruned"),
    ],
)
def test_why_a_seed_was_not_kept_stands_beside_it(reason: str, said: str, make_run: MakeRun) -> None:
    run = make_run(environments=1, steps=40)
    lines = (run / "events.jsonl").read_text().splitlines()
    lines = [re.sub('"reason":"[^"]*"', f'"reason":"{reason}"', one) if '"pruned"' in one else one for one in lines]
    (run / "events.jsonl").write_text("\n".join(lines) + "\n")
    (forest,) = re.findall(r'<section id="evidence">(.*?)<details>', page_of(read_record(run)), flags=re.DOTALL)
    shown = re.findall(r"<text[^>]*>([^<]+)<", forest)
    assert said in shown
    assert "kept" in shown


def test_a_run_whose_process_is_gone_died_and_can_go_on(make_run: MakeRun) -> None:
    run = killed(make_run(environments=2, steps=40))
    assert headline_of(run).startswith("It died: ")
    text = text_of(run)
    assert f"esper resume {run.name}" in text
    assert "running or killed" not in text
    assert "test split, above" not in text
    assert "still living" in text
    (forest,) = re.findall(r'<section id="evidence">(.*?)<details>', page_of(read_record(run)), flags=re.DOTALL)
    assert 'class="mark living"' in forest


def test_a_run_that_runs_is_not_called_dead(make_run: MakeRun) -> None:
    run = killed(make_run(environments=2, steps=40), {"pid": os.getpid(), "start": None})
    assert headline_of(run).startswith("It is still running. ")
    assert "esper resume" not in text_of(run)


def test_a_run_of_which_there_are_only_events_did_not_end(make_run: MakeRun) -> None:
    run = killed(make_run(environments=2, steps=40))
    (run / "manifest.json").unlink()
    assert headline_of(run).startswith("It did not end, as far as its events tell")
    assert "esper resume" not in text_of(run)


def test_a_headline_is_short_and_the_message_stands_below(make_run: MakeRun) -> None:
    message = 'E402 arm "grown", seed 1, step 7: surge (governor.rollbacks)\n  A smaller learning rate may help.'
    run = stopped(make_run(environments=2, steps=40), "stopped", message)
    told = headline_of(run)
    assert re.fullmatch(r"It was stopped by the governor\. \d+ % of it was trained; there is no verdict .*\.", told)
    assert message in text_of(run)
    assert "it counts steps from 0" in text_of(run)


def test_an_interrupted_run_says_how_it_goes_on(make_run: MakeRun) -> None:
    run = stopped(make_run(environments=2, steps=40), "interrupted", "E401 interrupted by signal 2")
    assert "esper resume" not in text_of(run), "there is no checkpoint"
    (run / "latest").write_text("000002")
    assert f"esper resume {run.name}" in text_of(run)


@pytest.mark.parametrize(
    ("status", "caution"),
    [
        ("failed", "Mend first what failed: it is done again."),
        ("stopped", "As it is, it is stopped at the same step again."),
    ],
)
def test_a_run_that_failed_or_was_stopped_says_how_it_goes_on_and_what_will_come(
    status: str, caution: str, make_run: MakeRun
) -> None:
    run = stopped(make_run(environments=2, steps=40), status, "E231 it raised")
    assert "esper resume" not in text_of(run), "there is no checkpoint"
    assert caution not in text_of(run)
    (run / "latest").write_text("000002")
    assert f"esper resume {run.name}" in text_of(run)
    assert caution in text_of(run)


def test_what_is_adjusted_and_what_is_not_is_told_once(make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4, arms=("grown", "twin", "capacity"))
    told = json.loads((run / "summary.json").read_text())
    told["results"]["comparisons"].append({**told["results"]["comparisons"][0], "b": "capacity"})
    (run / "summary.json").write_text(json.dumps(told))
    assert text_of(run).count("The intervals are not adjusted") == 1


def test_how_to_have_the_same_numbers_again_names_the_run(make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4)
    assert f"esper run runs/{run.name}" in text_of(run)
    assert "RUN" not in text_of(run)


@pytest.mark.parametrize("value", ['"NaN"', "NaN", "1e308", "-1e308", "Infinity", "[]", "{}", "true", "null", '""'])
@pytest.mark.parametrize("name", ["difference", "ci_low", "p", "p_holm", "n", "why", "train", "shadow", "total"])
def test_a_figure_that_is_none_is_unknown(name: str, value: str, make_run: MakeRun) -> None:
    run = make_run(environments=2, steps=4)
    told = (run / "summary.json").read_text()
    told, times = re.subn(rf'"{name}": ("[^"]*"|[^,}}\]]+)', lambda _: f'"{name}": {value}', told, count=1)
    assert times == 1
    (run / "summary.json").write_text(told)
    text = text_of(run)
    assert "Where this is from" in text
    assert re.findall(r"(?i)\bnan\b|\binf\b|infinity|\d{40}", text) == []


def test_a_price_that_is_no_number_is_no_place_on_a_drawing(make_run: MakeRun) -> None:
    run = make_run(environments=1, steps=40)
    told = (run / "events.jsonl").read_text()
    assert '"price":0.02' in told
    (run / "events.jsonl").write_text(told.replace('"price":0.02', '"price":"NaN"'))
    assert re.findall(r'="nan"', page_of(read_record(run))) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("NaN") | st.just(math.inf),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture
def whole(make_run: MakeRun) -> Path:
    return make_run(environments=2, steps=4)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_summary_or_a_manifest_there_is_a_page(data: st.DataObject, whole: Path) -> None:
    name = data.draw(st.sampled_from(["summary.json", "manifest.json"]))
    kept = (whole / name).read_text()
    told = copy.deepcopy(json.loads(kept))
    where: Any = told
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(where[key], dict | list) or not where[key] or data.draw(st.booleans()):
            break
        where = where[key]
    where[key] = data.draw(JSON)
    try:
        (whole / name).write_text(json.dumps(told))
        assert "Where this is from" in page_of(read_record(whole))
    finally:
        (whole / name).write_text(kept)
