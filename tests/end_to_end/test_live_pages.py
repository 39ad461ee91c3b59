"""Live pages in Chromium, beside a run that is really running."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import browser_driver
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
CONTROLS = {"button", "checkbox", "combobox", "link", "radio", "slider", "spinbutton", "switch", "tab", "textbox"}
SECONDS = 120

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    yield from browser_driver.opened()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run while it trains: its process, the URL of its page, and its run directory."""
    folder = tmp_path_factory.mktemp("live")
    esper = [sys.executable, "-m", "esper_run"]
    sizes = ["--set", "environments=2", "--set", "episode.steps=30", "--set", "episode.batches=16"]
    run = [*esper, "run", "plugins.yaml", "--quiet", "--runs-dir", folder, *sizes]
    watch = [*esper, "watch", "--runs-dir", folder]
    with subprocess.Popen(run, cwd=ROOT, stdout=subprocess.DEVNULL) as training:
        try:
            path = until(lambda: next(folder.glob("*/events.jsonl"), None), SECONDS).parent
            with subprocess.Popen(watch, stderr=subprocess.PIPE, text=True) as server:
                try:
                    yield training, next(line.strip() for line in server.stderr if line.startswith("http")), path
                finally:
                    server.kill()
        finally:
            training.kill()


@pytest.fixture
def open_page(browser, run):
    """``open_page(width, dark)``: a page that may neither complain nor ask anything of other servers."""
    _, url, _ = run
    origin, pages = url.partition("/?")[0], []

    def open_(width=1280, dark=False):
        page = browser.open(url)
        pages.append(page)
        page.resize(width, 800, dark=dark)
        return page

    yield open_
    for page in pages:
        page.evaluate("location = 'about:blank'")  # ends its requests
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith((f"{origin}/", "about:"))] == []


def unnamed_controls(page):
    """Controls that assistive technology cannot name."""
    nodes = [node for node in page.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    controls = [node for node in nodes if node["role"]["value"] in CONTROLS]
    return [node for node in controls if not node.get("name", {}).get("value", "").strip()]


def shows(page, script):
    """Wait until a script is true in the page."""
    until(lambda: page.evaluate(f"Boolean({script})"), SECONDS)


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_of_a_running_run_works_on_any_screen(open_page, width, dark):
    page = open_page(width, dark)
    shows(page, "document.getElementById('connection').textContent === 'up to date'")
    shows(page, "document.querySelector('#courses svg')")
    assert "token" not in page.evaluate("location.href")
    assert unnamed_controls(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_page_follows_its_run_and_leaves_what_was_opened_and_scrolled(open_page, run):
    process, _, path = run
    page = open_page()
    shows(page, "document.querySelector('#courses svg')")
    page.evaluate("document.body.dataset.mine = 'kept'")
    page.evaluate("[...document.querySelectorAll('#provenance summary')].at(-1).click()")
    shows(page, "document.getElementById('moment-step')?.max >= 2")
    page.evaluate("document.getElementById('moment-step').focus()")
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.press(key)
    assert page.evaluate("location.hash") == "#step=2"
    page.evaluate("scrollTo(0, 300)")
    before = page.evaluate("document.getElementById('courses').dataset.digest")
    shows(page, f"document.getElementById('courses').dataset.digest !== '{before}'")
    assert page.evaluate("scrollY") == 300
    assert page.evaluate("document.activeElement.id + ' ' + document.activeElement.value") == "moment-step 2"
    assert page.evaluate("[...document.querySelectorAll('#provenance details')].at(-1).open")
    lines = (path / "events.jsonl").read_text().count("\n")
    until(lambda: (path / "events.jsonl").read_text().count("\n") > lines or process.poll() is not None, SECONDS)
    shows(page, "document.querySelector('#arms svg')")
    assert page.evaluate("document.body.dataset.mine") == "kept"
    assert process.wait(SECONDS) == 0
    shows(page, "!document.querySelector('.headline').textContent.includes('still going')")
