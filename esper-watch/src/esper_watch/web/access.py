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
from base64 import b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy: nothing inline, and nothing from elsewhere."""

_HOST: Final = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?")
_INLINE: Final = re.compile("<(style|script)>(.*?)</(?:style|script)>", re.DOTALL)

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

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
        """Name of the cookie."""
        return f"esper-{self.port}"

    def is_known_host(self, header: str | None) -> bool:
        """Return whether a Host header names this server. Ports may differ: ssh -L forwards from another one."""
        name = _host_name(header or "")
        if name in self.hosts:
            return True
        return self.any_address and (_is_address(name) or name == socket.gethostname().lower())

    def is_token(self, token: str) -> bool:
        """Return whether ``token`` is the right one."""
        return secrets.compare_digest(token.encode(), self.token.encode())

    def has_session(self, header: str | None) -> bool:
        """Return whether a Cookie header has the cookie of this server."""
        session = cookie_parser(header or "").get(self.cookie, "")
        return secrets.compare_digest(session.encode(), self._session.encode())

    def welcome(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Return a redirect to the same page without the token, which sets the cookie."""
        target = "/" + quote(path.lstrip("/"))
        response = RedirectResponse(f"{target}?{urlencode(query)}" if query else target, status_code=303)
        response.set_cookie(self.cookie, self._session, path="/", httponly=True, samesite="strict")
        return response


class Guard:
    """ASGI middleware that refuses what ``Access`` does not allow, and adds ``HEADERS`` to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = self._answer(scope) or self._app
            await answer(scope, receive, _with_headers(send))
        # All else, such as a WebSocket, gets no answer, which uvicorn turns into a refusal.

    def _answer(self, scope: Scope) -> Response | None:
        """Return a refusal or a redirect; None if the request may pass."""
        access, headers = self._access, Headers(scope=scope)
        if not access.is_known_host(headers.get("host")):
            return PlainTextResponse("This server does not answer for this host name.\n", status_code=403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This server only shows; use GET.\n", status_code=405)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if tokens := [value for name, value in query if name == "token"]:
            if access.is_token(tokens[-1]):
                return access.welcome(scope["path"], [pair for pair in query if pair[0] != "token"])
            return PlainTextResponse(f"This is not the token. {NEEDS_TOKEN}\n", status_code=403)
        if not access.has_session(headers.get("cookie")):
            return PlainTextResponse(f"{NEEDS_TOKEN}\n", status_code=403)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("Another site asked for this page; open it yourself.\n", status_code=403)
        return None


def policy_for(page: str) -> str:
    """Return the policy for a page with a style or script of its own, which it allows by their hashes.

    The page is rendered with autoescape, so what it holds of runs is text and no element.
    """
    policy = POLICY
    for kind, content in _INLINE.findall(page):
        digest = b64encode(sha256(content.encode()).digest()).decode()
        policy = policy.replace(f"{kind}-src", f"{kind}-src 'sha256-{digest}'")
    return policy


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def _host_name(header: str) -> str:
    """Return the host of a Host header without its port and brackets; empty if it is malformed.

    >>> _host_name("127.0.0.1:6174"), _host_name("[::1]:6174"), _host_name("LOCALHOST."), _host_name("[::1].example")
    ('127.0.0.1', '::1', 'localhost', '')
    """
    match = _HOST.fullmatch(header)
    return "" if match is None else (match[1] or match[2]).lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
