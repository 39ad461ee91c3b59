"""The runs whose figures the pages show: each is the command of its page; previews are made here."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RULES: Final = "esper run examples/heuristic.yaml"
NO_CONTROL: Final = " --set capacity=false"
"""For what is shown without static capacity: it comes after the others, and changes none of them."""


@dataclass(frozen=True, slots=True)
class Run:
    """A command of a page. says: what stands before its figures in a table."""

    name: str
    command: str
    says: str

    @property
    def file(self) -> str:
        """The configuration that it runs."""
        return shlex.split(self.command)[2]

    @property
    def changes(self) -> tuple[str, ...]:
        """What it sets in place of what the file says."""
        return tuple(shlex.split(self.command)[4::2])


RUNS: Final = (
    Run("default", "esper run plugins.yaml", "0"),
    Run("default from 1000", "esper run plugins.yaml --set seed=1000", "1000"),
    Run("default from 2000", "esper run plugins.yaml --set seed=2000", "2000"),
    Run(
        "longer",
        "esper run plugins.yaml --set policy=static --set twin=false --set 'growth.gates=\"off\"'"
        " --set episode.steps=200",
        "200 steps",
    ),
    Run("shuffled", "esper run examples/control-shuffled.yaml", "strict, nursery 2"),
    Run("chance", f"{RULES} --set policy=random{NO_CONTROL}", "0"),
    Run("chance, 1", f"{RULES} --set policy=random --set policy.settings.seed=1{NO_CONTROL}", "1"),
    Run("chance, 2", f"{RULES} --set policy=random --set policy.settings.seed=2{NO_CONTROL}", "2"),
)

QUICK: Final = ("environments=2", "episode.steps=8", "episode.batches=2")
"""So small that a run is over in seconds, and its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Previews:
    """Seeds that a plan plants at a step, blends in six steps later and keeps eleven later, whatever they show.

    where: the slot of each blueprint. times: steps after which they are planted, each in arms of its own. seed: that of
    the first environment; none is among those of the runs, for what was set by some is tried on others.
    """

    name: str
    task: str
    where: tuple[tuple[str, str], ...]
    times: tuple[int, ...] = (0, 5, 15)
    seed: int = 3000
    seeds: int = 4
    steps: int = 40
    batches: int = 32

    def arms(self) -> Iterator[tuple[str, str, int]]:
        """Yield name, blueprint and germination step of each arm but the twin."""
        for blueprint, _ in self.where:
            for step in self.times:
                yield f"{blueprint}-{step}", blueprint, step

    def config(self) -> dict[str, Any]:
        """Return the configuration, as ``esper run`` takes it."""
        slots: dict[str, Any] = {}
        for blueprint, slot in self.where:
            slots.setdefault(slot, {"blueprints": []})["blueprints"].append(blueprint)
        plans = {name: _plan(dict(self.where)[blueprint], blueprint, step) for name, blueprint, step in self.arms()}
        return {
            "task": self.task,
            "host": "pointwise-mlp",
            "slots": slots,
            "arms": {name: {"policy": {"use": "schedule", "settings": {"plan": plan}}} for name, plan in plans.items()},
            "seed": self.seed,
            "environments": self.seeds,
            "episode": {"steps": self.steps, "batches": self.batches},
            "growth": {"gates": "off"},
            "capacity": False,
        }


def _plan(slot: str, blueprint: str, step: int) -> list[dict[str, Any]]:
    return [
        {"step": step, "op": "germinate", "slot": slot, "blueprint": blueprint},
        {"step": step + 6, "op": "advance", "slot": slot},
        {"step": step + 11, "op": "fossilise", "slot": slot},
    ]


_PLAIN: Final = (("conv_light", "early"), ("depthwise_separable", "early"), ("pointwise", "early"), ("mlp", "late"))


def previews(*, quick: bool) -> Sequence[Previews]:
    """Return the previews of both tasks."""
    every = (
        Previews("previews", "mnist1d", _PLAIN),
        Previews("previews, shuffled", "mnist1d-shuffled", (_PLAIN[0], _PLAIN[2])),
    )
    return tuple(replace(one, times=(0,), seeds=2, steps=13, batches=2) for one in every) if quick else every
