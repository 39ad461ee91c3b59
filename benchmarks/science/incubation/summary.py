"""Reduce the kept episodes to plain data for each cell, which is ``results.json``."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.science.incubation.verdicts import PRICES, highest_price, mean_gain, verdicts
from esper_core.leyline.lifecycle import Stage
from esper_core.runs.statistics import paired_comparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.science.incubation.cells import Size
    from benchmarks.science.incubation.cost import Cost
    from benchmarks.science.incubation.runs import Cell, Episode

    Key = tuple[str, str, str, int]
    """Place, incubation, blueprint and germination of a forced cell."""
    Operations = Mapping[tuple[str, str, int], tuple[int, ...]]
    """Of one batch in each step, by study, blueprint and germination."""

_ACTING = (Stage.BLENDING, Stage.HOLDING)


def summary(cells: Sequence[Cell], costs: Sequence[Cost], size: Size) -> dict[str, Any]:
    """Return everything that the table, the figure and a reader need."""
    twins = {cell.study: cell for cell in cells if not cell.blueprint}
    grown = [cell for cell in cells if cell.blueprint and cell.study in twins]
    forced: dict[Key, Cell] = {
        (cell.place, cell.incubation, cell.blueprint, cell.germination): cell for cell in grown if cell.part == "forced"
    }
    operations = {(cost.study, cost.blueprint, cost.germination): cost.steps for cost in costs}
    return {
        "torch": torch.__version__,
        "size": asdict(size),
        "twins": [_twin(cell) for cell in twins.values() if cell.part == "forced" and cell.incubation == "shadow"],
        "forced": [_forced(cell, twins[cell.study], operations) for cell in forced.values()],
        "between": list(_between(forced, "branch", "shadow")),
        "gated": [_gated(cell, twins[cell.study], forced, operations) for cell in grown if cell.part == "gated"],
    }


def _twin(cell: Cell) -> dict[str, Any]:
    episodes = cell.episodes
    return {
        "place": cell.place,
        "steps": cell.steps,
        "batches": cell.batches,
        "metric": _short(fmean(100 * episode.test_metric for episode in episodes)),
        "loss": _short(fmean(episode.test_loss for episode in episodes)),
        "parameters": episodes[0].host_parameters,
    }


def _forced(cell: Cell, twin: Cell, operations: Operations) -> dict[str, Any]:
    alone = operations.get((cell.study, "", -1))
    own = operations.get((cell.study, cell.blueprint, cell.germination))
    return {
        **_outline(cell, twin),
        "cost": _short(sum(own) / sum(alone)) if own and alone else None,
        "gain_in_training": _short(mean_gain(cell.episodes, Stage.TRAINING)),
        "gain_in_holding": _short(mean_gain(cell.episodes, Stage.HOLDING)),
        "verdicts": [
            {
                "price": said.price,
                "advanced": said.advanced,
                "kept": said.kept,
                "worth": said.worth,
                "wrongly_kept": said.wrongly_kept,
                "wrongly_refused": said.wrongly_refused,
            }
            for said in (verdicts(cell, twin, price) for price in PRICES)
        ],
        "seeds": [
            {
                "seed": episode.seed,
                "points": _short(100 * (episode.test_metric - other.test_metric)),
                "nats": _short(other.test_loss - episode.test_loss),
            }
            for episode, other in zip(cell.episodes, twin.episodes, strict=True)
        ],
    }


def _gated(
    cell: Cell,
    twin: Cell,
    forced: Mapping[Key, Cell],
    operations: Operations,
) -> dict[str, Any]:
    assert cell.price is not None
    untried = forced.get((cell.place, cell.incubation, cell.blueprint, cell.germination))
    nats = cell.episodes[0].added * cell.price
    wrongly_kept = wrongly_refused = 0
    for number, (episode, alone) in enumerate(zip(cell.episodes, twin.episodes, strict=True)):
        if episode.kept:
            wrongly_kept += alone.test_loss - episode.test_loss <= nats
        elif untried is not None:
            wrongly_refused += alone.test_loss - untried.episodes[number].test_loss > nats
    return {
        **_outline(cell, twin),
        "price": cell.price,
        "advanced": sum(_step(episode, Stage.BLENDING) is not None for episode in cell.episodes),
        "kept": sum(episode.kept for episode in cell.episodes),
        "advanced_after": [_step(episode, Stage.BLENDING) for episode in cell.episodes],
        "kept_after": [_step(episode, Stage.FOSSILISED) for episode in cell.episodes],
        "wrongly_kept": wrongly_kept,
        "wrongly_refused": wrongly_refused,
        "left_a_trace": sum(
            not episode.kept and episode.test_loss != alone.test_loss
            for episode, alone in zip(cell.episodes, twin.episodes, strict=True)
        ),
        "cost": _cost_lived(cell, forced, operations),
        "highest_price": [
            {
                what: _tiny(highest_price(episode, stage))
                for what, stage in (("G2", Stage.TRAINING), ("G5", Stage.HOLDING))
            }
            for episode in cell.episodes
        ],
    }


def _outline(cell: Cell, twin: Cell) -> dict[str, Any]:
    return {
        "place": cell.place,
        "incubation": cell.incubation,
        "blueprint": cell.blueprint,
        "germination": cell.germination,
        "metric": _short(fmean(100 * episode.test_metric for episode in cell.episodes)),
        **_compared(cell, twin),
        "added": cell.episodes[0].added,
        "host_parameters": cell.episodes[0].host_parameters,
    }


def _between(forced: Mapping[Key, Cell], a: str, b: str) -> Iterator[dict[str, Any]]:
    """Yield comparisons of cells incubated as ``a`` with those as ``b``, all else being equal."""
    for (place, incubation, blueprint, germination), cell in forced.items():
        other = forced.get((place, b, blueprint, germination))
        if incubation == a and other is not None:
            same = all(
                (one.test_loss, one.gains) == (two.test_loss, two.gains)
                for one, two in zip(cell.episodes, other.episodes, strict=True)
            )
            names = {"place": place, "blueprint": blueprint, "germination": germination, "a": a, "b": b, "same": same}
            yield {**names, **_compared(cell, other)}


def _compared(cell: Cell, other: Cell) -> dict[str, Any]:
    """Compare ``cell`` with ``other`` seed by seed, in points of the metric and in nats."""
    pairs = list(zip(cell.episodes, other.episodes, strict=True))
    points = paired_comparison(
        [100 * one.test_metric for one, _ in pairs],
        [100 * two.test_metric for _, two in pairs],
        direction="up",
        margin=0.0,
    )
    nats = paired_comparison(
        [one.test_loss for one, _ in pairs],
        [two.test_loss for _, two in pairs],
        direction="down",
        margin=0.0,
    )
    return {
        what: [_short(found.difference), _short(found.low), _short(found.high), found.verdict]
        for what, found in (("points", points), ("nats", nats))
    }


def _step(episode: Episode, stage: Stage) -> int | None:
    return next((step for step, now in episode.moves if now == stage), None)


def _cost_lived(
    cell: Cell,
    forced: Mapping[Key, Cell],
    operations: Operations,
) -> float | None:
    """Return the operations of the cell's episodes relative to its twin's, at the forced run's cost per stage."""
    model = forced.get((cell.place, cell.incubation, cell.blueprint, cell.germination))
    steps = None if model is None else operations.get((model.study, cell.blueprint, cell.germination))
    if model is None or steps is None:
        return None
    table = dict(zip(map(_kind, range(len(steps)), [model.episodes[0]] * len(steps)), steps, strict=True))
    spent = [table[_kind(step, episode)] for episode in cell.episodes for step in range(len(steps))]
    return _short(sum(spent) / (len(cell.episodes) * len(steps) * table["alone"]))


def _kind(step: int, episode: Episode) -> str:
    stage = episode.stages[step]
    if stage in _ACTING:
        return "acting"
    if stage:
        return "learning"
    born = _step(episode, Stage.TRAINING)
    return "alone" if born is None or step < born else "kept"


def _tiny(value: float | None) -> float | None:
    return None if value is None else round(value, 7)


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
