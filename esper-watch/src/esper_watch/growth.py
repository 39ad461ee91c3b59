"""Growth in pictures: networks step by step.

A picture draws each layer, slot and seed once. What a seed is like in a step is a list of frames: the page shows the
last one, and its script another one when the slider moves.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from esper_core.leyline import Stage
from esper_core.leyline.errors import plural
from esper_watch.figures import STAGE_NAMES, Chart
from esper_watch.formats import cut, format_percent, format_value, short_name
from esper_watch.history import TWIN, is_control
from esper_watch.sections import Report, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.leyline import Metric
    from esper_core.leyline.events import HostLayer
    from esper_watch.history import History, SeedLife

AT_ONCE: Final = 8
"""Networks of an arm whose pictures and lives are shown; the others are folded up."""

MAX_PICTURES: Final = 64
"""Networks of an arm that are drawn."""

MAX_POINTS: Final = 200
"""Steps of a network for which its metric is told, about."""

MAX_LAYERS: Final = 14
"""Layers of a host that are drawn; those in the middle without slots are left out."""

MAX_LANES: Final = 8
"""Seeds of a slot that are drawn at once."""

SYMBOLS: Final = {
    Stage.GERMINATED: "◌",
    Stage.TRAINING: "◔",
    Stage.BLENDING: "◑",
    Stage.HOLDING: "◕",
    Stage.DRAINING: "◐",
    Stage.FOSSILISED: "●",
    Stage.PRUNED: "✕",
}
"""Signs of the stages, fuller the more a seed is part of its network; they are read without colour."""

SHORT_NAMES: Final = {
    Stage.GERMINATED: "germinated",
    Stage.TRAINING: "in isolation",
    Stage.BLENDING: "blending",
    Stage.HOLDING: "holding",
    Stage.DRAINING: "draining",
    Stage.FOSSILISED: "kept",
    Stage.PRUNED: "pruned",
}
Layer = tuple[str, str, int, tuple[str, ...]]
"""Name, class and parameters of a layer of the host, and the slots behind it."""

JOINTS: Final = {
    "branch": "The line from a slot to a seed is dashed until the seed is kept: blending and holding, it acts on its "
    "branch alone, a copy of the network.",
    "shadow": "The line from a slot to a seed is dashed while the seed is in isolation; then it is the thicker, the "
    "more the seed acts.",
}
"""By kind of incubation: what the lines to seeds say."""

_SHOWN_PRUNED: Final = 2
"""Steps for which a pruned seed is still shown."""


class Frame(NamedTuple):
    """What a lane of a slot shows from a step on. Steps count from 1."""

    start: int
    stage: str
    """The stage; empty for an empty lane."""
    alpha: int
    """How strongly the seed acts on its network, in percent."""
    name: str = ""
    state: str = ""
    text: str = ""
    """What the mark says."""
    bar: float = 0.0
    """Length of the bar for its parameters."""


class Lane(NamedTuple):
    """A place beside a slot where seeds are drawn, one after the other."""

    y: float
    slot: str
    ring: float
    """Where on the spine its slot is."""
    frames: list[Frame]

    @property
    def last(self) -> Frame:
        """What is shown at first: the latest frame."""
        return self.frames[-1]

    @property
    def data(self) -> str:
        """The frames as JSON, for the script."""
        return json.dumps(self.frames, ensure_ascii=False, separators=(",", ":"))


PICTURE_WIDTH: Final = 344.0
LAYER_LEFT, LAYER_WIDTH, SPINE, SEED_LEFT = 8.0, 150.0, 83.0, 190.0
BOX, GAP, LANE = 36.0, 12.0, 42.0


def pictures(report: Report) -> Section | None:
    """Return the section with each growing network as a picture, and the slider through its life."""
    history = report.history
    if not history.rounds:
        return None
    round_ = history.rounds[-1]
    arms = []
    for arm in history.arms:
        lives = history.seeds_by_environment(round_, arm)
        if is_control(arm) or not lives:
            continue
        courses, twins = (history.courses(round_, name, MAX_PICTURES) for name in (arm, TWIN))
        drawn = [
            (
                picture(history, arm, seed, lives.get(seed, []), report.incubation),
                *_course(report.metric, courses[seed], twins.get(seed, {})),
            )
            for seed in sorted(courses)
        ]
        more = len(history.environments(round_, arm)) - len(drawn)
        arms.append((arm, drawn[:AT_ONCE], drawn[AT_ONCE:], more))
    if not arms:
        return None
    data = {
        "arms": arms,
        "metric": report.metric.name,
        "last": max((history.steps_of(life.environment) for life in history.seeds if life.round == round_), default=1),
        "legend": [(SYMBOLS[stage], STAGE_NAMES[stage], f"stage-{stage.value}") for stage in SYMBOLS],
        "summary": list(_where(history, round_)),
        "joints": JOINTS.get(report.incubation, JOINTS["shadow"]),
    }
    return Section("growth", "What grows where", "pictures", data)


def _where(history: History, round_: int) -> Iterator[str]:
    """Yield in words, for each growing arm and slot, what was kept in how many networks."""
    for arm in history.arms:
        lives = history.seeds_by_environment(round_, arm)
        if is_control(arm) or not lives:
            continue
        networks = len(history.environments(round_, arm))
        for slot in history.slots.get(arm, ()):
            kept_in: dict[str, set[int]] = {}
            tried = 0
            for seed, environment_lives in lives.items():
                slot_lives = [life for life in environment_lives if life.slot == slot]
                tried += len(slot_lives)
                for life in slot_lives:
                    if life.kept:
                        kept_in.setdefault(short_name(life.blueprint), set()).add(seed)
            kept = ", ".join(
                f"{name} in {len(seeds)} of {plural(networks, 'network')}" for name, seeds in kept_in.items()
            )
            yield f"{arm}, slot {slot}: {f'kept {kept}' if kept else 'nothing kept'}; {plural(tried, 'seed')} tried."


def _course(metric: Metric, measured: Mapping[int, float], twin: Mapping[int, float]) -> tuple[str, str, int]:
    """Return what the network and its twin measured: the latest in words, and as JSON every so many steps."""

    def describe(step: int) -> str:
        text = format_value(metric, measured[step]) if step in measured else ""
        return f"{text}, twin {format_value(metric, twin[step])}" if text and step in twin else text

    last = max(measured, default=-1)
    every = max(0, last) // MAX_POINTS + 1
    course = [describe(step) for step in range(every - 1, last + 1, every)]
    return describe(last), json.dumps(course, ensure_ascii=False, separators=(",", ":")), every


def picture(history: History, arm: str, seed: int, lives: Sequence[SeedLife], incubation: str = "branch") -> Chart:
    """Draw a network as its host's layers from top to bottom, with its slots and seeds beside them.

    incubation: how its seeds incubate. On a branch none acts on the network before it is kept.
    """
    layers = layers_of(history, arm)
    most = max([parameters for _, _, parameters, _ in layers] + [life.parameters for life in lives], default=1) or 1
    steps = max((history.steps_of(life.environment) for life in lives), default=0)
    y, boxes, rings, lanes = 10.0, [], [], list[Lane]()
    for name, kind, parameters, slots in layers:
        if name or kind:
            text = f"layer {name}: {kind}, {plural(parameters, 'parameter')}"
            boxes.append((y, cut(name, 19), cut(f"{kind}, {parameters:,}", 22), text, _bar(parameters, most)))
            y += BOX + GAP
        for slot in slots:
            slot_lives = [life for life in lives if life.slot == slot]
            rows = sorted(_in_lanes(slot_lives), key=lambda row: not row[-1].kept)[:MAX_LANES]
            ring = y + (BOX / 2 if rows else 7)
            number_kept = sum(life.kept for life in slot_lives)
            label = f"slot {slot}: {plural(number_kept, 'seed')} kept"
            rings.append((ring, slot, label, bool(number_kept)))
            for number, row in enumerate(rows):
                lanes.append(
                    Lane(y + number * LANE, slot, ring, list(_frames(row, most, on_branch=incubation == "branch")))
                )
            y += max(LANE * len(rows), 18.0) + GAP
    kept = ", ".join(f"{short_name(life.blueprint)} in {life.slot}" for life in lives if life.kept)
    description = f"After step {steps}: {f'kept {kept}' if kept else 'nothing kept yet'}."
    data = {"boxes": boxes, "rings": rings, "lanes": lanes, "end": y}
    return Chart("picture", f"Network {seed} of {arm}", description, y + 4, data, width=PICTURE_WIDTH)


def _bar(parameters: int, most: int) -> float:
    return (LAYER_WIDTH - 12) * parameters / most


def layers_of(history: History, arm: str) -> list[Layer]:
    """Return the layers of the host, as a picture of it shows them.

    Without knowledge of the host, it is one layer in front of all slots. Of a deep host the layers that are far from
    any slot are one.
    """
    host: Sequence[HostLayer] = () if history.started is None else history.started.host
    slots = history.slots.get(arm, ())
    layers = [
        (layer.name, layer.kind, layer.parameters, tuple(slot for slot in layer.slots if slot in slots))
        for layer in host
    ]
    named = {slot for *_, layer_slots in layers for slot in layer_slots}
    if missing := tuple(slot for slot in slots if slot not in named):
        layers.append(("", "", 0, missing) if layers else ("host", "layers unknown", 0, missing))
    while len(layers) > MAX_LAYERS:
        pairs = [(a[2] + b[2], at) for at, (a, b) in enumerate(pairwise(layers)) if not a[3]]
        if not pairs:
            break
        _, at = min(pairs)
        (first, _, parameters, _), (last, _, more_parameters, layer_slots) = layers[at : at + 2]
        layers[at : at + 2] = [
            (
                f"{first.partition(' … ')[0]} … {last.rpartition(' … ')[2]}",
                "layers",
                parameters + more_parameters,
                layer_slots,
            )
        ]
    return layers


def _in_lanes(lives: Sequence[SeedLife]) -> list[list[SeedLife]]:
    """Distribute seeds over as few lanes as there were seeds at once; a pruned seed leaves its lane to the next."""
    lanes: list[list[SeedLife]] = []
    for life in lives:
        born = life.changes[0].step
        for lane in lanes:
            if lane[-1].stage is Stage.PRUNED and lane[-1].changes[-1].step <= born:
                lane.append(life)
                break
        else:
            lanes.append([life])
    return lanes


def _frames(lives: Sequence[SeedLife], most: int, *, on_branch: bool) -> Iterator[Frame]:
    """Yield what a lane shows: each change of stage and strength of its seeds, in the order of steps."""
    yield Frame(0, "", 0)
    for number, life in enumerate(lives):
        name, alphas = (
            short_name(life.blueprint),
            {look.step + 1: look.alpha for look in life.looks if math.isfinite(look.alpha)},
        )
        stages = {change.step + 1: change.now for change in life.changes}
        stage, alpha, shown = Stage.GERMINATED, 0, None
        for step in sorted(stages.keys() | alphas.keys()):
            stage = stages.get(step, stage)
            share = 1.0 if stage is Stage.FOSSILISED else 0.0 if on_branch else alphas.get(step, alpha / 100)
            alpha = round(100 * share)
            if (stage, alpha) == shown:
                continue
            shown = stage, alpha
            mixes = stage in (Stage.BLENDING, Stage.DRAINING)
            strength = f" {format_percent(alpha / 100, 0)}" if mixes and not on_branch else ""
            place = ", on its branch" if on_branch and stage in (Stage.BLENDING, Stage.HOLDING) else ""
            state = f"{SYMBOLS[stage]} {SHORT_NAMES[stage]}{strength}, {life.parameters:,}"
            size = plural(life.parameters, "parameter")
            text = f"{life.blueprint} in {life.slot}, {size}: {STAGE_NAMES[stage]}{strength}{place}"
            yield Frame(step, stage.value, alpha, cut(name, 20), state, text, round(_bar(life.parameters, most), 1))
        if stage is Stage.PRUNED:
            gone = life.changes[-1].step + 1 + _SHOWN_PRUNED
            if number + 1 == len(lives) or lives[number + 1].changes[0].step + 1 > gone:
                yield Frame(gone, "", 0)
