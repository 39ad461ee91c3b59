"""The pages of the server, and the streams that refresh them (starlette).

A stream looks at the run directories about once a second, and sends the fragments that changed as server-sent events.
A page that was rendered once is shared by all who look at it.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from esper_core import EsperError
from esper_run import load_run
from esper_watch.history import History
from esper_watch.pages import render
from esper_watch.web.access import Guard, policy_for
from esper_watch.web.fragments import LivePage, changes, digests, index_fragments
from esper_watch.web.index import KEPT, refuse_links

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from esper_watch.web.access import Access
    from esper_watch.web.fragments import Fragment
    from esper_watch.web.index import RunsFolder

PAUSE: Final = 1.0
"""Seconds between two looks at a run."""

LOAD: Final = 4.0
"""A look that took long is followed by a pause of so many times its length."""

PATIENCE: Final = 2.0
"""Seconds for which a page waits for events to be read. What is left follows in its stream."""

HEARTBEAT: Final = 10.0
"""Seconds of silence after which a stream says that it is alive; a page that hears nothing for 30 s doubts it."""

ALIVE: Final = "event: alive\ndata: {}\n\n"
"""What it says. A comment would not reach the script of a page."""

FILES: Final = {
    "report.css": "text/css",
    "comparison.css": "text/css",
    "icon.svg": "image/svg+xml",
    "live.css": "text/css",
    "report.js": "text/javascript",
    "live.js": "text/javascript",
}


class Site:
    """The pages of a folder of runs.

    Args:
        runs: The folder.
        newest_since: Time after which the run began that ``/newest`` leads to.
        tunnel: How to reach the server from another machine.
    """

    def __init__(self, runs: RunsFolder, newest_since: float = 0.0, tunnel: str = "") -> None:
        self._runs = runs
        self._tunnel = tunnel
        self._since = newest_since
        self._pages: dict[str, LivePage] = {}
        self._lock = RLock()
        self.is_closing: Callable[[], bool] = lambda: False
        """Tells that streams must end."""

    def app(self, access: Access) -> ASGIApp:
        """Return the ASGI application, guarded by ``access``."""
        routes = [
            Route("/", self._index),
            Route("/live", self._index_stream),
            Route("/newest", self._newest),
            Route("/run/{name}", self._run),
            Route("/run/{name}/live", self._run_stream),
            Route("/compare", self._compare),
            Route("/static/{name}", self._static),
        ]
        return Guard(Starlette(routes=routes), access)

    # --- pages

    def _index(self, _request: Request) -> Response:
        return HTMLResponse(self.index_page())

    def _run(self, request: Request) -> Response:
        name = request.path_params["name"]
        page = self.run_page(name)
        return _missing(name) if page is None else HTMLResponse(page)

    def _newest(self, _request: Request) -> Response:
        by_start = {}
        for name in self._runs.names():
            with suppress(EsperError):
                refuse_links(self._runs.root / name)
                by_start[load_run(self._runs.root / name).started.timestamp()] = name
        newest = max(by_start, default=0.0)
        return RedirectResponse(_path_of(by_start[newest]) if newest >= self._since else "/", status_code=303)

    def _compare(self, request: Request) -> Response:
        from esper_watch.comparison import compare_runs
        from esper_watch.comparison_view import comparison_page

        names = [name for listed in request.query_params.getlist("runs") for name in listed.split(",") if name]
        if not names:
            return HTMLResponse(render("live_problem.html", title="Choose runs to compare", problems=()), 400)
        try:
            for name in names:
                if self._runs.run(name) is None:
                    return _missing(name)
                refuse_links(self._runs.root / name)
            compared = compare_runs([load_run(self._runs.root / name) for name in names])
            page = comparison_page(compared, [self._history_of(run.path.name) for run in compared.runs], index="/")
        except EsperError as error:
            return HTMLResponse(render("live_problem.html", title="No comparison", problems=error.problems), 409)
        return HTMLResponse(page, headers={"Content-Security-Policy": policy_for(page)})

    def _history_of(self, name: str) -> History:
        followed = self._runs.run(name)
        if followed is None:
            return History(name)
        followed.refresh()
        history: History = followed.history
        return history

    def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return PlainTextResponse("There is no such file.\n", 404)
        return Response(render(name), media_type=FILES[name])

    def index_page(self) -> str:
        """Return the list of runs as HTML."""
        return _page(self._index_fragments(), title="Runs", stream="/live")

    def run_page(self, name: str) -> str | None:
        """Return the page of a run as HTML; None if there is none."""
        fragments = self._run_fragments(name, PATIENCE)
        return None if fragments is None else _page(fragments, title=name, stream=f"{_path_of(name)}/live")

    # --- streams

    def _index_stream(self, request: Request) -> Response:
        return self._stream(request, self._index_fragments)

    def _run_stream(self, request: Request) -> Response:
        name = request.path_params["name"]
        if self._runs.run(name) is None:
            return _missing(name)
        return self._stream(request, lambda: self._run_fragments(name, PAUSE))

    def _stream(self, request: Request, look: Callable[[], list[Fragment] | None]) -> Response:
        """Return a stream of what changes. ``shown`` in the query tells what the page shows: id:digest,id:digest."""
        query = request.query_params.get("shown", "")
        shown = dict(part.split(":", 1) for part in query.split(",") if ":" in part)
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._messages(shown, look), media_type="text/event-stream", headers=headers)

    async def _messages(self, shown: dict[str, str], look: Callable[[], list[Fragment] | None]) -> AsyncIterator[str]:
        yield f"retry: 1000\n\n{ALIVE}"
        last_sent = time.monotonic()
        while not self.is_closing():
            begun = time.monotonic()
            fragments = await run_in_threadpool(look)
            if fragments is None:  # the run was deleted
                yield 'data: {"gone": true}\n\n'
                return
            if message := changes(shown, fragments):
                shown = digests(fragments)
                yield f"data: {json.dumps(message)}\n\n"
                last_sent = time.monotonic()
            elif time.monotonic() - last_sent > HEARTBEAT:
                yield ALIVE
                last_sent = time.monotonic()
            await asyncio.sleep(max(PAUSE, LOAD * (time.monotonic() - begun)))

    # --- what they show

    def _run_fragments(self, name: str, patience: float) -> list[Fragment] | None:
        followed = self._runs.run(name)
        if followed is None:
            return None
        with followed.lock:
            followed.refresh(patience)
            page = self._pages.setdefault(name, LivePage())
            for outdated in [key for key in list(self._pages) if key != name][: -KEPT + 1]:  # the oldest
                self._pages.pop(outdated, None)
            return page.fragments(followed)

    def _index_fragments(self) -> list[Fragment]:
        with self._lock:
            return index_fragments(self._runs, PATIENCE, self._tunnel)


def _page(fragments: list[Fragment], *, title: str, stream: str) -> str:
    head, *sections = fragments
    return render("live.html", title=title, stream=stream, head=head, sections=sections)


def _path_of(name: str) -> str:
    return f"/run/{quote(name, safe='')}"


def _missing(name: str) -> Response:
    return HTMLResponse(render("live_problem.html", title=f"There is no run {name}", problems=()), 404)
