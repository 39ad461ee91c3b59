"""Time and memory of a run do not grow with the number of rounds."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median, quantiles

import pytest
import torch

from esper_core.app.compose import prepare
from esper_core.app.run import run
from esper_core.leyline.events import EpisodeFinished, Event

STATM = Path("/proc/self/statm")
ROUNDS, TENTH = 200, 20

RUN = f"""
task: {{use: tasks/mnist1d, settings: {{samples: 200, validation: 60}}}}
host: {{use: tasks/pointwise-mlp, settings: {{channels: 4, hidden: 8}}}}
slots: {{early: {{blueprints: [conv_light, pointwise]}}}}
policy: %s
environments: 4
rounds: {ROUNDS}
episode: {{steps: 6, batches: 2, batch_size: 20}}
capacity: false
"""


PLANNED = """
  use: policies/schedule
  settings:
    plan:
      - {step: 0, slot: early, op: germinate, blueprint: conv_light}
      - {step: 2, slot: early, op: advance}
      - {step: 4, slot: early, op: fossilise}
"""
"""The same growth in each round: whoever grows by chance does more in some rounds than in others."""


def always_the_same() -> None:
    """Some work in Python and in torch, for comparison: a machine may be slower after a minute than it was before."""
    one = torch.ones(8, 16, 40)
    for _ in range(400):
        one = torch.nn.functional.conv1d(one, torch.ones(16, 16, 1)) / 16
        sum(range(100))


class Rounds:
    """What each round took, as a multiple of a work that is always the same; and what memory the process had then."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.megabytes: list[float] = []
        self._since = time.process_time()

    def hear(self, event: Event) -> None:
        if isinstance(event, EpisodeFinished) and event.round == len(self.took):
            now = time.process_time()
            always_the_same()
            took = now - self._since
            self._since = time.process_time()
            self.took.append(took / (self._since - now))
            self.megabytes.append(int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20)

    def settle(self) -> None:
        """A step is over: nothing to do."""


def quicker(took: list[float]) -> float:
    """What a quarter of the rounds stays below: whatever else the machine does makes some slower, and none quicker."""
    return quantiles(took, n=4)[0]


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("policy", "does_the_same"), [(PLANNED, True), ("policies/ppo", False)], ids=["planned", "ppo"]
)
def test_p8_a_run_of_two_hundred_rounds_neither_grows_nor_slows_down(tmp_path, policy, does_the_same):
    """Four environments and their twins; checkpoints, events and observers as in any run; a learner, too.

    What that does takes more time where it has learnt to grow more: of it memory alone is asked.
    """
    file, rounds = tmp_path / "run.yaml", Rounds()
    file.write_text(RUN % policy, encoding="utf-8")
    run(prepare(file), runs_dir=tmp_path / "runs", listeners=[rounds], on_warning=lambda warning: None)
    assert len(rounds.took) == ROUNDS
    early, late = quicker(rounds.took[TENTH : 4 * TENTH]), quicker(rounds.took[-3 * TENTH :])
    assert late <= 1.10 * early or not does_the_same
    assert median(rounds.megabytes[-TENTH:]) <= 1.02 * median(rounds.megabytes[TENTH : 2 * TENTH])
