"""How a run ends in its manifest."""

from __future__ import annotations

import json

import pytest

from esper_core.app.preparing import prepare
from esper_core.app.running import run


class Pipe:
    """A listener whose reader went away."""

    def hear(self, event: object) -> None:
        """Nothing."""

    def settle(self) -> None:
        """As writing to a closed pipe does."""
        raise BrokenPipeError


@pytest.mark.members
def test_a_pipe_that_nobody_reads_is_told_with_its_status(configured, tmp_path) -> None:
    with pytest.raises(BrokenPipeError):
        run(prepare(configured()), runs_dir=tmp_path / "runs", listeners=[Pipe()])
    (directory,) = (tmp_path / "runs").iterdir()
    told = json.loads((directory / "manifest.json").read_text())
    assert (told["status"], told["exit"]) == ("failed", 141)
