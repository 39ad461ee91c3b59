"""Start and stop the server (uvicorn).

    python -m esper_watch.web.server

is the process that ``beside`` starts: it reads what to serve as one line of JSON from stdin, answers with one line, and
serves until stdin is closed, so that it never outlives the run.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import uvicorn

from esper_core import EsperError
from esper_core.leyline import ConfigError, Problem
from esper_watch.web.access import LOOPBACK, Access
from esper_watch.web.connections import BACKLOG, LimitedConnection
from esper_watch.web.index import RunsFolder
from esper_watch.web.site import Site

HOST: Final = "127.0.0.1"
PORT: Final = 6174
"""The port, or one of the next, if none is given: it stays the same for a tunnel."""

PORTS_TRIED: Final = 20
ALL_ADDRESSES: Final = ("0.0.0.0", "::")


class Server:
    """A server of the runs below ``root``, bound to its port.

    Raises:
        ConfigError: E433 if the address cannot be used.
    """

    def __init__(self, root: Path, only: str | None = None, *, host: str = HOST, port: int | None = None) -> None:
        self.host = host
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        hosts = LOOPBACK if host in ALL_ADDRESSES else (*LOOPBACK, host.lower())
        self._access = Access(self.port, hosts, any_address=host in ALL_ADDRESSES)
        self._site = Site(RunsFolder(root, only), newest_since=time.time() - 1, tunnel=self.tunnel)
        config = uvicorn.Config(
            self._site.app(self._access),
            http=LimitedConnection,
            ws="none",
            backlog=BACKLOG,
            access_log=False,  # the token would be in it
            log_level="error",
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._site.is_closing = lambda: self._server.should_exit  # it waits for streams to end

    @property
    def tunnel(self) -> str:
        """The command that makes the server reachable from another machine; empty if it is."""
        destination = f"{getpass.getuser()}@{socket.gethostname()}"
        return f"ssh -L {self.port}:{HOST}:{self.port} {destination}" if self.host in LOOPBACK else ""

    def url(self, path: str = "/") -> str:
        """Return the URL of a page with the token."""
        host = HOST if self.host in ALL_ADDRESSES else self.host
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.port}{path}?token={self._access.token}"

    def close(self) -> None:
        """Give up the port of a server that does not serve."""
        self._socket.close()

    def serve(self) -> None:
        """Serve until ``stop``, or an interrupt."""
        with suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End all streams, and the server. May be called from another thread."""
        self._server.should_exit = True


def _bind(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: OSError | None = None
    for candidate in range(PORT, PORT + PORTS_TRIED) if port is None else (port,):
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, candidate))
            bound.listen()
        except OSError as error:
            last = error
            bound.close()
        else:
            return bound
    address = f"{host}:{PORT}" if port is None else f"{host}:{port}"
    message = f"cannot listen on {address}: {(last.strerror if last else None) or last}"
    raise ConfigError(Problem("E433", message, hint="Choose another address:  --host, --port"))


def lines(server: Server, path: str = "/") -> list[str]:
    """Return what to tell a user about a server: its URL in a line of its own, and how to reach it from elsewhere."""
    messages = ["Watch in a browser:", server.url(path)]
    if server.tunnel:
        messages += ["From another machine, with the same URL there:", server.tunnel]
    else:
        messages.append(
            f"warning: {server.host} can be reached from other machines, and what is sent is not encrypted. "
            "Whoever has the URL sees the runs."
        )
    return messages


def main() -> None:
    """Serve as the process beside a run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    os.nice(5)  # and so is the processor
    request = json.loads(sys.stdin.readline())
    try:
        server = Server(Path(request["root"]))
    except EsperError as error:
        answer = {"problem": error.problems[0].message}
        print(json.dumps(answer), flush=True)
        return
    print(json.dumps({"lines": lines(server, request["page"])}), flush=True)

    def wait() -> None:
        sys.stdin.read()
        server.stop()

    threading.Thread(target=wait, daemon=True).start()
    server.serve()


if __name__ == "__main__":
    main()
