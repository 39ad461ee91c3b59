"""Hostile text in any field of any event or file of a run is shown as text, and has no effect.

Fields are found by their type, so that new ones are included. Elements and attributes of a page must be the same as
with harmless text.
"""

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import yaml

from esper_core.leyline.events import Event, RunFinished
from esper_core.telemetry import encode
from esper_watch.report import write_report
from esper_watch.web.fragments import LivePage
from tests.end_to_end.conftest import run_once
from tests.support.html_pages import Page

HARMLESS = "plain and harmless"
HOSTILE = {
    "markup": (
        '</title></svg></style></pre></td></table><script>alert(1)</script> "><img src=x onerror=alert(1)> '
        "' onmouseover='alert(1) <a href=javascript:alert(1)>x</a> ]]><!-- &lt;script&gt;&#60;b&#62; "
        "{{constructor.constructor('alert(1)')()}}"
    ),
    "unprintable": "\u202egnihtemos\x1b[2J",
}
NAMES = ("schedule", "twin", "early", "blueprints/conv_light", "accuracy", "by the policy")
"""Fields that the events of the run must fill; made-up events fill the others."""

KEPT = ("direction", "started", "finished", "status")
"""Fields without which a summary and a manifest are refused."""

LINKS = ("href", "src", "action")

# --- every field that holds text


def filled(kind: Any, way: str, word: str, planted: set[str]) -> Any:
    """Return a value of a type in which each text is its path followed by ``word``; optional values are set."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is str or kind is Any:
        planted.add(way)
        return f"{way} {word}"
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        named = [field.name for field in fields(kind) if field.name != "v"]  # a version keeps its default
        arguments = {name: filled(hints[name], f"{way}.{name}", word, planted) for name in named}
        return kind(**arguments)
    if origin is Literal:
        return inner[0]
    if origin in (Union, types.UnionType):
        return filled(str if str in inner else inner[0], way, word, planted)
    if origin is tuple:
        return (filled(inner[0], way, word, planted),)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {filled(inner[0], f"{way}.key", word, planted): filled(inner[1], f"{way}.value", word, planted)}
    return {int: 1, float: 0.5, bool: True}.get(kind) or next(iter(kind))


def made_up(word: str, arm: str) -> tuple[list[Event], set[str]]:
    """Return an event of each type with ``word`` in every text, in an environment of ``arm``, and those fields."""
    planted: set[str] = set()
    events = [filled(kind, kind.__name__, word, planted) for kind in get_args(Event) if kind is not RunFinished]
    home = {"arm": arm, "round": 0, "seed": 0}
    return [replace(event, **{name: home[name] for name in home if hasattr(event, name)}) for event in events], planted


def behind(value: Any, word: str) -> Any:
    """Return the content of a JSON or YAML file with ``word`` after every text, and a key with it beside every key."""
    if isinstance(value, str):
        return f"{value} {word}"
    if isinstance(value, list):
        return [behind(nested, word) for nested in value]
    if isinstance(value, dict):
        extended = {key: nested if key in KEPT else behind(nested, word) for key, nested in value.items()}
        return {**extended, **{f"{key} {word}": nested for key, nested in extended.items()}}
    return value


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A finished run without made-up content."""
    return run_once(tmp_path_factory.mktemp("ran"))


def planted_run(ran: Path, folder: Path, word: str) -> Path:
    """Return a copy of the run with ``word`` in all events and files, and in optional fields."""
    folder.mkdir()
    for name in ("manifest.json", "summary.json", "growth.json"):
        content = behind(json.loads((ran / name).read_text(encoding="utf-8")), word)
        if name == "manifest.json":
            content |= {"reason": f"a manifest's reason {word}", "sha256": {}}  # of the other files as they were
        if name == "summary.json":
            content["warnings"] = [f"a warning {word}"]
            for comparison in content["results"]["comparisons"]:
                comparison["why"] = f"a comparison's why {word}"
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    config = behind(yaml.safe_load((ran / "config.yaml").read_text(encoding="utf-8")), word)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, width=10_000), encoding="utf-8")
    text = (ran / "events.jsonl").read_text(encoding="utf-8")
    for name in NAMES:
        text = text.replace(json.dumps(name), json.dumps(f"{name} {word}"))
    *recorded, _ = text.splitlines()
    events = [event for event in made_up(word, f"schedule {word}")[0] if event.type != "run-started"]
    grown = json.loads(next(line for line in recorded if '"stage-changed"' in line))
    lines = [
        *recorded,
        *map(encode, events),
        json.dumps({**grown, f"a new field {word}": word}),
        json.dumps({"type": f"a new event {word}", "v": grown["v"]}),
        encode(RunFinished(status="failed", reason=f"the end's reason {word}")),
    ]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines) + '{"torn', encoding="utf-8")
    return folder


def made(page: Page) -> list[tuple[str, ...]]:
    """Return the elements of a page with the names of their attributes."""
    return [(tag, *attributes) for tag, attributes in page.elements]


def values(page: Page, *names: str) -> list[str]:
    """Return the values of attributes with one of these names."""
    return [value for _, attributes in page.elements for name, value in attributes.items() if name in names]


def report_of(run: Path) -> str:
    return write_report(run, run / "page.html").read_text(encoding="utf-8")


def report_without_summary(run: Path) -> str:
    """Return the report whose metric and arms come from the events alone."""
    (run / "summary.json").unlink()
    return report_of(run)


PAGES = {"report": report_of, "live": lambda run: LivePage(run).html(), "without a summary": report_without_summary}
TOLD = {
    "report": (
        *("the end's reason", "a warning", "a new event", "task", "stripes"),
        *("schedule", "twin", "early", "blueprints/conv_light", "accuracy", "SeedLost.what", "SeedLost.package"),
        *("GovernorActed.act", "GovernorActed.reason", "UpdateFinished.figures.key", "StageChanged.slot"),
    ),
    "live": (
        *("the end's reason", "a warning", "a new event", "task", "stripes"),
        *("schedule", "twin", "early", "blueprints/conv_light", "accuracy", "SeedLost.what", "GovernorActed.reason"),
    ),
}
TOLD["without a summary"] = tuple(text for text in TOLD["report"] if text != "a warning")
"""Texts that each page must show, followed by the word."""


@pytest.fixture(scope="module")
def harmless(ran, tmp_path_factory):
    """Each page with a harmless word."""
    run = planted_run(ran, tmp_path_factory.mktemp("harmless") / "run", HARMLESS)
    return {name: Page(make(run)) for name, make in PAGES.items()}


@pytest.mark.parametrize("word", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("page", PAGES)
def test_a_hostile_text_is_shown_and_creates_no_element_or_attribute(page, word, harmless, ran, tmp_path):
    source = PAGES[page](planted_run(ran, tmp_path / "run", word))
    read = Page(source)
    assert made(read) == made(harmless[page])
    links, harmless_links = values(read, *LINKS, "xlink:href"), values(harmless[page], *LINKS)
    assert [value for value in links if not value.startswith("#") and value not in harmless_links] == []
    assert not set("\u202e\x1b") & set(source)
    if word.isprintable():  # a page that omits these texts would pass as safe
        assert [text for text in TOLD[page] if f"{text} {word}" not in "".join(read.texts)] == []
