"""Workers that run ahead: a run asks them seldom, and finds what it would have found step by step."""

import json
import re
from collections import Counter

import pytest

from esper_run.watchdog import can_fork
from esper_scale.engines.processes import ForkedWorker
from esper_scale.engines.protocol import RUN_AHEAD
from tests.end_to_end.conftest import run_once
from tests.end_to_end.test_kills import found_in

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux, without an accelerator")

RUN = """
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light, pointwise]}}
arms:
  heuristic: {policy: {use: heuristic, settings: {preview: 2}}}
  chance: {policy: random}
CROWD
environments: 3
lanes: 3
growth: {embargo: 0}
episode: {steps: 20, batches: 2, batch_size: 20}
plugins: {local: [own.py]}
"""
OWN = '''
from esper_core import PolicySpec, hookimpl
from esper_core.leyline import WAIT, Action, Op


class Crowd:
    """Germinates where its arm has the lowest loss."""

    def __init__(self, space):
        pass

    def act(self, observations, masks):
        losses = [one.signals.validation_loss for one in observations]
        able = masks[losses.index(min(losses))].blueprints.get("early", ())
        seed = Action(Op.GERMINATE, "early", able[0]) if able else WAIT
        return [seed if loss == min(losses) else WAIT for loss in losses]


@hookimpl
def esper_register_policies(registry):
    registry.add("crowd", Crowd, PolicySpec())
'''
APART, CROWD = "went on in another way", "  crowd: {policy: own/crowd}\n"


def run_by_both(folder, text):
    """Run a configuration with threads and with processes, which find the same; return both run directories."""
    runs = []
    for engine in ("threads", "processes"):
        (folder / engine).mkdir()
        (folder / engine / "own.py").write_text(OWN)
        runs.append(run_once(folder / engine, text, "--engine", engine))
    assert found_in(runs[0]) == found_in(runs[1])
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("crowd", ["", CROWD], ids=["alone", "crowd"])
def test_workers_that_run_ahead_find_what_they_would_step_by_step(tmp_path, monkeypatch, crowd):
    """A policy that looks at environments of other workers makes them return to where they went astray."""
    monkeypatch.setattr("esper_scale.engines.worker_pool.SECONDS_AHEAD", 1e9)
    sent: Counter[str] = Counter()
    send = ForkedWorker.send
    monkeypatch.setattr(
        ForkedWorker, "send", lambda self, request: (sent.update([request.method]), send(self, request))[1]
    )
    in_threads, in_processes = run_by_both(tmp_path, RUN.replace("CROWD\n", crowd))
    assert b'"action":"germinate early' in (in_threads / "events.jsonl").read_bytes()
    log = (in_processes / "log.txt").read_text()
    assert (APART in log) == bool(crowd)
    if not crowd:
        assert sent[RUN_AHEAD] == 2 * 2 * 3  # in both studies, for the first step and the rest, of three workers
        assert sent["train"] == 0
        timing = json.loads((in_processes / "summary.json").read_text())["timing"]
        assert {"evaluate", "govern", "grow", "incubate"} <= timing.keys()
        assert timing["train"] < 0.9 * sum(timing[name] for name in ("train", "evaluate", "grow", "incubate"))


def test_workers_whose_episodes_are_over_wait_for_the_others(tmp_path, monkeypatch):
    """They have no twin, and are asked for every step anew."""
    monkeypatch.setattr("esper_scale.engines.worker_pool.SECONDS_AHEAD", 1e-9)
    text = RUN.replace("CROWD\n", "").replace(
        "growth:", "governor: {patience: 2}\ntwin: false\ncapacity: false\ngrowth:"
    )
    _, run = run_by_both(tmp_path, text)
    lengths = re.findall(r'"steps":(\d+),"flops"', (run / "events.jsonl").read_text())
    assert len(set(lengths)) > 1, "episodes of several lengths"
    assert APART not in (run / "log.txt").read_text()
