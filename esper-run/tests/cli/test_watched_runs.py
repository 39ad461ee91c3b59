"""``esper run --watch``: the server of another package runs beside the run, and afterwards."""

import pytest

from esper_run.cli import run

SERVER = """
import sys
class Server:
    def __init__(self, runs_dir, page): self.page = page
    def __enter__(self): return self
    def __exit__(self, *_): print("closed", file=sys.stderr)
    def lines(self): return [f"http://here{self.page}"]
    def open_browser(self): print("opened", file=sys.stderr)
    def wait(self): print("waited", file=sys.stderr)
"""


@pytest.fixture
def watched(esper, file, tmp_path):
    """``watched("--open")``: run the file with ``--watch`` and other options."""
    return lambda *options: esper("run", file, "--runs-dir", tmp_path / "runs", "--quiet", "--watch", *options)


def test_the_page_is_named_before_the_run_and_served_after_it(watched, install, site):
    install.metadata("esper-viewer", "[esper.watch]\nweb = viewer:Server\n")
    (site / "viewer.py").write_text(SERVER)
    answer = watched()
    assert answer.status == 0, answer.err
    ended = "The page is served until Ctrl-C, also when the run has ended."
    assert [line for line in answer.err.splitlines() if line] == ["http://here/newest", ended, "waited", "closed"]
    assert watched("--open").err.splitlines().index("opened") == 2, "once it was said where the page is"


def test_a_browser_is_opened_only_for_a_page_that_is_served(esper, file):
    answer = esper("run", file, "--open")
    assert (answer.status, "--open needs --watch" in answer.err) == (2, True)


def test_without_a_server_nothing_runs(watched, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "entry_points", lambda **_: ())
    answer = watched()
    assert (answer.status, (tmp_path / "runs").exists()) == (2, False)
    assert answer.err.splitlines() == [
        "E433 no installed package serves runs to a browser",
        "  It comes with another package:  pip install 'esper-watch[web]'",
    ]
