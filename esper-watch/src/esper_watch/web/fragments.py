"""Fragments: the parts of a live page, each rendered by itself, so that only what changed is sent again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from esper_core.leyline.errors import plural
from esper_watch import views
from esper_watch.headline import verdict
from esper_watch.pages import render

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from esper_watch.sections import Report, Section
    from esper_watch.views import Maker
    from esper_watch.web.index import FollowedRun, RunsFolder

HEAD: Final = "head"
"""Id of the fragment with the title and the navigation."""

PAUSES: Final = 600
"""A part of a page is made again after so many times what it took, so that it takes a sixth of a percent of a core."""

LONGEST: Final = 20.0
"""Seconds after which a part is made again at the latest."""

AGING: Final = 5.0
"""Seconds after which it is told again how long a run has taken."""


@dataclass(frozen=True)
class Fragment:
    """A part of a page: the id of its element, and what is in it."""

    id: str
    html: Markup

    @cached_property
    def digest(self) -> str:
        """Changes with the contents."""
        return sha256(self.html.encode()).hexdigest()[:12]


class LivePage:
    """The page of a run, in parts: a part that changed is made again at once if that is cheap, or else after a pause.

    So the server takes little of the processor that the run needs, and what is read first is always up to date.
    """

    def __init__(self) -> None:
        self._parts: dict[Maker, _Part] = {}
        self._shown: tuple[object, list[Fragment]] = None, []

    def fragments(self, followed: FollowedRun) -> list[Fragment]:
        """Return the head, and each section of the report, of a run that was refreshed."""
        with followed.lock:
            if followed.is_behind and not self._parts:
                # Half a history would say that a finished run is still going, and be drawn again at every look.
                return [_fragment(HEAD, "live_head.html", report=followed.report(), sections=(), followed=followed)]
            now = time.monotonic()
            revision = followed.identity, followed.revision
            moment = revision if followed.is_over else (*revision, int(now / AGING))
            revisions = {make: moment if make is verdict else revision for make in views.SECTIONS}
            over = followed.is_over
            late = [
                make for make in revisions if self._is_late(make, revisions[make], now, must=over or make is verdict)
            ]
            if not followed.is_behind and (late or self._shown[0] != moment):
                report = followed.report()
                for make in late:
                    self._parts[make] = _part(make, report, revisions[make])
                sections = [section for make in revisions for section in self._parts[make].sections]
                head = _fragment(HEAD, "live_head.html", report=report, sections=sections, followed=followed)
                self._shown = (
                    moment,
                    [head, *(fragment for make in revisions for fragment in self._parts[make].fragments)],
                )
            return self._shown[1]

    def _is_late(self, make: Maker, revision: object, now: float, *, must: bool) -> bool:
        """Return whether a part has to be made now. must: even during its pause."""
        part = self._parts.get(make)
        return part is None or (part.revision != revision and (must or now >= part.due))


@dataclass(frozen=True)
class _Part:
    """What one of ``views.SECTIONS`` made."""

    revision: object
    due: float
    """Before this time it is not made again, unless the run ends, or it is the verdict."""
    sections: list[Section]
    fragments: list[Fragment]


def _part(make: Maker, report: Report, revision: object) -> _Part:
    begin = time.thread_time()
    sections = views.made(make, report)
    fragments = [_fragment(section.anchor, "live_section.html", report=report, section=section) for section in sections]
    pause = min(LONGEST, PAUSES * (time.thread_time() - begin))
    return _Part(revision, time.monotonic() + pause, sections, fragments)


def run_fragments(followed: FollowedRun) -> list[Fragment]:
    """Return the fragments of a run's page: its head, and each section of its report."""
    return LivePage().fragments(followed)


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
    changed = {
        fragment.id: {"digest": fragment.digest, "html": fragment.html}
        for fragment in now
        if shown.get(fragment.id) != fragment.digest
    }
    if not changed and list(shown) == [fragment.id for fragment in now]:
        return None
    return {"order": [fragment.id for fragment in now], "changed": changed}


def digests(fragments: Iterable[Fragment]) -> dict[str, str]:
    """Return the digest of each fragment by its id."""
    return {fragment.id: fragment.digest for fragment in fragments}
