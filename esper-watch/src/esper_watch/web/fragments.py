"""Fragments: the parts of a live page, each rendered by itself, so that only what changed is sent again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from esper_core.leyline.errors import plural
from esper_watch import views
from esper_watch.pages import render

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from esper_watch.web.index import FollowedRun, RunsFolder

HEAD: Final = "head"
"""Id of the fragment with the title and the navigation."""


@dataclass(frozen=True)
class Fragment:
    """A part of a page: the id of its element, and what is in it."""

    id: str
    html: Markup

    @cached_property
    def digest(self) -> str:
        """Changes with the contents."""
        return sha256(self.html.encode()).hexdigest()[:12]


def run_fragments(followed: FollowedRun) -> list[Fragment]:
    """Return the fragments of a run's page: its head, and each section of its report."""
    with followed.lock:
        report = followed.report()
        sections = views.sections(report)
        head = _fragment(HEAD, "live_head.html", report=report, sections=sections, followed=followed)
        return [head, *(_fragment(one.anchor, "live_section.html", report=report, section=one) for one in sections)]


def index_fragments(runs: RunsFolder, seconds: float, tunnel: str) -> list[Fragment]:
    """Return the fragments of the list of runs.

    Args:
        runs: The folder.
        seconds: For which runs are read, at most.
        tunnel: How to reach the server from another machine; may be empty.
    """
    cards = [(card, format_age(card.started)) for card in runs.cards(seconds)]
    head = _fragment(HEAD, "live_index_head.html", root=runs.root, number=len(cards))
    return [
        head,
        _fragment("runs", "live_index.html", cards=cards),
        _fragment("remote", "live_tunnel.html", tunnel=tunnel),
    ]


def format_age(started: str, now: datetime | None = None) -> str:
    """Return how long ago a time in ISO 8601 was; empty if it is not one.

    >>> from datetime import UTC, datetime
    >>> format_age("2026-11-21T10:15:12+00:00", datetime(2026, 11, 21, 12, 15, tzinfo=UTC))
    '2 hours ago'
    """
    try:
        seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(started)).total_seconds()
    except (TypeError, ValueError):
        return ""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return f"{plural(round(seconds / length), unit)} ago"
    return "just now"


def _fragment(id_: str, template: str, **values: Any) -> Fragment:
    return Fragment(id_, Markup(render(template, **values)))


def changes(shown: Mapping[str, str], now: Sequence[Fragment]) -> dict[str, Any] | None:
    """Return what a page must do that shows fragments with these digests; None if nothing changed.

    ``order`` has the ids of all fragments, and ``changed`` those whose contents are new.
    """
    changed = {one.id: {"digest": one.digest, "html": one.html} for one in now if shown.get(one.id) != one.digest}
    if not changed and list(shown) == [one.id for one in now]:
        return None
    return {"order": [one.id for one in now], "changed": changed}


def digests(fragments: Iterable[Fragment]) -> dict[str, str]:
    """Return the digest of each fragment by its id."""
    return {one.id: one.digest for one in fragments}
