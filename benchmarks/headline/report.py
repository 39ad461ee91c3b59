"""The report: tables in Markdown and figures in SVG, from records alone."""

from __future__ import annotations

from functools import partial
from html import escape
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Final

from benchmarks.headline.analysis import (
    CONTROL,
    CellResults,
    Results,
    against_asha,
    criteria,
    crossover,
    from_trained,
    grown_late,
    kept_by_cell,
    left_alone,
    shown,
)
from benchmarks.headline.arms import DEFICIT, CellStudy
from benchmarks.headline.cells import CELLS
from esper_run.formats import format_flops
from esper_run.runs.statistics import mean_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.headline.arms import Point
    from benchmarks.headline.cells import Size
    from benchmarks.headline.store import Store

SCRATCH: Final = {
    "host": "host",
    "filler": "blocks that relate no positions",
    "best": "best static network",
    "asha": "ASHA",
    "random": "random search",
    "esper": "Esper",
}
TRAINED: Final = {
    "grow": "grow",
    "continue": "train on",
    "fresh": "train on, new optimizer",
    "early": "train on, early-stopped",
    "retrain": "retrain by ASHA",
    "filler": "add blocks that relate no positions",
}
CHANGED: Final = {"grow": "grow", "continue": "train on", "fresh": "train on, new optimizer"}

NOT_COMPARED: Final = """\
gromo 0.1.0 is not an arm: it widens linear layers and two-dimensional convolutions, and the hosts of nine cells have
one-dimensional convolutions or attention, which it lacks.
"""

NO_BREAK: Final = "\N{NO-BREAK SPACE}"

Point2 = tuple[float, float]


def write_report(size: Size, store: Store, *, quick: bool) -> Path:
    """Write ``report.md`` and the figures into the folder of the records, and return its path."""
    studies = [CellStudy(CELLS[name], size, store) for name in size.cells]
    tuned = [study for study in studies if study.score("esper", study.chosen("esper")) >= 0]
    done = Results([cell for cell in map(CellResults, tuned) if cell.seeds])
    hours = sum(record["seconds"] for record in store) / 3600
    lines = ["# Growth at equal compute", ""]
    if quick:
        lines += ["**This is the quick form: few cells, two seeds, short trainings. Its figures mean little.**", ""]
    lines += [
        f"{len(store)} trainings, {hours:.1f} core-hours. Cells with fresh seeds: {len(done.cells)} of "
        f"{len(size.cells)}; {len(done.seeds)} of {len(size.fresh)} seeds are complete in all of them.",
        "",
        "Accuracies in %, differences in points with 95 % intervals over RNG seeds, losses in nats per example.",
        "",
        *_section("Criteria", ("asked", "measured", "interval over cells", "verdict"), _criteria(done, size)),
        *_section("Cell by cell", _cells_head(size), map(partial(_cell_by_cell, done), done.cells)),
        *_section(
            "Cells, on tuning seeds", ("cell", "host", "best", "which", "kind"), map(_cell, map(CellResults, tuned))
        ),
        *_section("Chosen settings", ("cell", *SCRATCH, "grow", "train on", "retrain"), map(_settings, tuned)),
        *_section("From scratch: accuracy and operations", ("cell", *SCRATCH.values()), _scratch(done, _accuracy)),
        *_section("From scratch: log-loss", ("cell", *SCRATCH.values()), _scratch(done, _loss)),
        *_trained(done),
        *_section("The data change: accuracy on old and new classes, by budget", _changed_head(size), _changed(done)),
        "## Not compared",
        "",
        NOT_COMPARED,
    ]
    file = store.folder / "report.md"
    file.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    for name, title, series in _figures(done):
        (store.folder / f"{name}.svg").write_text(draw(title, series), encoding="utf-8")
    return file


def _section(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a heading and a table; nothing if there are no rows."""
    body = [f"| {' | '.join(row)} |" for row in rows]
    rule = f"|{' --- |' * len(head)}"
    return [f"## {title}", "", f"| {' | '.join(head)} |", rule, *body, ""] if body else []


def _criteria(results: Results, size: Size) -> list[Sequence[str]]:
    """Return a row for each criterion; while seeds are missing, intervals are wide and verdicts may change."""
    is_complete = len(results.cells) == len(size.cells) and len(results.seeds) == len(size.fresh)
    rows = criteria(results) if results.cells else []
    so_far = ["" if is_complete or criterion.missed_by is None else "so far " for criterion in rows]
    return [
        (criterion.requirement, criterion.measured, criterion.over_cells, prefix + criterion.verdict)
        for criterion, prefix in zip(rows, so_far, strict=True)
    ]


def _cells_head(size: Size) -> Sequence[str]:
    shares = ", ".join(f"{100 * budget:g} %" for budget in size.budgets)
    return (
        "cell",
        "against ASHA",
        "block kept",
        "trained, over training on at 25 %",
        "in nats",
        f"runs that grew at {shares}",
    )


def _cell_by_cell(results: Results, cell: CellResults) -> Sequence[str]:
    """Return what growing was worth in one cell, and in how many runs anything grew."""
    seeds, budgets = results.seeds, cell.study.size.budgets

    def over_training_on(quantity: str, digits: int) -> str:
        gains = [from_trained(cell, seed, 0.25, cell.train_on, quantity) for seed in seeds]
        return shown(mean_interval(gains), digits)

    kept, runs = kept_by_cell(results, cell)
    grown = ", ".join(str(grown_late(cell, seeds, place)) for place in range(len(budgets)))
    return (
        cell.study.cell.title,
        shown(mean_interval([against_asha(cell, seed) for seed in seeds])),
        f"{kept} of {runs}",
        over_training_on("accuracy", 1),
        over_training_on("loss", 3),
        f"{grown} of {len(seeds)}",
    )


def _cell(cell: CellResults) -> Sequence[str]:
    study = cell.study
    kind = "deficit" if cell.deficit >= DEFICIT else "control" if cell.deficit < CONTROL else "between"
    scores = [f"{100 * study.score(arm, study.chosen(arm)):.1f}" for arm in ("host", "best")]
    return (
        study.cell.title,
        *scores,
        study.best_architecture(),
        f"{kind}, {cell.deficit:+.1f}".replace("-", "\N{MINUS SIGN}"),
    )


def _settings(study: CellStudy) -> Sequence[str]:
    has_arm = {arm: study.architecture_of("filler") is not None or arm != "filler" for arm in SCRATCH}
    settings = [study.chosen(arm) if has_arm[arm] else None for arm in SCRATCH]
    settings += [study.chosen(arm, late=True) for arm in ("grow", CellResults(study).train_on)] + [
        study.chosen("retrain")
    ]
    return (
        study.cell.title,
        *("–" if setting is None else f"{setting.rate:g} {setting.schedule}" for setting in settings),
    )


def _scratch(results: Results, describe: Callable[[Sequence[Point]], str]) -> Iterable[Sequence[str]]:
    """Yield a row for each cell, with what is told of each arm; – where it has no such arm."""
    for cell in results.cells:
        arms = [[point for seed in results.seeds if (point := cell.arm(arm, seed))] for arm in SCRATCH]
        yield (cell.study.cell.title, *(describe(points) if points else "–" for points in arms))


def _accuracy(points: Sequence[Point]) -> str:
    accuracy, flops = (
        100 * fmean(point.accuracy for point in points),
        format_flops(fmean(point.flops for point in points)),
    )
    return f"{accuracy:.1f} %, {flops}".replace(" ", NO_BREAK).replace(f",{NO_BREAK}", ", ")


def _loss(points: Sequence[Point]) -> str:
    return f"{fmean(point.loss for point in points):.3f}"


def _trained(results: Results) -> list[str]:
    """Return what growing gains over each other use of the same operations, on deficit cells."""
    if not results.deficient or len(results.seeds) < 2:
        return []
    budgets = results.cells[0].study.size.budgets
    lines: list[str] = []
    for quantity, unit, digits in (("accuracy", "points of accuracy", 1), ("loss", "nats of log-loss", 3)):
        rows = []
        for other in (arm for arm in TRAINED if arm != "grow"):
            cells = [cell for cell in results.deficient if other == "retrain" or cell.late(other, results.seeds[0])]
            intervals = [
                results.pooled(lambda cell, seed: from_trained(cell, seed, budget, other, quantity), cells)  # noqa: B023
                for budget in budgets
            ]
            rows.append((TRAINED[other], *(shown(interval, digits) for interval in intervals)))
        idle = [
            results.pooled(partial(left_alone, budget=budget, quantity=quantity), results.deficient)
            for budget in budgets
        ]
        rows.append(("leave it as it is", *(shown(interval, digits) for interval in idle)))
        if quantity == "accuracy":
            runs = len(results.seeds) * len(results.deficient)
            grew = [
                sum(grown_late(cell, results.seeds, place) for cell in results.deficient)
                for place in range(len(budgets))
            ]
            rows.append(("runs that grew", *(f"{count} of {runs}" for count in grew)))
        head = ("growing against", *(f"{100 * budget:g} %" for budget in budgets))
        lines += _section(f"A trained network: {unit}, by budget", head, rows)
        share = crossover(results, quantity)
        overtaken = "in none of them" if share is None else f"from {100 * share:.0f} % on"
        lines += [f"Budgets up to 100 % in which retraining is better in {quantity}: {overtaken}.", ""]
    return lines


def _changed_head(size: Size) -> Sequence[str]:
    return ("cell", "", *(f"{100 * budget:g} %" for budget in size.budgets))


def _changed(results: Results) -> Iterable[Sequence[str]]:
    for cell in (cell for cell in results.cells if cell.study.cell.data_changes):
        budgets = cell.study.size.budgets
        for arm, name in CHANGED.items():
            late = [cell.late(arm, seed, changed=True) for seed in results.seeds]
            yield (
                cell.study.cell.title,
                name,
                *(_old_and_new([points[n] for points in late]) for n in range(len(budgets))),
            )
        nearest = [
            [_nearest(cell.points("retrain", seed), budget * cell.unit(seed)) for seed in results.seeds]
            for budget in budgets
        ]
        yield (cell.study.cell.title, TRAINED["retrain"], *map(_old_and_new, nearest))


def _nearest(points: Sequence[Point], flops: float) -> Point:
    """Return the point whose operations are nearest, on a logarithmic scale."""
    return min(points, key=lambda point: abs(log(point.flops / flops)))


def _old_and_new(points: Sequence[Point]) -> str:
    return f"{100 * fmean(point.old for point in points):.1f}, {100 * fmean(point.new for point in points):.1f}"


def _figures(results: Results) -> Iterable[tuple[str, str, Mapping[str, Sequence[Point2]]]]:
    """Yield name, title and series of each figure: relative operations, and mean accuracy in %."""
    if results.cells:
        arms = {name: _curve(results.cells, results.seeds, arm, trained=False) for arm, name in SCRATCH.items()}
        yield "from-scratch", "From scratch, mean over cells", {name: curve for name, curve in arms.items() if curve}
    if results.deficient:
        late = {name: _curve(results.deficient, results.seeds, arm, trained=True) for arm, name in TRAINED.items()}
        title = "From a trained network, mean over deficit cells"
        yield "trained", title, {name: curve for name, curve in late.items() if curve}


def _curve(cells: Sequence[CellResults], seeds: Sequence[int], arm: str, *, trained: bool) -> list[Point2]:
    """Return an arm's mean at each of its horizons or budgets."""
    late = trained and arm != "retrain"
    curves = [
        [
            (point.flops / cell.unit(seed), 100 * point.accuracy)
            for point in (cell.late if late else cell.points)(arm, seed)
        ]
        for cell in cells
        for seed in seeds
    ]
    steps = zip(*(curve for curve in curves if curve), strict=False)
    return [(fmean(x for x, _ in step), fmean(y for _, y in step)) for step in steps]


# --- figures

COLOURS: Final = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d5a97", "#c77b0a", "#555555")
WIDTH, HEIGHT, LEFT, BOTTOM, LEGEND = 800.0, 380.0, 60.0, 50.0, 270.0


def draw(title: str, series: Mapping[str, Sequence[Point2]]) -> str:
    """Return a figure of lines over a logarithmic axis of operations."""
    xs = [log(x) for curve in series.values() for x, _ in curve]
    ys = [y for curve in series.values() for _, y in curve]
    low, high = min(ys) - 1, max(ys) + 1
    start, end = min(xs) - 0.1, max(xs) + 0.1

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (log(x) - start) / (end - start) * (WIDTH - LEFT - LEGEND)
        return round(across, 1), round(30 + (high - y) / (high - low) * (HEIGHT - 30 - BOTTOM), 1)

    marks = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>']
    for number in range(5):
        y = low + (high - low) * number / 4
        at = place(2.718281828**start, y)[1]
        marks.append(f'<path d="M{LEFT} {at}H{WIDTH - LEGEND}" stroke="#ddd"/>')
        marks.append(f'<text x="{LEFT - 8}" y="{at + 4}" text-anchor="end">{y:.0f} %</text>')
    for tick in (0.05, 0.1, 0.25, 0.5, 1, 2, 4):
        if start <= log(tick) <= end:
            at = place(tick, low)[0]
            marks.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>')
    caption = "operations, in trainings of the best static network from scratch"
    marks.append(f'<text x="{LEFT}" y="{HEIGHT - 10}">{caption}</text>')
    for number, (name, curve) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [place(x, y) for x, y in sorted(curve)]
        path = " ".join(f"{x},{y}" for x, y in points)
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        marks += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>' for x, y in points]
        at = 44 + 20 * number
        marks.append(f'<circle cx="{WIDTH - LEGEND + 14}" cy="{at - 4}" r="4" fill="{colour}"/>')
        marks.append(f'<text x="{WIDTH - LEGEND + 24}" y="{at}">{escape(name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" font-family="sans-serif"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f'{head} font-size="13">', f"<title>{escape(title)}</title>", background, *marks, "</svg>", ""])
