"""Access to the server: a token, a cookie, the Host header, and headers that restrict what a page may do.

Any page that a browser shows can send requests to 127.0.0.1, and any user of the machine can connect to it. So a
request needs a cookie that only the URL with the token gives. Names other than those of this machine are refused, since
a foreign domain may resolve to 127.0.0.1 (DNS rebinding). There are no CORS headers, so no other page reads an answer.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

_HOST: Final = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?")

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer: the page loads nothing inline and nothing from elsewhere."""

NEEDS_TOKEN: Final = "Open the URL with the token, which esper printed when it started this server."


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Args:
        port: Part of the cookie's name: cookies of one host are shared by all of its ports.
        hosts: Names, beside numeric addresses of other hosts than this one, that a Host header may have.
        any_address: Whether the server listens on all addresses, so that each of them may be in a Host header.
    """

    port: int
    hosts: tuple[str, ...] = LOOPBACK
    any_address: bool = False
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie(self) -> str:
        """The cookie, for which the URL with the token is exchanged."""
        return f"esper-{self.port}={self._session}"

    def has_token(self, query: str) -> bool:
        """Return whether a query has the right token."""
        return any(
            secrets.compare_digest(token.encode(), self.token.encode()) for token in parse_qs(query).get("token", ())
        )

    def refusal(self, headers: Mapping[str, str], query: str) -> str | None:
        """Return why a request is refused, as a sentence; None if it may pass."""
        if not self._is_known_host(headers.get("Host", "")):
            return "This server does not answer for this host name."
        if "token" in parse_qs(query, keep_blank_values=True):
            return None if self.has_token(query) else f"This is not the token. {NEEDS_TOKEN}"
        cookies = [cookie.strip() for cookie in headers.get("Cookie", "").split(";")]
        if not any(secrets.compare_digest(cookie.encode(), self.cookie.encode()) for cookie in cookies):
            return NEEDS_TOKEN
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "Another site asked for this page; open it yourself."
        return None

    def _is_known_host(self, header: str) -> bool:
        """Return whether a Host header names this server. Ports may differ: ssh -L forwards from another one."""
        name = _host_name(header)
        if name in self.hosts:
            return True
        if not self.any_address:
            return False
        with suppress(ValueError):  # it is no address
            ipaddress.ip_address(name)
            return True
        return name == socket.gethostname().lower()


def _host_name(header: str) -> str:
    """Return the host of a Host header without its port and brackets; empty if it is malformed.

    >>> _host_name("127.0.0.1:6174"), _host_name("[::1]:6174"), _host_name("LOCALHOST."), _host_name("[::1].example")
    ('127.0.0.1', '::1', 'localhost', '')
    """
    match = _HOST.fullmatch(header)
    return "" if match is None else (match[1] or match[2]).lower().removesuffix(".")
