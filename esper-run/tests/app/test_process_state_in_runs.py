"""Whatever a component changes of the process's state, other environments compute the same numbers."""

import random

import numpy as np
import pytest
import torch

from esper_core.leyline.events import StepFinished
from esper_run import read_events
from tests.support.core_worlds import slow
from tests.support.hostile_plugin import RUN, plugin

FLAGS = {
    "changed torch's flushing of denormal numbers": "torch.set_flush_denormal(True)",
    "changed torch's thread count from": "torch.set_num_threads(2)",
}
"""What is said of a change, and the code that makes it.

The thread count is not changed where environments compute at the same time: MKL's is that of the process, so that
others see it until it is put back. A fork of a process that computed with two threads cannot change it at all.
"""
REST = {"uses Python's random generator": "random.seed(3)", "uses NumPy's random generator": "np.random.seed(3)"}

PLACES = {
    **dict.fromkeys(("import", "registration", "step", "health"), "plugin"),
    **dict.fromkeys(("split", "losses"), "task"),
    **dict.fromkeys(("factory", "training"), "blueprint"),
    **{"host": "host", "schedule": "schedule", "act": "policy", "reward": "reward", "hear": "sink"},
}
"""The places in which the plugin meddles, and the kind of component that is named."""

IN_ENVIRONMENTS = ["factory", "training", "losses", "schedule"]
EXPECTED: dict[bool, dict[str, list[str]]] = {}
"""What each arm measured where nothing meddled, with networks as one program (True) and one after another."""


def changes_at(place, lanes):
    """Return the changes that are made in a place."""
    flags = dict(list(FLAGS.items())[: 1 if place in ("host", "hear") or lanes > 1 else 2])
    return flags if place in ("import", "registration", "hear") else {**flags, **REST}


@pytest.fixture
def meddled(tmp_path, run_file, caplog, monkeypatch):
    """``meddled(places, engine, lanes)``: the warnings of a run, and what the environments of each arm measured."""
    monkeypatch.chdir(tmp_path)

    def run(places, engine, lanes, *, fused):
        code = {place: "\n".join(changes_at(place, lanes).values()) for place in places}
        blocks = [(place, code.pop(place)) for place in ("factory", "training") if place in code]
        (tmp_path / "hostile.py").write_text(plugin(code, dict(enumerate(blocks))))
        (tmp_path / "run.yaml").write_text(RUN)
        random.seed(1)  # a test before may have left the very states that the plugin sets
        np.random.seed(1)
        before = torch.get_num_threads(), random.getstate(), str(np.random.get_state())
        settings = "environments=2", "episode.steps=4", "patience=auto", f"engine={engine}", f"lanes={lanes}"
        path = run_file(tmp_path / "run.yaml", *settings, f"compute.fused={str(fused).lower()}")
        assert (torch.get_num_threads(), random.getstate(), str(np.random.get_state())) == before
        seen: dict[str, list[str]] = {}
        for event in read_events(path / "events.jsonl"):
            if isinstance(event, StepFinished):
                seen.setdefault(event.arm, []).append(repr(event.signals))
        messages = [record.getMessage().partition("\n")[0] for record in caplog.records]
        return [message for message in messages if message.startswith("E237")], seen

    return run


@pytest.mark.members
@pytest.mark.parametrize(
    ("places", "engine", "lanes"),
    [
        ([place for place in PLACES if place not in (*IN_ENVIRONMENTS, "host")], "threads", 1),
        slow(IN_ENVIRONMENTS, "threads", 1),
        (IN_ENVIRONMENTS, "threads", 2),
        (IN_ENVIRONMENTS, "processes", 2),
        (["host"], "threads", 1),
    ],
)
def test_state_of_the_process_is_put_back_and_the_component_named(places, engine, lanes, meddled):
    fused = not {"training", "host"} & set(places)
    if fused not in EXPECTED:
        messages, EXPECTED[fused] = meddled([], "threads", 1, fused=fused)
        assert messages == []
    messages, seen = meddled(places, engine, lanes, fused=fused)
    assert seen == EXPECTED[fused]
    for place in places:
        named = [message for message in messages if f'{PLACES[place]} "hostile' in message and "(local file" in message]
        missed = [change for change in changes_at(place, lanes) if not any(change in message for message in named)]
        assert missed == [], place
