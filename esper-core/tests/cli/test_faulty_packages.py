"""Installed packages whose components do not do what they declare, before a run and during it.

Before a run, each blueprint that a file chooses is tried, and one whose specification is wrong is refused with its
package named. During a run, a blueprint that fails loses its seed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.members

CONFIG = """\
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [liar]}
policy:
  use: schedule
  settings:
    plan:
      - {step: 0, op: germinate, slot: early, blueprint: liar, speed: 1}
      - {step: 1, op: germinate, slot: early, blueprint: liar, speed: 1}
      - {step: 2, op: germinate, slot: early, blueprint: liar, speed: 1}
      - {step: 3, op: germinate, slot: early, blueprint: liar, speed: 1}
environments: 1
capacity: false
growth: {embargo: 0}
episode: {steps: 12, batches: 2, batch_size: 20}
"""

PLUGIN = """
import math
import torch
from torch import nn
from esper_core import BlueprintSpec, hookimpl

class Honest(nn.Module):
    passes = 0
    def __init__(self, site):
        super().__init__()
        self.first = nn.Conv1d(site.channels, site.channels, 1)
        self.last = nn.Conv1d(site.channels, site.channels, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
    def forward(self, hidden):
        return hidden + self.last(torch.relu(self.first(hidden)))

class Bent(torch.autograd.Function):
    @staticmethod
    def forward(context, hidden):
        return hidden.clone()
    @staticmethod
    def backward(context, gradient):
        return gradient * math.nan

class Liar(Honest):
%s

@hookimpl
def esper_register_blueprints(registry):
    registry.add("liar", Liar, BlueprintSpec("sequence", "%s", starts_as_identity=True))
"""

FORWARD = """\
    def forward(self, hidden):
        return {}
"""
HONEST = "2*c*c + 2*c"


@pytest.fixture
def lie(install: Any, tmp_path: Path) -> Callable[..., Path]:
    """``lie(body)``: install esper-liars 1.0, whose blueprint has this body; return the file that chooses it."""

    def write(body: str, params: str = HONEST) -> Path:
        install("liars", PLUGIN % (body, params))
        file = tmp_path / "liars.yaml"
        file.write_text(CONFIG)
        return file

    return write


BUILD = """\
    def __init__(self, site):
        super().__init__(site)
        {}
"""

LIES = {
    "no gradient": (FORWARD.format("Bent.apply(super().forward(hidden))"), "E324", "not finite: first.weight"),
    "raises when tried": (
        FORWARD.format("hidden + self.scale"),
        "E322",
        "raised AttributeError: 'Liar' object has no attribute 'scale' (esper_liars.py:27) when it was tried",
    ),
    "a false count": ("    pass", "E325", 'declares 128 parameters for a sequence of shape (8, 16), by "2*c*c"'),
}
"""The other ways to break a specification are tested beside the trial of blueprints."""


@pytest.mark.parametrize("name", LIES)
def test_blueprint_that_breaks_its_specification_is_refused_before_training(name, lie, esper, tmp_path):
    body, code, fault = LIES[name]
    file = lie(body, *(["2*c*c"] if code == "E325" else []))
    answer = esper("run", file, "--runs-dir", tmp_path / "runs")
    message, place, *_ = answer.err.replace(f"{tmp_path}/", "").replace("site/", "").splitlines()
    assert message.startswith(f'{code} blueprint "liars/liar" (esper-liars 1.0) ')
    assert fault in message
    assert place == "  liars.yaml:4:24   slots.early.blueprints[0]"
    assert (answer.status, answer.out, (tmp_path / "runs").exists()) == (3, "", False)


@pytest.mark.parametrize(("command", "body"), [("check", BUILD), ("run", FORWARD)])
def test_blueprint_that_ends_the_program_is_reported_as_an_error(command, body, lie, esper):
    answer = esper(command, lie(body.format("exit(0)")))
    assert (answer.status, answer.out) == (3, "")
    assert "esper_liars.py:" in answer.err
