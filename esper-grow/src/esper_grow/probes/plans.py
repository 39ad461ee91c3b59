"""Plans: where adapters go in a model, of which rank, and what each place was measured to bring.

plan = place_adapters(model, loss, train, validation, parameters=15_000)
plan.save("plan.json")
Gardener(model, optimizer, **read_plan("plan.json").slots_and_blueprints(), together=True, …)
peft.get_peft_model(model, peft.LoraConfig(**plan.to_peft()))
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from esper_core.leyline.errors import GrowthError, Problem, one_line, plural
from esper_grow.gardener.choices import PlannedBlueprint
from esper_grow.probes.results import WIDTH, html_of, wrapped
from esper_run.formats import decimals_of, format_number
from esper_run.runs.checkpoint_files import read_part
from esper_run.runs.directory import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

PlaceKey: TypeAlias = tuple[str, int]
"""What tells a place from others: its layer, and which block of the rank it is."""

PLAN_FORMAT: Final = 1
"""Version of what ``AdapterPlan.save`` writes."""

SHOWN: Final = 12
"""Places that are not in the plan, of which a table shows the best."""

_LAYOUT: Final = "AdapterPlan.save, or  esper probe FILE --adapters all-linear --plan FILE,  writes such a file."


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """One place for an adapter. Gains are in nats of validation loss for each example.

    Attributes:
        slot: The layer, by its name in the model.
        rank: Of the LoRA that was tried there; None: another adapter.
        parameters: How many it has.
        alone: What its adapter brings where no other acts, at first order.
        error: The standard error of ``alone``, over validation examples.
        order: Its number in the plan, from 1; None: it is not in it.
        beside: What it brings beside those before it in the plan, at first order; None: it is not in it.
        at_least: The lower bound of ``beside`` at 95 %, for all places together, by the scatter over examples. The
            error of the first order is not in it.
        price: What ``beside`` has to exceed.
        features: How many the layer gets and returns; None: the plan is of an older version.
        block: Which block of the layer's rank it is, from 1.
    """

    slot: str
    rank: int | None
    parameters: int
    alone: float
    error: float
    order: int | None = None
    beside: float | None = None
    at_least: float | None = None
    price: float | None = None
    features: tuple[int, int] | None = None
    block: int = 1

    @property
    def key(self) -> PlaceKey:
        """Its layer and block."""
        return self.slot, self.block

    @property
    def name(self) -> str:
        """Its layer, and its block if that is not the first."""
        return self.slot if self.block == 1 else f"{self.slot}, block {self.block}"


@dataclass(frozen=True, slots=True, repr=False)
class AdapterPlan:
    """Where adapters go. ``print`` shows a table.

    Attributes:
        verdict: "pays": some places do. "nothing pays": all of them together are not worth their price. "undecided":
            neither is shown. Places of the plan, if there are any, are the best so far; the others are ranked.
        reason: One sentence on the verdict.
        places: All that were tried: those of the plan in their order, then the others by what they bring alone.
        layers: Their layers in the order of the model.
        blueprint: What was tried at each.
        blueprints: What one block is, what two of a layer are together, and so on; empty: of an older version.
        peft: The settings of PEFT's LoRA that all places have in common; None: it is no LoRA.
        obstacle_in_peft: Why PEFT cannot train what was measured, and what to do; None: none is known.
        by_pattern: Whether PEFT gets a pattern of names, because one of them is the end of another module's name.
        model: The class of the model.
        parameters: How many trainable parameters the plan has.
        limit: How many it may have; None: no limit.
        host_loss: Validation loss of the model trained without adapters for ``steps``.
        all_loss: With adapters at all places, trained together for as long.
        plan_loss: Of these, with those of the plan alone acting.
        steps: Training steps of both.
        examples: How many validation examples were looked at.
        seconds: How long it took.
        remarks: What else to know.
    """

    verdict: Literal["pays", "nothing pays", "undecided"]
    reason: str
    places: tuple[AdapterPlace, ...]
    layers: tuple[str, ...]
    blueprint: str
    peft: dict[str, Any] | None
    by_pattern: bool
    model: str
    parameters: int
    limit: int | None
    host_loss: float
    all_loss: float
    plan_loss: float
    steps: int
    examples: int
    seconds: float
    remarks: tuple[str, ...] = ()
    blueprints: tuple[str, ...] = ()
    obstacle_in_peft: tuple[str, str] | None = None
    format: int = PLAN_FORMAT

    @property
    def slots(self) -> list[str]:
        """The layers of the plan, the best first."""
        return list(self._blocks())

    def _blocks(self) -> Counter[str]:
        """Return how many blocks each layer of the plan has."""
        return Counter(place.slot for place in self.places if place.order is not None)

    def slots_and_blueprints(self) -> dict[str, Any]:
        """Return the arguments with which a ``Gardener`` grows what is planned. It refuses layers of other shapes.

        Raises:
            GrowthError: Nothing is planned, or the plan is undecided (E351).
        """
        self._refuse_unusable()
        features = {place.slot: place.features for place in self.places if place.features is not None}
        names = self.blueprints or (self.blueprint,)
        blueprints = {slot: PlannedBlueprint(names[count - 1], features) for slot, count in self._blocks().items()}
        return {"slots": self.slots, "blueprints": blueprints}

    def to_peft(self) -> dict[str, Any]:
        """Return the arguments of a ``peft.LoraConfig`` that adapts the layers of the plan alone.

        Raises:
            GrowthError: Nothing is planned, or the plan is undecided (E351), or PEFT does not take it (E337).
        """
        self._refuse_unusable()
        if self.peft is None or self.obstacle_in_peft is not None:
            why, remedy = self.obstacle_in_peft or ("PEFT does not take what was placed there", "Place LoRA elsewhere")
            raise GrowthError(Problem("E337", why, hint=f"{remedy}, or grow the plan with a Gardener."))
        layers = [name_in_peft(slot) for slot in self.slots]
        targets = "|".join(map(re.escape, layers)) if self.by_pattern else layers
        counts = list(self._blocks().values())
        usual = Counter(counts).most_common(1)[0][0]
        start = "^" if self.by_pattern else ""  # else a model around the one that was measured takes the plan, too
        other = {
            f"{start}{re.escape(layer)}": count for layer, count in zip(layers, counts, strict=True) if count != usual
        }
        rank, alpha = self.peft["r"], self.peft["lora_alpha"]
        power = 0.5 if self.peft["use_rslora"] else 1.0  # so several blocks have the scale of one
        return {
            **self.peft,
            "r": usual * rank,
            "lora_alpha": alpha * usual**power,
            "target_modules": targets,
            "rank_pattern": {layer: count * rank for layer, count in other.items()},
            "alpha_pattern": {layer: alpha * count**power for layer, count in other.items()},
        }

    def save(self, file: str | Path) -> None:
        """Write the plan as JSON; RunFolderError if that fails."""
        write_json(Path(file), self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON. Numbers that are not finite become None."""
        data: dict[str, Any] = to_jsonable_python(asdict(self), inf_nan_mode="null")
        return data

    def _refuse_unusable(self) -> None:
        if self.verdict == "undecided":
            best = "plan.slots has the best so far" if self.slots else "plan.places are ranked by what they bring alone"
            hint = f"Do as it says, or name slots yourself with adapters(model, …); {best}."
            raise GrowthError(Problem("E351", f"the plan decides nothing yet: {self.reason}", hint=hint))
        if not self.slots:
            hint = "Place longer, or allow more: steps=…, parameters=…; or name slots yourself with adapters(model, …)."
            raise GrowthError(Problem("E351", f"the plan has no adapters: {self.reason}", hint=hint))

    def __repr__(self) -> str:
        planned = ", ".join(self.slots) or self.verdict
        return f"<{one_line(f'AdapterPlan of {self.model}: {planned}')}>"

    def __str__(self) -> str:
        """Return the table, in lines of 80 characters at most, and the verdict."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from wrapped(f"{self.model}: {self.blueprint} at {plural(len(self.places), 'place')}")
        losses = {"without": self.host_loss, "at all places": self.all_loss}
        losses |= {"as planned": self.plan_loss} if self.slots else {}
        shown = ", ".join(f"{name} {format_number(loss)}" for name, loss in losses.items())
        yield from wrapped(f"Validation loss after {plural(self.steps, 'step')}: {shown}.")
        yield ""
        planned = [place for place in self.places if place.order is not None]
        others = [place for place in self.places if place.order is None]
        yield from _table([*planned, *others[: max(0, SHOWN - len(planned))]], [place.slot for place in self.places])
        if (more := len(self.places) - max(SHOWN, len(planned))) > 0:
            yield f"and {plural(more, 'more place')}"
        yield ""
        for text in (self.reason, *self.remarks):
            yield from wrapped(text)

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows; None if no installed package draws it."""
        return html_of("plan", self.to_dict())


def name_in_peft(layer: str) -> str:
    """Return the name that PEFT gives to a layer, which in a PeftModel has another one."""
    return layer.removeprefix("base_model.model.").removesuffix(".base_layer")


def gain_of(place: AdapterPlace) -> float:
    """Return what a place brings above its price: beside others, or alone if it was not measured beside them."""
    return place.alone if place.beside is None else place.beside - (place.price or 0.0)


def gain_by_parameter(place: AdapterPlace) -> float:
    """Return the gain of a place for each of its parameters."""
    return gain_of(place) / place.parameters


def better_order(
    places: Sequence[AdapterPlace], limit: int | None, losses: Callable[[Sequence[PlaceKey]], Tensor]
) -> Callable[[AdapterPlace], float]:
    """Return by what places are taken within a limit: their gains, or their gains by parameter.

    Neither is always better where sizes differ. So a plan is filled by each, from what places bring alone, and that
    with the lower loss decides. ``losses`` returns those where some adapters alone act.
    """
    if limit is None or len({place.parameters for place in places}) == 1:
        return gain_of
    useful = [place for place in places if place.alone > 0.0]
    by_gain, by_parameter = (
        [place.key for place in filled(sorted(useful, key=order, reverse=True), limit)]
        for order in (gain_of, gain_by_parameter)
    )
    if set(by_gain) == set(by_parameter) or losses(by_gain).mean() <= losses(by_parameter).mean():
        return gain_of
    return gain_by_parameter


def filled(places: Iterable[AdapterPlace], room: int) -> list[AdapterPlace]:
    """Return the places, in their order, that have room for their parameters."""
    fitting: list[AdapterPlace] = []
    for place in places:
        if place.parameters <= room:
            fitting.append(place)
            room -= place.parameters
    return fitting


def _table(places: list[AdapterPlace], layers: Sequence[str]) -> Iterator[str]:
    """Return the head and the rows, with shorter names if needed; a name that is still too long has its own line.

    ``layers`` are all those of the plan, which the shorter names have to tell apart.
    """
    head = ("params", "alone ± error", "in plan", "at least", "price")
    rows = [head]
    for place in places:
        decimals = decimals_of(place.error)
        numbers = (place.beside, place.at_least, place.price)
        beside, least, price = ("" if number is None else format_number(number, decimals=4) for number in numbers)
        alone = f"{format_number(place.alone, decimals=decimals)} ± {format_number(place.error, decimals=decimals)}"
        rows.append((f"{place.parameters:,}", alone, beside, least, price))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    ranks = ["" if place.order is None else f"{place.order}. " for place in places]
    names = ["layer", *(f"{rank}{place.name}" for rank, place in zip(ranks, places, strict=True))]
    gap, room = "  ", WIDTH - sum(widths) - 2 * len(widths)
    if max(map(len, names)) > room and (shorter := _without_common_parts(layers)):
        names = [
            "layer (shortened)",
            *(
                rank + place.name.replace(place.slot, shorter[place.slot])
                for rank, place in zip(ranks, places, strict=True)
            ),
        ]
        gap, room = " ", room + len(widths)
    room = min(room, max(map(len, names)))
    for name, row in zip(names, rows, strict=True):
        if len(name) > room:
            yield from wrapped(name)
        cells = (f"{text:>{width}}" for text, width in zip(row, widths, strict=True))
        yield gap.join([f"{name if len(name) <= room else '':<{room}}", *cells]).rstrip()


def _without_common_parts(layers: Sequence[str]) -> dict[str, str]:
    """Return the names without the parts that all of them have; nothing if some are alike then. Numbers and ends stay.

    >>> _without_common_parts(["model.layers.0.mlp.up", "model.layers.0.mlp.down"])
    {'model.layers.0.mlp.up': '0.up', 'model.layers.0.mlp.down': '0.down'}
    """
    common = set.intersection(*({*layer.split(".")[:-1]} for layer in layers))
    short_names: dict[str, str] = {}
    for layer in layers:
        *parents, end = layer.split(".")
        short_names[layer] = ".".join([*(part for part in parents if part.isdecimal() or part not in common), end])
    return short_names if len({*short_names.values()}) == len(short_names) else {}


def read_plan(file: str | Path) -> AdapterPlan:
    """Return the plan in a file. Reading it runs no code.

    Raises:
        GrowthError: There is no such file, or it is not a plan (E332).
    """
    path = Path(file)
    try:
        data = json.loads(read_part(path, None, _LAYOUT))
        data = {key: math.nan if value is None and key.endswith("_loss") else value for key, value in data.items()}
        plan = TypeAdapter(AdapterPlan).validate_python(data)
        if max(plan._blocks().values(), default=1) > max(1, len(plan.blueprints)):
            msg = "a layer has more blocks than there are blueprints"
            raise ValueError(msg)
        planned = [place for place in plan.places if place.order is not None]
        ranks = {place.rank for place in planned} if plan.peft is not None else set()
        if sum(place.parameters for place in planned) != plan.parameters or ranks - {(plan.peft or {}).get("r")}:
            msg = "its places do not have the parameters or the rank that it names; a changed plan is not measured"
            raise ValueError(msg)
    except (ValueError, TypeError, AttributeError, RecursionError, ValidationError) as error:
        raise GrowthError(Problem("E332", f"{path} is not a plan of adapters", hint=f"{error}\n{_LAYOUT}")) from error
    if plan.format != PLAN_FORMAT:
        message = f"{path} is a plan of version {plan.format}, and version {PLAN_FORMAT} is read"
        raise GrowthError(Problem("E332", message, hint="Make the plan anew."))
    return plan
