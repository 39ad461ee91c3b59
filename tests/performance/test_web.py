"""P16 to P18: how fast live pages open, and what their server takes."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.perf.event_files import write_run
from benchmarks.perf.figures import Figure
from benchmarks.perf.live_pages import follow_run, open_page


def opened(run):
    """The page of a run in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        page = alone.submit(open_page, run).result()
    assert not page.has_torch
    return page


def test_page_of_many_environments(benchmark, record, quick, tmp_path):
    environments, steps = (4, 10) if quick else (64, 200)
    run = write_run(tmp_path, rounds=1, environments=environments, steps=steps)
    page = benchmark.pedantic(lambda: opened(run), rounds=1)
    record(
        Figure("P16", "live page of 64 environments × 200 steps", page.seconds, "s", 1.0),
        Figure("P16", "size of that page", page.bytes_of_page / 1e6, "MB", 3.0),
    )


def test_run_of_a_million_events(benchmark, record, quick, tmp_path):
    rounds, environments, steps = (2, 4, 10) if quick else (39, 64, 200)
    run = write_run(tmp_path, rounds=rounds, environments=environments, steps=steps)
    first = benchmark.pedantic(lambda: opened(run), rounds=1)
    record(
        Figure("P17", "live page of a run of 10⁶ events, opened", first.seconds, "s", 10.0, 1),
        Figure("P17", "resident memory of its server beyond imports", first.megabytes, "MB", 200.0, 0),
    )


def test_server_beside_a_run(benchmark, record, quick):
    settings = ["capacity=false", *(["environments=1", "episode.steps=4"] if quick else ["environments=4"])]
    command = [sys.executable, "-m", "esper_run", "run", "plugins.yaml", "--quiet"]
    command += [argument for setting in settings for argument in ("--set", setting)]
    share = benchmark.pedantic(lambda: follow_run(command, Path(__file__).parents[2]), rounds=1)
    record(Figure("P18", "server of a live page that is followed, share of two cores", 50 * share, "%", 1.0))
