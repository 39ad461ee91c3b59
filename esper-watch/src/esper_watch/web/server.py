"""The server of a live page: the page itself, and what changed in it since a browser last asked."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from esper_core.leyline import ConfigError, Problem
from esper_watch.pages import render
from esper_watch.web.access import HEADERS, LOOPBACK, Access
from esper_watch.web.fragments import LivePage

if TYPE_CHECKING:
    from pathlib import Path

HOST: Final = "127.0.0.1"
PORT: Final = 6174
"""The port, or one of the next, if none is given: it stays the same for a tunnel."""

PORTS_TRIED: Final = 20

MOST_CONNECTIONS: Final = 64
"""Open at once: far fewer than the files that a process may have open, which often are 1,024. A browser opens six."""

ALL_ADDRESSES: Final = ("0.0.0.0", "::")

FILES: Final = {
    "report.css": "text/css",
    "icon.svg": "image/svg+xml",
    "live.css": "text/css",
    "report.js": "text/javascript",
    "live.js": "text/javascript",
}


class Server(ThreadingHTTPServer):
    """A server of one run, bound to its port.

    Args:
        run: The run directory.
        host: The address to listen on.
        port: The port; by default the first that is free from 6174 on.

    Raises:
        ConfigError: E433 if the address cannot be used.
    """

    daemon_threads = True  # whatever browsers still ask, Ctrl-C ends it
    request_queue_size = 128

    def __init__(self, run: Path, *, host: str = HOST, port: int | None = None) -> None:
        self.host = host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        last: OSError | None = None
        for candidate in range(PORT, PORT + PORTS_TRIED) if port is None else (port,):
            try:
                super().__init__((host, candidate), _Handler)
            except OSError as error:
                last = error
            else:
                break
        else:
            reason = (last.strerror if last else None) or last
            message = f"cannot listen on {host}:{PORT if port is None else port}: {reason}"
            raise ConfigError(Problem("E433", message, hint="Choose another address:  --host, --port"))
        hosts = LOOPBACK if host in ALL_ADDRESSES else (*LOOPBACK, host.lower())
        self.access = Access(self.server_port, hosts, any_address=host in ALL_ADDRESSES)
        self.page = LivePage(run)
        self._open: dict[int, socket.socket] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The URL of the page, with the token."""
        host = HOST if self.host in ALL_ADDRESSES else self.host
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.server_port}/?token={self.access.token}"

    @property
    def remote_access(self) -> str:
        """How the page can be reached from another machine, in words."""
        if self.host in LOOPBACK:
            destination = f"{os.environ.get('USER', 'USER')}@{socket.gethostname()}"
            tunnel = f"ssh -L {self.server_port}:{HOST}:{self.server_port} {destination}"
            return f"From another machine, with the same URL there:\n{tunnel}"
        return (
            f"warning: {self.host} can be reached from other machines, and what is sent is not encrypted. "
            "Whoever has the URL sees the run."
        )

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread, in place of the oldest connection if there are too many.

        Any user of the machine can connect without a token, and would keep the owner out.
        """
        with self._lock:
            self._open[id(request)] = request
            oldest = self._open.pop(next(iter(self._open))) if len(self._open) > MOST_CONNECTIONS else None
        if oldest is not None:
            with suppress(OSError):  # it was closed meanwhile
                oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that go away in the middle of an answer."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    timeout = 10.0  # seconds: a connection that asks for nothing is closed, so that nobody keeps the owner out

    def do_GET(self) -> None:
        """Answer with the page, its changes, or a file that it needs."""
        _, _, path, query, _ = urlsplit(self.path)
        if refusal := self.server.access.refusal(dict(self.headers.items()), query):
            self._answer(403, f"{refusal}\n")
        elif self.server.access.has_token(query):
            # A redirect takes the token out of the browser's history and of what the page's own requests show.
            cookie = f"{self.server.access.cookie}; Path=/; HttpOnly; SameSite=strict"
            self._answer(303, "", **{"Location": "/", "Set-Cookie": cookie})
        elif path == "/":
            self._answer(200, self.server.page.html(), "text/html")
        elif path == "/changes":
            shown = dict(parse_qsl(query)).get("shown", "")
            self._answer(200, json.dumps(self.server.page.changes(shown)), "application/json")
        elif (name := path.removeprefix("/static/")) in FILES and path != name:
            self._answer(200, render(name), FILES[name])
        else:
            self._answer(404, "There is no such page.\n")

    def _answer(self, status: int, text: str, kind: str = "text/plain", **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        kinds = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in {**HEADERS, **kinds, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):  # the browser is gone
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the name of the server, without versions."""
        return "esper"

    def log_message(self, *_: Any) -> None:
        """Log nothing: the token would be in it."""
