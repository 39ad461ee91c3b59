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
"""Growth is the same in each round; random growth would take more time in some rounds."""


def always_the_same() -> None:
    """Do constant work in Python and torch, for comparison, since a machine may become slower over time."""
    one = torch.ones(8, 16, 40)
    for _ in range(400):
        one = torch.nn.functional.conv1d(one, torch.ones(16, 16, 1)) / 16
        sum(range(100))


class Rounds:
    """Records the time of each round, as a multiple of constant work, and the memory of the process."""

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
        """Do nothing at the end of a step."""


def quicker(took: list[float]) -> float:
    """Return the lower quartile of the rounds: other programs make some slower, but none faster."""
    return quantiles(took, n=4)[0]


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("policy", "does_the_same"), [(PLANNED, True), ("policies/ppo", False)], ids=["planned", "ppo"]
)
def test_p8_a_run_of_two_hundred_rounds_neither_grows_nor_slows_down(tmp_path, policy, does_the_same):
    """With four environments and their twins, checkpoints, events and observers; also with a learner.

    A learner takes more time as it learns to grow more, so only its memory is checked.
    """
    file, rounds = tmp_path / "run.yaml", Rounds()
    file.write_text(RUN % policy, encoding="utf-8")
    run(prepare(file), runs_dir=tmp_path / "runs", listeners=[rounds], on_warning=lambda warning: None)
    assert len(rounds.took) == ROUNDS
    early, late = quicker(rounds.took[TENTH : 4 * TENTH]), quicker(rounds.took[-3 * TENTH :])
    assert late <= 1.10 * early or not does_the_same
    assert median(rounds.megabytes[-TENTH:]) <= 1.02 * median(rounds.megabytes[TENTH : 2 * TENTH])
