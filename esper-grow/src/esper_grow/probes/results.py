"""What a probe returns: a row for each candidate, the verdict, and both as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic_core import to_jsonable_python

from esper_core.leyline.errors import one_line, plural
from esper_run.formats import decimals_of, format_flops, format_number, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROBE_FORMAT: Final = 1
"""Version of what ``ProbeResult.to_dict`` returns."""

WIDTH: Final = 80
"""Characters of a line of the table."""

SHORTEST_NAME: Final = 8
"""Characters that are left of a name in the table."""

Verdict = Literal["pays", "nothing pays", "undecided"]


NOTEBOOK_GROUP: Final = "esper.notebook"
"""Entry-point group of functions from the JSON of a probe or a plan to HTML."""


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One blueprint in one slot. Gains are in nats of validation loss for each example.

    Attributes:
        slot: Where it grew.
        blueprint: Its full id.
        gain: Loss of the host continued without it, minus loss of the host continued with it, after the same steps.
        error: The standard error of ``gain``, over validation examples.
        at_least: What the gain exceeds with a probability of 95 %, for all candidates and looks together.
        price: What the gain has to exceed.
        parameters: How many it adds.
        flops: Floating-point operations that it adds to a forward pass of one example; None: unknown.
        seconds: By how much it lengthens a training step.
        steps: The training steps after which it was compared.
        behind: By how much its gain less its price is below that of the first row, on the same examples after the
            longest trials that both had; 0 for the first row.
        behind_error: The standard error of ``behind``.
        pays: Whether ``at_least`` is above ``price`` at the end of the longest trials; None: undecided.
    """

    slot: str
    blueprint: str
    gain: float
    error: float
    at_least: float
    price: float
    parameters: int
    flops: int | None
    seconds: float
    steps: int
    behind: float
    behind_error: float
    pays: bool | None

    @property
    def net(self) -> float:
        """The gain less the price."""
        return self.gain - self.price

    @property
    def short(self) -> str:
        """The blueprint without its plugin."""
        return self.blueprint.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """A candidate that raised, or whose loss was not finite."""

    slot: str
    blueprint: str
    what: str


@dataclass(frozen=True, slots=True, repr=False)
class ProbeResult:
    """The result of ``probe``. ``print`` shows a table; a notebook shows a picture if esper-watch is installed.

    Attributes:
        verdict: "pays", "nothing pays" or "undecided".
        reason: One sentence on the verdict.
        rows: The candidates: those that pay first, then by gain less price.
        failed: Candidates that could not be tried.
        slots: What each slot carries: kind and shape.
        model: The class of the model.
        parameters: How many the model has.
        host_steps: How many steps the copy of the host was trained before anything was tried.
        host_loss: Its validation loss then.
        curve: Steps and validation losses on the way there.
        examples: How many validation examples there are; batches, if the loss function returns one loss for each.
        budget: The seconds that were given.
        seconds: The seconds that were used.
        needs: If undecided, about how many seconds a decision needs, by the measured speed; None otherwise.
        remarks: What else to know, such as trials that were shortened.
    """

    verdict: Verdict
    reason: str
    rows: tuple[ProbeRow, ...]
    failed: tuple[ProbeFailure, ...]
    slots: dict[str, str]
    model: str
    parameters: int
    host_steps: int
    host_loss: float
    curve: tuple[tuple[int, float], ...] = field(repr=False)
    examples: int
    budget: float
    seconds: float
    needs: float | None = None
    remarks: tuple[str, ...] = ()

    @property
    def best(self) -> ProbeRow | None:
        """The first row that pays; None if none does."""
        return next((row for row in self.rows if row.pays), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON. Numbers that are not finite become None."""
        return {"format": PROBE_FORMAT, **to_jsonable_python(asdict(self), inf_nan_mode="null")}

    def __repr__(self) -> str:
        best, summary = self.best, ""
        if best is not None:
            gain, error = format_number(best.gain, signed=True), format_number(best.error)
            summary = f"; {best.short} in {best.slot} {gain} ± {error} nats"
        tried = plural(len(self.rows), "candidate")
        return f"<{one_line(f'ProbeResult of {self.model}: {self.verdict}{summary}; {tried}')}>"

    def __str__(self) -> str:
        """Return the table, in lines of 80 characters at most, and the verdict."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.model}: {self.parameters:,} parameters, {plural(len(self.slots), 'slot')}"
        yield f"host trained for {plural(self.host_steps, 'step')}: validation loss {format_number(self.host_loss)}"
        yield ""
        if self.rows:
            yield from _table(self.rows)
            yield ""
        for failure in self.failed:
            yield from wrapped(f"{failure.blueprint} in {failure.slot} failed: the seed {failure.what}")
        for text in (self.reason, *self.remarks):
            yield from wrapped(text)

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows; None, and the notebook shows plain text, if no installed package draws it."""
        return html_of("probe", self.to_dict())


def html_of(kind: str, data: Any) -> str | None:
    """Return a probe or a plan as HTML; None, and a notebook shows plain text, if no installed package draws it.

    Args:
        kind: ``probe`` and ``plan`` for a notebook; ``probe-page`` and ``plan-page``.
        data: The JSON to draw.
    """
    for entry_point in entry_points(group=NOTEBOOK_GROUP, name=kind):
        html: str = entry_point.load()(data)
        return html
    return None


def _table(rows: Sequence[ProbeRow]) -> Iterator[str]:
    """Return the head and a line for each row; names are cut where the table would be too wide."""
    head = ("slot", "blueprint", "gain ± error", "at least", "price", "params", "FLOPs", "ms", "pays")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    gap = "  " if sum(widths) + 2 * (len(head) - 1) <= WIDTH else " "
    while sum(widths) + len(gap) * (len(head) - 1) > WIDTH and max(widths[:2]) > SHORTEST_NAME:
        widths[0 if widths[0] > widths[1] else 1] -= 1
    for line in cells:
        names = [f"{_cut(text, width):<{width}}" for text, width in zip(line[:2], widths[:2], strict=True)]
        yield gap.join([*names, *(f"{text:>{width}}" for text, width in zip(line[2:], widths[2:], strict=True))])


def _cells(row: ProbeRow) -> tuple[str, ...]:
    pays = {True: "yes", False: "no", None: "?"}[row.pays]
    shown = partial(format_number, decimals=decimals_of(row.error))
    gain = f"{shown(row.gain)} ± {shown(row.error)}"
    figures = (shown(row.at_least), f"{row.price:.3f}", f"{row.parameters:,}", plain(format_flops(row.flops)))
    return row.slot, row.short, gain, *figures, f"{1e3 * row.seconds:.1f}", pays


def _cut(text: str, width: int) -> str:
    """Return ``text`` in ``width`` characters, without its middle if it is longer."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def wrapped(text: str) -> list[str]:
    """Return a text in lines of ``WIDTH`` characters at most."""
    from textwrap import wrap

    return wrap(text, WIDTH, break_on_hyphens=False)


def verdict_on(rows: Sequence[ProbeRow]) -> tuple[Verdict, str]:
    """Return the verdict on candidates that were tried to the end, the best first, and its reason."""
    if not rows:
        return "undecided", "Undecided: every candidate failed."
    best = next((row for row in rows if row.pays), None)
    if best is None:
        return "nothing pays", "Nothing pays: no candidate is shown to gain more than it costs."
    gain, error, at_least, price = map(format_number, (best.gain, best.error, best.at_least, best.price))
    figures = f"its gain is {gain} ± {error} nats, {at_least} at least, and its price {price}"
    reason = f"{best.short} in {best.slot} pays: {figures}."
    alike = [row for row in rows if row.pays and row is not best and row.behind < 2.0 * row.behind_error]
    if alike:
        reason += f" No difference shown to: {', '.join(f'{row.short} in {row.slot}' for row in alike)}."
    return "pays", reason
