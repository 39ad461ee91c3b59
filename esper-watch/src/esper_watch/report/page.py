"""How does a report come together? Its parts in the order in which a reader asks, in one file that fetches nothing.

The page says itself what it may do: its own style, its own script by its hash, and nothing from anywhere.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from esper_watch.report.arms import arms, parameters
from esper_watch.report.courses import courses
from esper_watch.report.evidence import evidence
from esper_watch.report.lives import lives
from esper_watch.report.markup import element
from esper_watch.report.networks import networks
from esper_watch.report.remains import governor, learning, of_plugins, provenance, timing
from esper_watch.report.verdict import verdict
from esper_watch.report.wording import count

if TYPE_CHECKING:
    from esper_watch.report.markup import Element
    from esper_watch.report.record import Record


def page_of(record: Record) -> str:
    """The whole page."""
    style, script = _own("page.css"), _own("page.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    allowed = ["default-src 'none'", "style-src 'unsafe-inline'", f"script-src 'sha256-{digest}'"]
    policy = "; ".join([*allowed, "base-uri 'none'", "form-action 'none'"])
    head = "".join(
        one.render()
        for one in (
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="generator", content="esper-watch"),
            element("title", f"{record.name} · Esper"),
        )
    )
    body = "\n".join(one.render() for one in _parts(record))
    told = element("div", id="told", role="status", hidden="hidden").render()
    # Style and script are this package's own files, and hold no word of a run.
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}<style>{style}</style></head>\n'
        f"<body>\n{body}\n{told}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _parts(record: Record) -> list[Element]:
    sections = [
        verdict(record),
        arms(record),
        courses(record),
        parameters(record),
        lives(record),
        networks(record),
        evidence(record),
        learning(record),
        timing(record),
        governor(record),
        *of_plugins(record),
        provenance(record),
    ]
    known = [one for one in sections if one is not None]
    return [_head(record, known), element("main", *known)]


def _head(record: Record, sections: list[Element]) -> Element:
    started = record.started
    scale = ""
    if started is not None:
        scale = (
            f"{count(len(record.arms), 'arm')} · {_rounds(started.rounds)}"
            f"{count(started.environments, 'network')} each · {count(started.steps, 'step')} · "
        )
    links = [
        element("li", element("a", title, href=f"#{dict(one.attributes)['id']}"))
        for one in sections
        if isinstance(title := _title(one), str)
    ]
    return element(
        "header",
        element("h1", record.name),
        element("p", f"{scale}{record.status} · {record.manifest.get('started', 'nobody knows when')}", class_="sub"),
        element("nav", element("ul", *links), aria_label="Parts of this report"),
    )


def _rounds(number: int) -> str:
    return "" if number == 1 else f"{count(number, 'round')} of "


def _title(section: Element) -> str | None:
    first = section.children[0]
    return None if isinstance(first, str) else "".join(child for child in first.children if isinstance(child, str))


def _own(name: str) -> str:
    return files("esper_watch.report").joinpath(name).read_text(encoding="utf-8")
