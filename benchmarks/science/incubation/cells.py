"""Define the compared configurations: places, modes of incubation, blueprints and germination steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Part = Literal["forced", "gated"]

BLUEPRINTS: Final = ("conv_light", "pointwise", "mlp")
INCUBATIONS: Final = ("shadow", "branch")

TWIN: Final = "twin"


@dataclass(frozen=True, slots=True)
class Place:
    """A host on a task, where something may grow; ``slots`` says for each blueprint in which slot it does.

    share: of the batches of a step, for a host that takes longer.
    """

    name: str
    task: str
    host: Mapping[str, Any]
    slots: Mapping[str, str]
    share: float = 1.0


_POINTWISE: Final = {"conv_light": "early", "pointwise": "early", "mlp": "late"}

PLACES: Final = (
    Place("plain", "mnist1d", {"use": "pointwise-mlp"}, _POINTWISE),
    Place("shuffled", "mnist1d-shuffled", {"use": "pointwise-mlp"}, _POINTWISE),
    Place(
        "no deficit",
        "mnist1d",
        {"use": "cnn1d", "settings": {"channels": 25}},
        {"conv_light": "early", "pointwise": "early", "mlp": "features"},
        share=3 / 8,
    ),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained: seeds from 0, steps, and the times of a plan, in steps after germination."""

    seeds: int = 8
    steps: int = 40
    batches: int = 32
    germinations: tuple[int, ...] = (0, 5, 15)
    gated_germination: int = 5
    advance: int = 5
    keep: int = 15


WHOLE: Final = Size()
QUICK: Final = Size(seeds=1, steps=9, batches=2, germinations=(0,), gated_germination=0, advance=2, keep=7)


@dataclass(frozen=True, slots=True)
class Study:
    """One run: the arms of all blueprints at one place in one way of incubating, and the twin beside them.

    forced: gates are off, each seed is advanced and kept at its time. gated: gates are strict at ``price``, nats for
    each parameter; a seed is blended in when its gate opens, and kept when the second one does.
    """

    part: Part
    place: Place
    incubation: str
    price: float | None = None

    @property
    def name(self) -> str:
        """What the run is called."""
        price = "" if self.price is None else f" at {self.price:g}"
        return f"{self.part} {self.place.name} {self.incubation}{price}"

    def germinations(self, size: Size) -> tuple[int, ...]:
        """Return the steps after which seeds germinate, each in arms of its own."""
        return size.germinations if self.part == "forced" else (size.gated_germination,)

    def arms(self, size: Size) -> Iterator[tuple[str, str, int]]:
        """Yield name, blueprint and germination of each arm but the twin."""
        for blueprint in BLUEPRINTS:
            for step in self.germinations(size):
                yield f"{blueprint}-{step}", blueprint, step

    def config(self, size: Size) -> dict[str, Any]:
        """Return the configuration, as ``esper run`` takes it."""
        growth: dict[str, Any] = {"incubation": self.incubation, "gates": "off"}
        if self.price is not None:
            growth |= {"gates": "strict", "price": self.price}
        slots: dict[str, Any] = {}
        for blueprint, slot in self.place.slots.items():
            slots.setdefault(slot, {"blueprints": []})["blueprints"].append(blueprint)
        plans = {name: self._plan(blueprint, step, size) for name, blueprint, step in self.arms(size)}
        return {
            "task": self.place.task,
            "host": dict(self.place.host),
            "slots": slots,
            "arms": {name: {"policy": {"use": "schedule", "settings": {"plan": plan}}} for name, plan in plans.items()},
            "environments": size.seeds,
            "episode": {"steps": size.steps, "batches": max(1, round(size.batches * self.place.share))},
            "growth": growth,
            "device": "cpu",
        }

    def _plan(self, blueprint: str, step: int, size: Size) -> list[dict[str, Any]]:
        slot = self.place.slots[blueprint]
        plan: list[dict[str, Any]] = [{"step": step, "op": "germinate", "slot": slot, "blueprint": blueprint}]
        if self.part == "gated":
            return [*plan, {"step": step + 1, "op": "fossilise", "slot": slot}]
        plan.append({"step": step + size.advance, "op": "advance", "slot": slot})
        return [*plan, {"step": step + size.keep, "op": "fossilise", "slot": slot}]


TRIED: Final = (
    (1e-4, "plain"),
    (1e-4, "shuffled"),
    (1e-4, "no deficit"),
    (2e-4, "plain"),
    (2e-4, "shuffled"),
    (3e-4, "plain"),
)
"""The gated part: prices in nats for each parameter, and the places where they are tried."""


def studies() -> Iterator[Study]:
    """Yield every study, in running order: the most informative first."""
    places = {place.name: place for place in PLACES}
    for names in (("plain", "shuffled"), ("no deficit",)):
        for name in names:
            for incubation in INCUBATIONS:
                yield Study("forced", places[name], incubation)
        for price, name in TRIED[:3]:
            for incubation in INCUBATIONS:
                if name in names:
                    yield Study("gated", places[name], incubation, price)
    for price, name in TRIED[3:]:
        for incubation in INCUBATIONS:
            yield Study("gated", places[name], incubation, price)
