"""The runs whose figures the pages show: each is a command of a page."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

RULES: Final = "esper run examples/heuristic.yaml"
NO_CONTROL: Final = " --set capacity=false"
"""Omits the static control, which does not affect the other arms."""


@dataclass(frozen=True, slots=True)
class Run:
    """A command of a page. says: the label of its figures in a table."""

    name: str
    command: str
    says: str

    @property
    def file(self) -> str:
        """The configuration that it runs."""
        return shlex.split(self.command)[2]

    @property
    def changes(self) -> tuple[str, ...]:
        """The settings that it overrides."""
        return tuple(shlex.split(self.command)[4::2])


def rates(rate: str) -> str:
    """Return the options that set both learning rates."""
    return f" --set optimizer.host.learning_rate={rate} --set optimizer.seed.learning_rate={rate}"


RUNS: Final = (
    Run("default", "esper run plugins.yaml", "0.01"),
    Run("low rate", f"esper run plugins.yaml{rates('0.003')}", "0.003"),
    Run("high rate", f"esper run plugins.yaml{rates('0.03')}", "0.03"),
    Run(
        "longer",
        "esper run plugins.yaml --set policy=static --set twin=false --set 'growth.gates=\"off\"'"
        " --set episode.steps=200",
        "200 steps",
    ),
    Run("shuffled", "esper run examples/control-shuffled.yaml", "strict, nursery 2"),
    Run("no deficit", "esper run examples/no-deficit.yaml", "strict, nursery 2"),
    Run("chance", f"{RULES} --set policy=random{NO_CONTROL}", "0"),
    Run("chance, 1", f"{RULES} --set policy=random --set policy.settings.seed=1{NO_CONTROL}", "1"),
    Run("chance, 2", f"{RULES} --set policy=random --set policy.settings.seed=2{NO_CONTROL}", "2"),
)

QUICK: Final = ("environments=2", "episode.steps=8", "episode.batches=2")
"""Settings with which a run takes seconds."""
