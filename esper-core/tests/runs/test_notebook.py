"""What a notebook shows of a run, of components and of what has grown: whole, small, readable on light and on dark, and
nobody's names become markup."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from esper_core import (
    BlueprintSpec,
    Component,
    Garden,
    GrowthConfig,
    HostSpec,
    OptimizerConfig,
    OptimizerKeeper,
    Plugins,
    SlotPlace,
    TaskSpec,
    Variety,
    graft,
    load_plugins,
    load_run,
    slots_of,
)
from esper_core.growth.journal import read_network
from esper_core.leyline import Action, Metric, Op, Problem, Signals, markup
from esper_core.leyline.events import EpisodeFinished, Event, GovernorActed, RunStarted, SeedLost, StepFinished
from esper_core.plugins import PluginRecord, Registry
from esper_core.runs import display
from esper_core.runs.records import RunRecord, read_run
from esper_core.telemetry import encode

NAME = "20261121-101512-quiet-otter"
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "</title></svg></td></table></div><iframe>",
    "&lt;script&gt;",
    "]]><!--",
    "red\x1b[31m\x00\u202eevil\ud800",
)


def _strategies() -> Any:
    file = Path(__file__).parents[1] / "telemetry" / "test_event_log.py"
    found = importlib.util.spec_from_file_location("told_events", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


anything: st.SearchStrategy[Event] = _strategies().events


class Page(HTMLParser):
    """Reads HTML strictly: every element is one that there may be, has attributes that it may have, and is closed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._known(tag, attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._known(tag, attrs)
        assert tag in markup.EMPTY

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment

    def _known(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in markup.TAGS
        for name, value in attrs:
            assert name in {one.lower() for one in markup.ATTRIBUTES}
            assert not re.search(r"url|expression|script|@import", value or "", re.IGNORECASE)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def assert_harmless(html: str, planted: str) -> None:
    """That ``planted`` is there to be read, and nothing else."""
    assert markup.shown(planted) in Page(html).text
    html.encode("utf-8")


def events_of(name: str, *, metric: Metric | None = None) -> list[Event]:
    """A run in which everything is called ``name``, of two arms and five steps."""
    told: list[Event] = [
        RunStarted(run=name, arms=(name, "twin"), rounds=1, environments=1, steps=5, metric=metric),
    ]
    for arm, ahead in ((name, 0.1), ("twin", 0.0)):
        told += [
            StepFinished(round=0, arm=arm, seed=0, step=n, signals=Signals(n, 2.0, 2.0, ahead + n / 10, 9, 9, ()))
            for n in range(5)
        ]
        told.append(
            EpisodeFinished(
                round=0, arm=arm, seed=0, test_loss=1.0, test_metric=0.5 + ahead, validation_metric=0.5, parameters=9,
                host_parameters=9, fossils=1, steps=5, reward=1.0, grown=({"blueprint": name, "slot": name},),
            )
        )  # fmt: skip
    place = {"round": 0, "arm": name, "seed": 0, "step": 3}
    return [
        *told,
        GovernorActed(**place, act=name, verdict=name, reason=name),
        SeedLost(**place, slot=name, blueprint=name, package=name, what=name, withdrawn=False),
    ]


def write_events(path: Path, events: Sequence[Event]) -> None:
    lines = [encode(event) for event in events]
    (path / "events.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def glance(events: Sequence[Event]) -> display.Glance:
    seen = display.Glance()
    for event in events:
        seen.hear(event)
    return seen


def test_a_finished_run_shows_its_figures_its_verdicts_and_a_curve_for_each_arm(write_run) -> None:
    values = [0.8, 0.82, 0.81, 0.83, 0.79, 0.8, 0.84, 0.8]
    path = write_run(NAME, {"grown": values, "twin": [0.5] * 8})
    write_events(path, events_of("grown"))
    html = load_run(path)._repr_html_()
    page = Page(html)
    for told in ("done", "took 10 s", "81.1 %", "50.0 %", "+31.1 points", "better", "step 4", "1 × grown in grown"):
        assert told in page.text
    assert "Validation accuracy, mean over environments, by step" in page.text
    assert html.count("<polyline ") == 2
    assert len(html) < 8000


def test_a_run_without_an_end_shows_how_far_it_came_and_no_verdict(write_run) -> None:
    path = write_run(NAME, status="running")
    write_events(path, events_of("grown", metric=Metric("accuracy", "up", "%"))[:9])
    text = Page(load_run(path)._repr_html_()).text
    assert "died" in text
    assert "70 % trained" in text
    assert "test accuracy so far" in text
    assert "60.0 %" in text
    assert "better" not in text
    assert "interval" not in text


def test_a_run_that_has_not_begun_and_one_whose_events_are_torn_are_shown_as_that(write_run) -> None:
    path = write_run(NAME, status="running")
    assert NAME in Page(load_run(path)._repr_html_()).text
    (path / "events.jsonl").write_text('{"type":"run-st')
    assert "Not read: the last line, line 1, is incomplete" in Page(load_run(path)._repr_html_()).text
    (path / "events.jsonl").write_text("nonsense\n")
    assert "Not read: this line is not an event" in Page(load_run(path)._repr_html_()).text


@pytest.mark.parametrize("planted", HOSTILE)
def test_names_in_a_run_are_shown_and_never_obeyed(write_run, planted: str) -> None:
    path = write_run(NAME, {"grown": [0.8] * 8, "twin": [0.5] * 8}, reason=planted)
    written = json.dumps(planted)[1:-1]
    summary = (path / "summary.json").read_text()
    for known in ("accuracy", "grown", "better"):
        summary = summary.replace(f'"{known}"', f'"{written}"')
    (path / "summary.json").write_text(summary)
    manifest = json.loads((path / "manifest.json").read_text()) | {"id": planted, "status": planted}
    (path / "manifest.json").write_text(json.dumps(manifest))
    told = planted.replace("\ud800", "")  # no line of JSON can hold it in UTF-8
    write_events(path, events_of(told))
    run = load_run(path)
    html = run._repr_html_()
    assert_harmless(html, planted)
    assert html.count(markup.escape(markup.shown(told))) >= 10
    assert repr(run).isprintable()
    (path / "summary.json").unlink()
    write_events(path, events_of(told, metric=Metric(told)))
    assert_harmless(load_run(path)._repr_html_(), told)


@given(events=st.lists(anything, max_size=12), begun=st.booleans())
def test_whatever_a_run_tells_its_face_is_whole(bare_run: RunRecord, events: list[Event], begun: bool) -> None:
    first: list[Event] = [RunStarted(run="r", arms=("", "<b>"), rounds=1, environments=2, steps=9)] if begun else []
    Page(display.run_as_html(bare_run, glance([*first, *events])))


@pytest.fixture(scope="module")
def bare_run(tmp_path_factory) -> RunRecord:
    path = tmp_path_factory.mktemp("bare")
    told = {"format": 1, "id": "<i>", "status": "failed", "started": "2026-11-21T10:15:12+00:00", "reason": "<u>"}
    (path / "manifest.json").write_text(json.dumps(told))
    return read_run(path)


@given(st.text(), st.text(max_size=400))
def test_whatever_a_text_is_it_stays_one(text: str, attribute: str) -> None:
    page = Page(markup.notebook(text, markup.table([text, "b"], [(text, text)]), text))
    line = markup.shown(text)
    assert page.texts == [one for one in (line, line, "b", line, line, line) if one]
    drawn = markup.element("line", style=attribute).render()
    assert re.fullmatch(r'<line style="[^"<>]*"/>', drawn)
    assert unescape(drawn)[13:-3] == markup.printable(attribute)


def test_an_element_that_could_act_is_refused() -> None:
    for tag, attributes in (("script", {}), ("a", {}), ("img", {}), ("td", {"onclick": "x"}), ("td", {"href": "x"})):
        with pytest.raises(ValueError, match="no element and no attribute"):
            markup.element(tag, **attributes)


def luminance(colour: str) -> float:
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("ground", ["#ffffff", "#111111", "#1e1e1e"])
def test_every_colour_stands_out_from_a_light_and_a_dark_notebook(write_run, ground: str) -> None:
    path = write_run(NAME, {"grown": [0.8] * 8})
    write_events(path, events_of("grown"))
    used = set(re.findall(r"#[0-9a-f]{3,8}\b", load_run(path)._repr_html_()))
    assert used
    assert used <= set(display.COLOURS)
    for colour in display.COLOURS:
        light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3.0


def test_arms_are_told_apart_without_their_colours() -> None:
    strokes = {(n % len(display.COLOURS), n % len(display.DASHES)) for n in range(display._DRAWN)}
    assert len(strokes) == display._DRAWN


def test_a_long_run_of_many_arms_stays_small(bare_run: RunRecord) -> None:
    events: list[Event] = [RunStarted(run="r", arms=(), rounds=1, environments=1, steps=2000)]
    signals = Signals(0, 2.0, 2.0, 0.0, 9, 9, ())
    events += [
        StepFinished(round=0, arm=f"arm {arm}", seed=0, step=n, signals=replace(signals, validation_metric=n / 9))
        for n in range(500)
        for arm in range(15)
    ]
    html = display.run_as_html(bare_run, glance(events))
    assert html.count("<polyline ") == 12
    assert "12 of 15 arms" in html
    assert "step 499" in html
    assert len(html) < 40_000


def measured(*values: float, seed: int = 0) -> list[Event]:
    """One environment's steps, of which the validation metric had these values."""
    signals = Signals(0, 2.0, 2.0, 0.0, 9, 9, ())
    return [
        StepFinished(round=0, arm="a", seed=seed, step=n, signals=replace(signals, validation_metric=value))
        for n, value in enumerate(values)
    ]


def points_of(html: str) -> str:
    (points,) = re.findall(r'points="([^"]*)"', html)
    return points


def test_values_that_are_not_finite_are_counted_and_the_largest_are_drawn(bare_run: RunRecord) -> None:
    html = display.run_as_html(bare_run, glance(measured(-1e308, math.nan, math.inf, 1e308)))
    assert points_of(html) == "62.0,148.0 454.0,10.0"
    assert "Not drawn: 2 values, not finite." in html


def test_an_environment_that_went_wrong_does_not_hide_the_others(bare_run: RunRecord) -> None:
    seen = [*measured(0.0, 1.0, 2.0), *measured(0.0, math.nan, 2.0, seed=1)]
    assert points_of(display.run_as_html(bare_run, glance(seen))) == "62.0,148.0 258.0,79.0 454.0,10.0"


def test_a_curve_that_never_moves_is_a_line(bare_run: RunRecord) -> None:
    assert points_of(display.run_as_html(bare_run, glance(measured(0.5, 0.5)))) == "62.0,79.0 454.0,79.0"


def component(name: str, **more: Any) -> Component:
    spec = BlueprintSpec((name, "image"), name, name, traits=(name,))
    known = {"kind": "blueprint", "plugin": name, "package": name, "version": name, "target": name, "spec": spec}
    return Component(id=name, short=name, **(known | more))


@pytest.mark.parametrize("planted", HOSTILE)
def test_names_of_plugins_are_shown_and_never_obeyed(planted: str) -> None:
    blueprint = component(planted)
    host = component(planted, kind="host", spec=HostSpec(planted, {planted: SlotPlace(planted)}, planted))
    problem = Problem("E219", planted, hint=planted)
    record = PluginRecord(planted, planted, planted, planted, status="broken", problems=(problem,))
    registry = Registry([blueprint, host], records=[record])
    plugins = Plugins((record,), registry, (problem,), load_plugins(distributions=()).manager)
    for one in (blueprint, host, registry, plugins):
        assert_harmless(one._repr_html_(), planted)
        assert repr(one).isprintable()


def test_a_component_shows_what_it_says_of_itself_and_imports_nothing() -> None:
    own = BlueprintSpec("image", "9*c*c", "Sees neighbours.")
    one = component("extra/conv", package="esper-extra", version="0.2.0", target="nowhere:Conv", spec=own)
    text = Page(one._repr_html_()).text
    for told in ("extra/conv", "blueprint", "esper-extra 0.2.0", "9*c*c", "Sees neighbours."):
        assert told in text
    assert repr(one) == "<blueprint extra/conv, esper-extra 0.2.0: Sees neighbours.>"
    task = component("extra/task", kind="task", spec=TaskSpec("Counts.", GrowthConfig))
    assert "esper_core.config.model:GrowthConfig" in Page(task._repr_html_()).text


def test_a_registry_lists_its_components_and_plugins_what_is_wrong() -> None:
    one = component("extra/conv", package="esper-extra", version="0.2.0")
    registry = Registry([one, replace(one, id="extra/mlp")])
    assert repr(registry) == "<Registry of 2 components: blueprint 2>"
    assert "extra/mlp" in Page(registry._repr_html_()).text
    assert repr(Registry()) == "<Registry of 0 components>"
    problem = Problem("E219", "it cannot be imported")
    record = PluginRecord("extra", "esper-extra", "0.2.0", "esper_extra", status="broken", problems=(problem,))
    plugins = Plugins((record,), Registry(), (problem,), load_plugins(distributions=()).manager)
    assert repr(plugins) == "<1 plugin, 1 problem; <Registry of 0 components>>"
    assert "it cannot be imported" in Page(plugins._repr_html_()).text


@pytest.fixture(scope="module")
def grown() -> nn.Module:
    """A model with two slots, in the first of which an MLP was kept."""
    torch.manual_seed(0)
    model = graft(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), ["0", "2"], example=torch.randn(3, 4))
    keeper = OptimizerKeeper(model.parameters(), host_settings=OptimizerConfig(), seed_settings=OptimizerConfig())
    wide = Variety("b/wide", BlueprintSpec("vector", "c*c + c"), lambda site: nn.Linear(site.channels, site.channels))
    garden = Garden(model, keeper, {"0": [wide], "2": [wide]}, seed=0, batches=1)
    garden.apply(Action(Op.GERMINATE, "0", wide.id, speed=0), step=0)
    garden.open_step()
    garden.apply(Action(Op.ADVANCE, "0"), step=1)
    garden.close_step()
    garden.apply(Action(Op.FOSSILISE, "0"), step=2)
    return model


def test_a_journal_shows_what_grew_in_each_slot(grown: nn.Module) -> None:
    network = read_network(slots_of(grown), "Sequential")
    assert repr(network) == "<Sequential, 2 slots: 1 seed, 1 kept, 73 parameters; b/wide in 0: fossilized>"
    text = Page(network._repr_html_()).text
    assert "Sequential, 2 slots: 1 seed, 1 kept, 73 parameters" in text
    assert "0 0 b/wide fossilized 1 73 0 2 2 2 nothing" in text


def test_the_slots_of_a_model_show_their_journal(grown: nn.Module) -> None:
    assert "b/wide fossilized" in Page(slots_of(grown)._repr_html_()).text


@pytest.mark.parametrize("planted", HOSTILE)
def test_names_in_a_journal_are_shown_and_never_obeyed(grown: nn.Module, planted: str) -> None:
    network = read_network(slots_of(grown), planted)
    seeds = tuple(replace(seed, slot=planted, at=planted, blueprint=planted) for seed in network.seeds)
    places = tuple(replace(place, name=planted, at=planted) for place in network.slots)
    hostile = replace(network, seeds=seeds, slots=places)
    assert_harmless(hostile._repr_html_(), planted)
    assert repr(hostile).isprintable()
