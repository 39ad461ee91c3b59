"""Fragments: the parts of a live page, each rendered by itself, so that only what changed is sent again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from esper_watch import views
from esper_watch.headline import verdict
from esper_watch.pages import render
from esper_watch.web.followed_run import FollowedRun

if TYPE_CHECKING:
    from pathlib import Path

    from esper_watch.sections import Report, Section
    from esper_watch.views import Maker

HEAD: Final = "head"
"""Id of the fragment with the title and the navigation."""

PAUSES: Final = 600
"""A part of a page is made again after so many times what it took, so that it takes a sixth of a percent of a core."""

LONGEST: Final = 20.0
"""Seconds after which a part is made again at the latest."""

AGING: Final = 5.0
"""Seconds after which it is told again how long a run has taken."""


PATIENCE: Final = 2.0
"""Seconds for which a page waits for events to be read. What is left follows in the next answer."""


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

    def __init__(self, run: Path) -> None:
        self.followed = FollowedRun(run)
        self._parts: dict[Maker, _Part] = {}
        self._shown: tuple[object, list[Fragment]] = None, []

    def html(self) -> str:
        """Return the whole page."""
        head, *sections = self.fragments()
        return render("live.html", title=self.followed.history.name, head=head, sections=sections)

    def changes(self, shown: str) -> dict[str, Any]:
        """Return what a page must do that shows these fragments, written as id:digest,id:digest.

        ``order`` has the ids of all fragments, and ``changed`` those whose contents are new; empty if nothing changed.
        ``gone`` tells that the run was deleted.
        """
        if not self.followed.path.is_dir():
            return {"gone": True}
        digests = dict(part.split(":", 1) for part in shown.split(",") if ":" in part)
        fragments = self.fragments()
        changed = {
            fragment.id: {"digest": fragment.digest, "html": fragment.html}
            for fragment in fragments
            if digests.get(fragment.id) != fragment.digest
        }
        order = [fragment.id for fragment in fragments]
        return {"order": order, "changed": changed} if changed or list(digests) != order else {}

    def fragments(self, seconds: float = PATIENCE) -> list[Fragment]:
        """Read for so long at most, and return the head and each section of the report."""
        with self.followed.lock:
            self.followed.refresh(seconds)
            return self._made()

    def _made(self) -> list[Fragment]:
        followed = self.followed
        if followed.is_behind and not self._parts:
            # Half a history would say that a finished run is still going, and be drawn again at every look.
            return [_fragment(HEAD, "live_head.html", report=followed.report(), sections=(), followed=followed)]
        now, revision, over = time.monotonic(), followed.revision, followed.is_over
        moment = revision if over else (revision, int(now / AGING))
        revisions = {make: moment if make is verdict else revision for make in views.SECTIONS}
        late = [make for make in revisions if self._is_late(make, revisions[make], now, must=over or make is verdict)]
        if not followed.is_behind and (late or self._shown[0] != moment):
            report = followed.report()
            for make in late:
                self._parts[make] = _part(make, report, revisions[make])
            parts = [self._parts[make] for make in revisions]
            sections = [part.section for part in parts if part.section is not None]
            head = _fragment(HEAD, "live_head.html", report=report, sections=sections, followed=followed)
            self._shown = moment, [head, *(part.fragment for part in parts if part.fragment is not None)]
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
    section: Section | None
    fragment: Fragment | None
    """None, as its section, if there is nothing to show."""


def _part(make: Maker, report: Report, revision: object) -> _Part:
    begin = time.thread_time()
    section = make(report)
    fragment = None
    if section is not None:
        fragment = _fragment(section.anchor, "live_section.html", report=report, section=section)
    pause = min(LONGEST, PAUSES * (time.thread_time() - begin))
    return _Part(revision, time.monotonic() + pause, section, fragment)


def _fragment(id_: str, template: str, **values: Any) -> Fragment:
    return Fragment(id_, Markup(render(template, **values)))
