"""The notebook view of a run: complete, small, readable in light and dark, and safe with any names."""

import math
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn

from esper_core import graft
from esper_core.leyline import Metric, Signals
from esper_core.leyline.events import EpisodeFinished, Event, GovernorActed, RunStarted, SeedLost, StepFinished
from esper_core.telemetry import encode
from esper_run import load_run
from esper_watch import notebook, pages
from tests.support.core_worlds import add_seed
from tests.support.html_pages import Page


def events_of(name: str, *, metric: Metric | None = None) -> list[Event]:
    """Return the events of a run with two arms and five steps, in which everything is called ``name``."""
    events: list[Event] = [RunStarted(run=name, arms=(name, "twin"), rounds=1, environments=1, steps=5, metric=metric)]
    for arm, ahead in ((name, 0.1), ("twin", 0.0)):
        events += [
            StepFinished(round=0, arm=arm, seed=0, step=n, signals=Signals(n, 2.0, 2.0, ahead + n / 10, 9, 9, ()))
            for n in range(5)
        ]
        events.append(
            EpisodeFinished(
                round=0, arm=arm, seed=0, test_loss=1.0, test_metric=0.5 + ahead, validation_metric=0.5, parameters=9,
                host_parameters=9, fossils=1, steps=5, reward=1.0, grown=({"blueprint": name, "slot": name},),
            )
        )  # fmt: skip
    place = {"round": 0, "arm": name, "seed": 0, "step": 3}
    return [
        *events,
        GovernorActed(**place, act=name, verdict=name, reason=name),
        SeedLost(**place, slot=name, blueprint=name, package=name, what=name, withdrawn=False),
    ]


def write_events(path: Path, events: Sequence[Event]) -> None:
    (path / "events.jsonl").write_text("".join(f"{encode(event)}\n" for event in events), encoding="utf-8")


def html_of(run: Path) -> str:
    """Return what a notebook shows, by the core's own method: the entry point has to be found."""
    html = load_run(run)._repr_html_()
    assert html is not None
    return html


@pytest.fixture
def unfinished(make_run, change):
    """A run without a summary whose process is gone."""
    run = make_run(environments=2, steps=4)
    (run / "summary.json").unlink()
    change(run, "manifest.json", '"status": "done"', '"status": "running"')
    return run


def test_a_finished_run_shows_figures_verdicts_and_a_curve_for_each_arm(make_run):
    run = make_run(environments=8, steps=40)
    html = html_of(run)
    text = Page(html).text
    for phrase in ("done", "8 networks", "+30.0 points", "better", "Acts of the governor: 1 × roll-back.", "grown"):
        assert phrase in text
    assert "Seeds that went wrong and were removed: 1." in text
    assert "Validation accuracy, mean over networks, by step" in text
    assert html.count("<polyline ") == 2
    assert len(html) < 12_000


def test_an_unfinished_run_shows_its_progress_and_no_verdict(unfinished):
    write_events(unfinished, events_of("grown", metric=Metric("accuracy", "up", "%"))[:9])
    text = Page(html_of(unfinished)).text
    for phrase in ("died", "70 % trained", "test accuracy so far", "60.0 %", "1 × grown in grown"):
        assert phrase in text
    assert "better" not in text
    assert "interval" not in text


def test_missing_and_torn_events_are_reported(unfinished):
    (unfinished / "events.jsonl").write_text('{"type":"run-st')
    assert "Not read: the last line, line 1, is incomplete" in Page(html_of(unfinished)).text
    (unfinished / "events.jsonl").write_text("nonsense\n")
    assert "Not read: this line is not an event" in Page(html_of(unfinished)).text
    (unfinished / "events.jsonl").unlink()
    assert "Not read" not in Page(html_of(unfinished)).text


def test_a_run_with_control_characters_in_its_names_has_a_printable_repr(make_run):
    run = make_run(environments=2, steps=4, word="red\x1b[31m\x00\u202eevil")
    assert repr(load_run(run)).isprintable()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), begun=st.booleans())
def test_any_events_give_a_valid_page(unfinished, any_event, data, begun):
    events = data.draw(st.lists(any_event, max_size=12))
    first: list[Event] = [RunStarted(run="r", arms=("", "<b>"), rounds=1, environments=2, steps=9)] if begun else []
    write_events(unfinished, [*first, *events])
    Page(html_of(unfinished))


@pytest.mark.parametrize("ground", ["#ffffff", "#111111", "#1e1e1e"])
def test_every_colour_stands_out_in_light_and_dark_notebooks(ground, contrast):
    template = Path(pages.__file__).with_name("templates") / "notebook.html"
    colours = re.findall(r"#[0-9a-f]{6}\b", template.read_text(encoding="utf-8"))
    assert len(colours) == 6
    assert all(contrast(colour, ground) >= 3.0 for colour in colours)


def test_a_long_run_of_many_arms_stays_small(unfinished):
    arms = tuple(f"arm {number}" for number in range(15))
    events: list[Event] = [RunStarted(run="r", arms=arms, rounds=1, environments=1, steps=500)]
    for n in range(500):
        signals = Signals(n, 2.0, 2.0, math.nan if n == 7 else n / 9, 9, 9, ())
        events += [StepFinished(round=0, arm=arm, seed=0, step=n, signals=signals) for arm in arms]
    write_events(unfinished, events)
    html = html_of(unfinished)
    assert html.count("<polyline ") == notebook.MAX_ARMS
    assert "12 of 15 arms" in html
    assert "Values that are not finite and not drawn: 15." in html
    strokes = set(re.findall(r'stroke="#\w+" stroke-width="2" stroke-dasharray="[^"]*"', html))
    assert len(strokes) == notebook.MAX_ARMS, "arms differ by colour and dashes"
    assert len(html) < 60_000


HOSTILE = "<b onload=x>&'\x1b\u202e"


def test_a_grafted_model_shows_layers_slots_and_what_grows():
    model = nn.Sequential(OrderedDict({HOSTILE: nn.Linear(8, 8), "last": nn.Linear(8, 2)}))
    graft(model, {"early": HOSTILE, "late": "last"}, example=torch.randn(2, 8))
    text = Page(model._repr_html_()).text
    for phrase in ("Sequential: 90 parameters, and 0 in seeds", "Linear 72", "slot early vector of 8; nothing grows"):
        assert phrase in text
    seeds = [add_seed(model, "early", fossil=True), add_seed(model, "early")]
    for seed in seeds:
        seed.blueprint = HOSTILE
    seeds[1].alpha.aim(0.4, 0)
    page = Page(model._repr_html_())
    assert {tag for tag, _ in page.elements} <= {"div", "strong", "table", "tr", "th", "td", "svg", "rect"}
    assert "kept 72" in page.text
    assert "holding at 40 % 72" in page.text
    assert "\x1b" not in page.text
