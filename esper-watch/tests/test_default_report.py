"""The report of the default run is small, opens quickly, and makes no requests."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEFAULT = Path(__file__).parents[2] / "plugins.yaml"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Return what ``esper run plugins.yaml`` writes in an empty folder."""
    folder = tmp_path_factory.mktemp("default")
    shutil.copy(DEFAULT, folder)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ESPER")}
    command = [sys.executable, "-m", "esper_core", "run", DEFAULT.name]
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = folder.glob("runs/*/report.html")
    return report


def test_the_report_of_the_default_run_is_less_than_500_kb(left):
    assert 20_000 < left.stat().st_size < 500_000


def test_the_report_of_the_default_run_opens_in_less_than_a_second_and_fetches_nothing(left, browser):
    browser.open(left)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        page = browser.open(left)
        took.append(time.perf_counter() - began)
    assert min(took) < 1.0, "the quickest of three: what else the machine does is not the page's fault"
    text = page.evaluate("document.body.innerText")
    for said in ("heuristic", "twin", "capacity", "8 pairs of networks", "Learning curves", "Resulting networks"):
        assert said in text, said
    page.resize(390, 800, dark=True)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true; 1")
    assert page.requests == [left.resolve().as_uri()], "the file itself, and nothing else"
    assert page.complaints == []
