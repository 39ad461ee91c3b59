"""Drive headless Chromium over a pipe, with its DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def opened() -> Iterator[Browser]:
    """Yield headless Chromium, for a fixture; the test is skipped where there is none."""
    program = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
    if program is None:
        pytest.skip(f"needs Chromium: no program called {', '.join(NAMES)} is in the PATH")
    with Browser(program) as browser:
        yield browser


@dataclass
class Page:
    """An open page, with its requests and errors."""

    browser: Browser
    session: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command for this page to Chromium."""
        return self.browser.call(method, self, **parameters)

    def evaluate(self, script: str) -> Any:
        """Return the result of a script in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def point(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x: float, y: float) -> None:
        self.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=1)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def resize(self, width: int, height: int, *, dark: bool = False, media: str = "screen") -> None:
        """Change the size of the screen."""
        mobile = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])


ERRORS = 'addEventListener("error", (event) => console.error(event.message))'
"""Collects errors without an exception, such as that of a looping observer: only the window's handler receives them."""

KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Escape": 27, "Home": 36}


class Browser:
    """Chromium with a temporary profile."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium reads from 3 and writes to 4: a shell puts the pipes there.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            ["bash", "-c", command, program, *options, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._unread, self._number, self._pages = b"", 0, dict[str, Page]()

    def open(self, place: Path | str) -> Page:
        """Open a file or a URL, and wait until it is loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Page.addScriptToEvaluateOnNewDocument", source=ERRORS)
        page.call("Page.navigate", url=place if isinstance(place, str) else place.resolve().as_uri())
        while page.evaluate("document.readyState") != "complete":
            pass
        return page

    def call(self, method: str, page: Page | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for the answer; record events meanwhile on their page."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        if page is not None:
            request["sessionId"] = page.session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            more = os.read(self._read, 1 << 16)
            assert more, "Chromium is gone"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        page, parameters = self._pages.get(message.get("sessionId", "")), message.get("params", {})
        if page is None:
            return
        if message["method"] == "Network.requestWillBeSent":
            page.requests.append(parameters["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            page.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded":
            page.complaints.append(parameters["entry"]["text"])
        elif message["method"] == "Runtime.consoleAPICalled":
            page.complaints.append(json.dumps(parameters["args"]))

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()
