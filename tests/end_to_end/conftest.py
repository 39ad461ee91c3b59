"""A small run that any machine does in a second, and the command as a user calls it, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from esper_core.cli import main

SMALL = """\
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light]}
policy:
  use: schedule
  settings:
    plan:
      - {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 2}
      - {step: 3, op: advance, slot: early}
      - {step: 6, op: fossilise, slot: early}
environments: 2
episode: {steps: 8, batches: 4, batch_size: 20}
"""


@dataclass(frozen=True)
class Answer:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The object on stdout."""
        return json.loads(self.out)


@pytest.fixture
def esper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """``esper("run", file)``: the command, without the cost of a process."""

    def call(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["esper", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A configuration file of a small run."""
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    return file
