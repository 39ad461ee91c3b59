"""Live pages in Chromium, beside a run that is really running."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTROLS = {"button", "checkbox", "combobox", "link", "radio", "slider", "spinbutton", "switch", "tab", "textbox"}
SECONDS = 120

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium():
    """Chromium of the system, driven by playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright, which `make test-slow` installs")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Chromium: no program called chromium is in the PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """``esper run --watch`` while it trains: the process, the URL that it printed, and its run directory."""
    folder = tmp_path_factory.mktemp("live")
    command = [sys.executable, "-m", "esper_core", "run", "plugins.yaml", "--watch", "--runs-dir", folder / "runs"]
    sizes = ["--set", "environments=2", "--set", "episode.steps=30", "--set", "episode.batches=16"]
    with (folder / "err").open("w") as err:
        env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        process = subprocess.Popen([*command, *sizes], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=err, env=env)
    try:
        url = wait_for(lambda: re.search(r"http://\S+", (folder / "err").read_text()))[0]
        path = wait_for(lambda: next((folder / "runs").glob("*/events.jsonl"), None)).parent
        yield process, url, path
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    finally:
        process.kill()


def wait_for(found, seconds=SECONDS):
    """What ``found`` gives, once it gives something."""
    end = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return result


@pytest.fixture
def open_page(chromium, run):
    """``open_page(url, width, scheme)``: a page that may neither complain nor ask anything of other servers."""
    _, url, _ = run
    origin, contexts, faults = url.partition("/newest")[0], [], []

    def open_(path="", width=1280, scheme="light"):
        context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(origin + "/") or faults.append(asked.url))
        page.goto(url)
        if path:
            page.goto(origin + path)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert faults == []


def unnamed_controls(page):
    """Controls that assistive technology cannot name."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    return [
        node
        for node in nodes
        if not node["ignored"]
        and node["role"]["value"] in CONTROLS
        and not node.get("name", {}).get("value", "").strip()
    ]


def shows(page, script):
    """Wait until a script is true in the page. Not page.wait_for_function, which its security policy forbids."""
    wait_for(lambda: page.evaluate(script))


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("where", ["", "/"])
def test_pages_of_a_running_run_work_on_any_screen(open_page, where, width, scheme):
    page = open_page(where, width, scheme)
    shows(page, "document.getElementById('connection').textContent === 'up to date'")
    if not where:
        shows(page, "document.querySelector('#courses svg')")
    assert "token" not in page.url
    assert unnamed_controls(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if folder := os.environ.get("ESPER_SCREENSHOTS"):
        name = f"{'list' if where else 'run'}-{width}-{scheme}.png"
        page.screenshot(path=Path(folder) / name, full_page=True)


def test_a_page_follows_its_run_and_leaves_what_was_opened_and_scrolled(open_page, run):
    process, _, path = run
    page = open_page()
    shows(page, "document.querySelector('#courses svg')")
    page.evaluate("document.body.dataset.mine = 'kept'")
    page.locator("#provenance summary").last.click()
    wait_for(lambda: page.locator("#moment-step").count() and page.locator("#moment-step").get_attribute("max") >= "2")
    page.locator("#moment-step").focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.url.endswith("#step=2")
    page.evaluate("scrollTo(0, 300)")
    before = page.locator("#courses").get_attribute("data-digest")
    shows(page, f"document.getElementById('courses').dataset.digest !== '{before}'")
    assert page.evaluate("scrollY") == 300
    assert page.evaluate("document.activeElement.id + ' ' + document.activeElement.value") == "moment-step 2"
    assert page.locator("#provenance details").last.get_attribute("open") is not None
    lines = (path / "events.jsonl").read_text().count("\n")
    wait_for(lambda: (path / "events.jsonl").read_text().count("\n") > lines or process.poll() is not None)
    shows(page, "document.querySelector('#arms svg')")
    assert page.evaluate("document.body.dataset.mine") == "kept"
    wait_for(lambda: "The run has ended" in (path.parents[1] / "err").read_text())
    shows(page, "!document.querySelector('.headline').textContent.includes('still going')")
    page.context.close()
    assert process.poll() is None, "the page is served after the run"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
