"""Growth in the report: networks step by step, what gates saw, and colours that everybody tells apart."""

import json
import math
import re
from dataclasses import replace
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper_core.leyline import Metric, Stage
from esper_core.leyline.events import HostLayer
from esper_watch import growth, headline, pages, views
from esper_watch.history import SeedLife
from esper_watch.history_records import Look
from esper_watch.report import read_report, write_report
from tests.support.html_pages import typed
from tests.support.run_folders import stage_changed

STYLE = Path(pages.__file__).with_name("templates") / "report.css"


@pytest.fixture
def report(make_run):
    return read_report(make_run(environments=10, steps=40))


def life(*changes: tuple[int, Stage], number: int = 0) -> SeedLife:
    seed_life = SeedLife(0, "grown", 0, "early", number, "test/conv", 72)
    seed_life.changes += [stage_changed(step, None, now, seed_id=number) for step, now in changes]
    return seed_life


def test_a_pruned_seed_leaves_its_lane_to_the_next_and_seeds_at_once_have_lanes_of_their_own():
    first = life((0, Stage.GERMINATED), (9, Stage.PRUNED))
    beside = life((1, Stage.GERMINATED), (20, Stage.FOSSILISED), number=1)
    later = life((9, Stage.GERMINATED), number=2)
    assert growth._in_lanes([first, beside, later]) == [[first, later], [beside]]
    pair, alone = (
        [(frame.start, frame.stage) for frame in growth._frames(lives, 72, on_branch=False)]
        for lives in ([first, later], [first])
    )
    assert pair == [(0, ""), (1, "germinated"), (10, "pruned"), (10, "germinated")]
    assert alone[-1] == (12, "")


def test_a_deep_host_is_drawn_with_all_slots_and_few_layers(report):
    slots = {40: ("early",)}
    layers = [HostLayer(name=f"block{n}", kind="Block", parameters=n, slots=slots.get(n, ())) for n in range(90)]
    history = report.history
    history.started = replace(history.started, host=tuple(layers))
    drawn = growth.layers_of(history, "grown")
    assert len(drawn) == growth.MAX_LAYERS
    assert sum(parameters for _, _, parameters, _ in drawn) == sum(range(90))
    assert next(name for name, *_, slots in drawn if "early" in slots).endswith("block40")
    assert drawn[-1][3] == ("late",), "a slot that no layer names is behind the last"


def test_the_section_tells_what_was_kept_where(report):
    data = growth.pictures(report).data
    assert list(data["summary"]) == [
        "grown, slot early: kept conv in 10 of 10 networks; 20 seeds tried.",
        "grown, slot late: nothing kept; 0 seeds tried.",
    ]
    ((arm, shown, folded, more),) = data["arms"]
    assert (arm, len(shown), len(folded), more) == ("grown", 8, 2, 0)


def test_a_long_course_is_told_every_few_steps():
    metric = Metric("accuracy", "up", "%")
    for steps, number, every in ((200, 200, 1), (201, 100, 2), (1000, 200, 5)):
        latest, course, gap = growth._course(metric, {step: step / 1000 for step in range(steps)}, {})
        assert (len(json.loads(course)), gap) == (number, every)
        assert latest == f"{(steps - 1) / 10:.1f}\N{NO-BREAK SPACE}%"


SEEN = """
[...document.querySelectorAll("#growth figure:first-of-type .lane")].map((lane) => [
  lane.getAttribute("class"), lane.querySelectorAll("text")[1].textContent,
])
"""


@pytest.mark.install  # CI runs it for every change
def test_the_slider_the_keys_and_the_address_lead_to_a_step(make_run, browser):
    page = browser.open(write_report(make_run(environments=2, steps=40)))
    first = f"{SEEN}.slice(0, 1)[0]"
    assert page.evaluate(first) == ["lane mark stage-fossilised", "● kept, 72"]
    page.evaluate("location.hash = '#step=20'; new Promise((tell) => setTimeout(tell, 100))")
    assert page.evaluate(first) == ["lane mark stage-blending", "◑ blending 50\N{NO-BREAK SPACE}%, 72"]
    assert page.evaluate("document.querySelector('.moment output').textContent") == "20 of 40"
    assert "accuracy 64.9" in page.evaluate("document.querySelector('#growth figcaption').innerText")
    page.evaluate("document.querySelector('.moment input').focus()")
    page.press("ArrowLeft")
    assert page.evaluate("[document.querySelector('.moment input').value, location.hash]") == ["19", "#step=19"]
    page.evaluate("""
        const at = document.querySelector('.moment input');
        at.value = 0;
        at.dispatchEvent(new Event('input', {bubbles: true}));
    """)
    assert page.evaluate(first)[0] == "lane gone"
    assert page.complaints == []


def test_without_a_script_the_last_step_is_shown(report):
    page = pages.render("section.html", section=growth.pictures(report))
    assert '<div class="moment" hidden="hidden"' in page
    assert len(re.findall(r'class="lane mark stage-fossilised"', page)) == 10


def look(step: int, mean: float) -> Look:
    return Look(step, 0.0, mean, mean - 0.03, mean + 0.03, 0.0656, opens=mean - 0.03 > 0.0656)


def test_a_gate_chart_says_from_when_the_gate_was_open():
    seed_life = life((0, Stage.GERMINATED))
    chart = views._gate_chart(seed_life, [look(3, 0.05), look(4, 0.1), look(5, 0.2)])
    assert chart.description.startswith("3 looks, open from step 5")
    assert views._gate_chart(seed_life, [look(3, 0.05)]).data["opened"] is None


VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
"""What is seen of linear red, green and blue, by Machado, Oliveira and Fernandes (2009)."""

XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.072175), (0.0193339, 0.119192, 0.9503041))
WHITE = (0.95047, 1.0, 1.08883)


def linear(colour: str) -> Any:
    """Return red, green and blue of a colour such as #fff or #1e1e1e, as amounts of light."""
    full = colour[1:] if len(colour) == 7 else "".join(2 * sign for sign in colour[1:])
    parts = np.array([*bytes.fromhex(full)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """Return the ratio of two colours by the formula of WCAG."""
    low, high = sorted(float((0.2126, 0.7152, 0.0722) @ linear(colour)) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    """Return a colour in CIELAB as it is seen."""
    seen = np.clip(VISION[vision] @ linear(colour), 0, 1)
    parts = XYZ @ seen / WHITE
    fx, fy, fz = np.where(parts > 216 / 24389, np.cbrt(parts), (24389 / 27 * parts + 16) / 116)
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def palettes(kind: str) -> list[dict[str, str]]:
    """Return the named colours of a kind, in light and in dark."""
    light, dark = STYLE.read_text(encoding="utf-8").split("@media (prefers-color-scheme: dark)", 1)
    stages = [stage.value for stage in Stage if stage is not Stage.PRUNED]
    names = [f"arm-{n}" for n in range(8)] if kind == "arms" else stages
    return [{name: re.findall(rf"--{name}: (#\w+)", part)[0] for name in [*names, "paper"]} for part in (light, dark)]


@pytest.mark.parametrize("kind", ["arms", "stages"])
@pytest.mark.parametrize("dark", [0, 1], ids=["light", "dark"])
def test_colours_stand_out_and_are_told_apart_with_every_colour_vision(kind, dark):
    colours = palettes(kind)[dark]
    paper = colours.pop("paper")
    faint = {name: contrast(colour, paper) for name, colour in colours.items() if contrast(colour, paper) < 3.0}
    assert faint == {}
    for vision in VISION:
        seen = {name: lab(colour, vision) for name, colour in colours.items()}
        apart = {pair: math.dist(seen[pair[0]], seen[pair[1]]) for pair in combinations(seen, 2)}
        assert {pair: distance for pair, distance in apart.items() if distance < 17.0} == {}, vision


def test_events_of_earlier_versions_are_drawn_without_layers(report):
    assert report.history.started.host == ()
    chart = growth.picture(report.history, "grown", 0, report.history.seeds_by_environment(0, "grown")[0])
    assert [name for _, name, *_ in chart.data["boxes"]] == ["host"]
    assert [name for _, name, *_ in chart.data["rings"]] == ["early", "late"]
    assert json.loads(chart.data["lanes"][0].data)[0][1] == ""


def test_a_run_that_goes_on_says_what_it_gained_so_far(make_run, change):
    run = make_run(environments=8, steps=40)
    change(run, "events.jsonl", r'.*"type":"(episode|update|run)-finished".*\n', "")
    (run / "summary.json").unlink()
    answers = dict(headline.facts(read_report(run)))
    assert typed(answers["Progress"]) == "100 % (640 of 640 steps)"
    assert typed(answers["So far"]).startswith("grown +28.9 points over its twin")
    assert re.search(r"after step 40, 95 % interval \+28\.9 to \+28\.9 points; n = 8$", typed(answers["So far"]))
    assert datetime.fromisoformat(answers[headline.LAST_EVENT]).tzinfo is not None


def test_a_finished_run_says_what_growth_gained_and_cost(report):
    assert [(name, typed(text)) for name, text in headline.facts(report)] == [
        ("Gain", "grown +30.0 points over its twin (80.0 % against 50.0 %), 95 % interval +28.0 to +32.0 points"),
        ("Cost", "grown +72 parameters (+14 %)"),
        ("Time", "40 s in all, 20 steps/s"),
    ]
