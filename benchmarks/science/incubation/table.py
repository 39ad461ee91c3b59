"""Write ``results.json`` as a page of tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from benchmarks.science.incubation.cells import BLUEPRINTS, INCUBATIONS, PLACES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Row = Mapping[str, Any]

COUNTED: Final = ("kept", "worth", "wrongly_kept", "wrongly_refused")


def page(found: Row, *, date: str) -> str:
    """Return the whole page, in Markdown."""
    sections = [
        _head(found, date),
        *(_forced(found, place.name) for place in PLACES),
        _between(found["between"]),
        _prices(found["forced"]),
        _one_price(found["forced"], 1e-4),
        _highest(found["gated"]),
        _gated(found["gated"], found["size"]["gated_germination"]),
    ]
    return "\n\n".join(sections) + "\n"


def _head(found: Row, date: str) -> str:
    lines = [
        "# Which incubation, and what should a gate ask?",
        "",
        "<!-- written by python -m benchmarks.science.incubation -->",
        "",
        f"`python -m benchmarks.science.incubation`, {date}, two CPU cores (one used), torch {found['torch']}.",
        "",
        f"Seeds of the environments: 0 to {found['size']['seeds'] - 1}. Intervals are 95 %, by Student's t over the",
        "paired differences from the twin, which is the same host on the same batches without growth; where no",
        "difference is shown there is a `–`. Nats: test loss of the twin less that of the grown network. Cost:",
        "operations of the episode's training over those of the twin's, counted and not timed.",
        "",
        "",
    ]
    rows = [
        (
            twin["place"],
            f"{twin['steps']} × {twin['batches']}",
            f"{twin['parameters']:,}",
            f"{twin['metric']:.1f} %",
            f"{twin['loss']:.3f}",
        )
        for twin in found["twins"]
    ]
    return "\n".join(lines) + _table(("place", "steps × batches", "parameters", "twin, test", "twin, nats"), rows)


def _forced(found: Row, place: str) -> str:
    """Return the gain of each seed at one place, where gates were off."""
    own = [row for row in found["forced"] if row["place"] == place]
    rows = []
    for row in sorted(own, key=_order):
        gains = [_number(row[key], "+.3f") for key in ("gain_in_training", "gain_in_holding")]
        rows.append(
            (
                row["blueprint"],
                str(row["germination"]),
                row["incubation"],
                f"{row['metric']:.1f} %",
                _difference(row["points"], ".1f"),
                _difference(row["nats"], ".3f"),
                f"{row['added']:,}",
                _number(row["cost"], ".2f"),
                *gains,
            )
        )
    head = (
        "blueprint",
        "at",
        "incubation",
        "test",
        "points over the twin",
        "nats over the twin",
        "parameters",
        "cost",
        "gain, last of training",
        "gain, last of holding",
    )
    advance, keep = found["size"]["advance"], found["size"]["keep"]
    title = f"## {place.capitalize()}: gates off, advanced {advance} and kept {keep} steps after germination"
    return f"{title}\n\n" + _table(head, rows)


def _between(pairs: Sequence[Row]) -> str:
    """Return a table of one incubation mode against another, seed by seed."""
    rows = [
        (
            row["place"],
            row["blueprint"],
            str(row["germination"]),
            f"{row['a']} over {row['b']}",
            _difference(row["points"], ".1f"),
            _difference(row["nats"], ".3f"),
        )
        for row in sorted(pairs, key=lambda row: (_place(row), row["a"], *_order({**row, "incubation": row["a"]})))
        if not row["same"]
    ]
    same = Counter(f"`{row['a']}` and `{row['b']}`" for row in pairs if row["same"])
    told = [f"Of {names}, {count} cells ended with the same bits, and are left out." for names, count in same.items()]
    head = ("place", "blueprint", "at", "what", "points", "nats")
    return "\n\n".join(["## Between the ways of incubating, of seeds that are forced in", *told, _table(head, rows)])


def _prices(forced: Sequence[Row]) -> str:
    """Return how often strict gates would have been right, by price, over all cells of a place."""
    rows = []
    for place in PLACES:
        for incubation in INCUBATIONS:
            own = [row for row in forced if row["place"] == place.name and row["incubation"] == incubation]
            for price, counts, seeds in _counted(own):
                rows.append(
                    (place.name, incubation, f"{price:g}", str(seeds), *(str(counts[what]) for what in COUNTED))
                )
    title = "## Strict gates asked again, over all blueprints and germinations, by price"
    text = (
        "Kept: G2 opened while the seed was in training, and G5 while it was holding. Worth: more nats than the price."
    )
    head = ("place", "incubation", "nats per parameter", "seeds", "kept", "worth it", "wrongly kept", "wrongly refused")
    return f"{title}\n\n{text}\n\n" + _table(head, rows)


def _one_price(forced: Sequence[Row], price: float) -> str:
    """Return the verdicts on each cell at one price."""
    rows = []
    for row in sorted(forced, key=lambda row: (_place(row), *_order(row))):
        said = next(said for said in row["verdicts"] if said["price"] == price)
        counts = [said[what] for what in ("advanced", *COUNTED)]
        rows.append(
            (
                row["place"],
                row["blueprint"],
                str(row["germination"]),
                row["incubation"],
                f"{row['added'] * price:.3f}",
                f"{row['nats'][0]:+.3f}",
                *map(str, counts),
            )
        )
    head = ("place", "blueprint", "at", "incubation", "price", "nats", "G2 opened", *(_words(what) for what in COUNTED))
    return f"## The same at {price:g} nats for each parameter\n\n" + _table(head, rows)


def _highest(gated: Sequence[Row]) -> str:
    """Return the highest price at which G2 would have passed each seed."""
    longest: dict[tuple[int, int, str], Row] = {}
    for row in sorted(gated, key=lambda row: row["price"]):
        longest[_place(row), BLUEPRINTS.index(row["blueprint"]), row["incubation"]] = row
    rows = []
    for _, row in sorted(longest.items()):
        seen = zip(row["highest_price"], row["advanced_after"], strict=True)
        known = sorted((seed["G2"], step is not None) for seed, step in seen if seed["G2"] is not None)
        prices = ", ".join(f"{'≥ ' if passed else ''}{1e4 * price:.2f}" for price, passed in known)
        rows.append((row["place"], row["blueprint"], row["incubation"], f"{row['price']:g}", prices))
    head = ("place", "blueprint", "incubation", "in the run at", "of each seed, in 1e−4 nats for each parameter")
    text = (
        "At this price or less G2 would have opened at one of its looks. `≥` where the seed passed: more was to come.\n"
        "From the run at the highest price, in which seeds stayed longest in training."
    )
    return f"## The highest price that each seed would have paid\n\n{text}\n\n" + _table(head, rows)


def _gated(gated: Sequence[Row], germination: int) -> str:
    """Return what strict gates did when they were on."""
    rows = [
        (
            row["place"],
            row["blueprint"],
            row["incubation"],
            f"{row['price']:g}",
            str(row["advanced"]),
            str(row["kept"]),
            _steps(row["advanced_after"]),
            _steps(row["kept_after"]),
            _difference(row["points"], ".1f"),
            _difference(row["nats"], ".3f"),
            _number(row["cost"], ".2f"),
            str(row["wrongly_kept"]),
            str(row["wrongly_refused"]),
            str(row["left_a_trace"]),
        )
        for row in sorted(gated, key=lambda row: (_place(row), -row["price"], *_order(row)))
    ]
    head = (
        "place",
        "blueprint",
        "incubation",
        "nats per parameter",
        "advanced",
        "kept",
        "advanced after step",
        "kept after step",
        "points over the twin",
        "nats over the twin",
        "cost",
        "wrongly kept",
        "wrongly refused",
        "refused, and left a trace",
    )
    text = (
        f"Germinated after step {germination}, blended in when G2 opens, kept when G5 does. Nothing is pruned\n"
        "before the end. Refused seeds are judged by what the same seed brought above, where it was forced.\n"
        "A refused seed left a trace where the host did not end as its twin, to the bit."
    )
    return f"## Strict gates at work\n\n{text}\n\n" + _table(head, rows)


def _counted(rows: Iterable[Row]) -> Iterator[tuple[float, Counter[str], int]]:
    """Yield the verdicts of several cells together: price, counts, and seeds."""
    sums: dict[float, Counter[str]] = {}
    seeds = 0
    for row in rows:
        seeds += len(row["seeds"])
        for said in row["verdicts"]:
            sums.setdefault(said["price"], Counter()).update({what: said[what] for what in COUNTED})
    for price, counts in sums.items():
        yield price, counts, seeds


def _difference(found: Sequence[Any], form: str) -> str:
    mean, low, high, verdict = found
    mark = "–" if verdict == "no difference shown" else verdict
    if low is None or high is None:
        return f"{mean:+{form}} {mark}"
    return f"{mean:+{form}} ({low:+{form}} to {high:+{form}}) {mark}"


def _steps(steps: Sequence[int | None]) -> str:
    known = sorted(step for step in steps if step is not None)
    return "" if not known else str(known[0]) if known[0] == known[-1] else f"{known[0]} to {known[-1]}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _order(row: Row) -> tuple[int, int, int]:
    return BLUEPRINTS.index(row["blueprint"]), row["germination"], INCUBATIONS.index(row["incubation"])


def _place(row: Row) -> int:
    return [place.name for place in PLACES].index(row["place"])


def _words(name: str) -> str:
    return {"worth": "worth it"}.get(name, name.replace("_", " "))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
