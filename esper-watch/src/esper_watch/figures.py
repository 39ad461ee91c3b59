"""Charts of a report as data: scales, axes, and what is drawn. The templates in ``charts.html`` turn them into SVG.

Every mark of a chart has a text that says what it shows: shown when the pointer rests on it, read aloud by screen
readers, and reached with the arrow keys. Positions are in user units of an SVG that is 720 wide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import Cause, Finding, Stage
from esper_core.leyline.constants import CONFIDENCE
from esper_core.leyline.errors import plural
from esper_run.formats import format_reason
from esper_run.runs.statistics import arm_interval, mean_interval, mean_known
from esper_watch.formats import cut, format_number, format_tick, format_value, short_name
from esper_watch.history import is_usable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from esper_core.leyline import Metric, Reason
    from esper_core.leyline.events import EpisodeFinished, GovernorActed
    from esper_watch.history import History, SeedGain, SeedLife

WIDTH: Final = 720.0
AXIS_HEIGHT: Final = 58.0
"""Height of a horizontal axis with its labels, which are larger on a narrow screen."""

PLOT_LEFT, LIVES_LEFT, GAINS_LEFT, GAINS_RIGHT = 84.0, 190.0, 236.0, 152.0
RIGHT, TOP, BOTTOM = 24.0, 14.0, 300.0

COLOURS: Final = 8
"""Number of arm colours in the stylesheet; further arms reuse them with another dash pattern."""

DASHES: Final = (None, "7 4", "2 3", "9 3 2 3")

MAX_DOTS: Final = 400
"""Networks of an arm that are drawn one by one."""

MAX_POINTS: Final = 200
"""Points of a curve."""

Z_95: Final = 1.96
"""Standard errors on each side of a mean for a 95 % interval of a large sample."""

STAGE_NAMES: Final = {
    Stage.GERMINATED: "germinated, not trained yet",
    Stage.TRAINING: "training in isolation",
    Stage.BLENDING: "blending in",
    Stage.HOLDING: "holding",
    Stage.DRAINING: "draining",
    Stage.FOSSILISED: "kept",
    Stage.PRUNED: "pruned",
}

STAGE_HEIGHTS: Final = dict(zip(STAGE_NAMES, (3.0, 5.0, 8.0, 9.5, 8.0, 11.0, 0.0), strict=True))
"""Heights of the stages' bars: the higher, the more a seed is part of its network. They are read without colour."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear scale from ``low``..``high`` to ``start``..``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, number: float) -> float:
        """Return the position of ``number``, clipped to the scale's ends."""
        share = (min(max(number, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return about this many round numbers within the scale.

        >>> Scale(0.13, 0.87, 0, 100).ticks()
        [0.2, 0.4, 0.6, 0.8]
        """
        least = (self.high - self.low) / max(1, about)
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(index * step, 12) for index in range(first, last + 1)]


def scale_around(numbers: Iterable[float], *, start: float, end: float, room: float = 0.06) -> Scale:
    """Return a scale that shows all usable numbers, with some room at both ends."""
    usable = [number for number in numbers if is_usable(number)]
    low, high = (min(usable), max(usable)) if usable else (0.0, 1.0)
    width = high - low
    if width <= 1e-12 * max(abs(low), abs(high), 1e-300):
        width, room = abs(low) or 1.0, 0.5
    return Scale(low - room * width, high + room * width, start, end)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its scale, its position, the ends of its grid lines, the format of its figures, and its title."""

    scale: Scale
    at: float
    grid_to: float
    text: Callable[[float], str]
    title: str = ""

    def ticks(self, about: int) -> list[tuple[float, str]]:
        """Return position and text of about this many figures."""
        return [(self.scale(tick), self.text(tick)) for tick in self.scale.ticks(about)]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: what it is called, what it shows in a sentence, and what the template macro ``kind`` draws."""

    kind: str
    title: str
    description: str
    height: float
    data: Any
    x: Axis | None = None
    y: Axis | None = None
    width: float = WIDTH


@dataclass(frozen=True, slots=True)
class ArmStyle:
    """Colour and dash pattern of an arm, the same in every chart."""

    css_class: str
    dash: str | None


def arm_styles(arms: Sequence[str]) -> dict[str, ArmStyle]:
    """Return a style for each arm."""
    return {
        arm: ArmStyle(f"arm-{number % COLOURS}", DASHES[(number + number // COLOURS) % len(DASHES)])
        for number, arm in enumerate(arms)
    }


# --- arms at the end


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The finished episodes of an arm, and their mean test metric with its interval."""

    name: str
    style: ArmStyle
    episodes: Sequence[EpisodeFinished]
    mean: float
    """NaN if an episode has no usable figure."""
    low: float | None
    high: float | None

    @property
    def parameters(self) -> float:
        """Mean number of parameters."""
        return fmean(episode.parameters for episode in self.episodes)

    @property
    def flops(self) -> float | None:
        """Mean floating-point operations, or None if they are unknown."""
        return mean_known([episode.flops for episode in self.episodes])

    @property
    def fossils(self) -> float:
        """Mean number of kept seeds."""
        return fmean(episode.fossils for episode in self.episodes)

    @property
    def reward(self) -> float | None:
        """Mean reward, or None if it is unknown for an episode."""
        return mean_known([episode.reward for episode in self.episodes])

    @property
    def drawable(self) -> list[EpisodeFinished]:
        """The episodes that are drawn one by one."""
        return [episode for episode in self.episodes if is_usable(episode.test_metric)][:MAX_DOTS]


def arm_results(history: History, metric: Metric) -> list[ArmResult]:
    """Return the results of all arms with a finished episode."""
    results = []
    for arm, style in arm_styles(history.arms).items():
        if episodes := [episode for episode in history.episodes if episode.arm == arm]:
            interval = arm_interval(episodes, metric)
            results.append(ArmResult(arm, style, episodes, interval.mean, interval.low, interval.high))
    return results


def arm_intervals(metric: Metric, results: Sequence[ArmResult]) -> Chart:
    """Chart the mean of each arm with its interval, and every network as a ring."""
    row = 34.0
    numbers = [episode.test_metric for result in results for episode in result.episodes]
    numbers += [edge for result in results for edge in (result.low, result.high) if edge is not None]
    bottom = 12 + row * len(results)
    scale = scale_around(numbers, start=150.0, end=WIDTH - RIGHT)
    means = "; ".join(f"{result.name} {format_value(metric, result.mean)}" for result in results)
    return Chart(
        "arm_intervals",
        "Arms at the end",
        f"Means on the test split: {means}.",
        bottom + AXIS_HEIGHT,
        {"metric": metric, "rows": [(12 + row * (n + 0.5), result) for n, result in enumerate(results)]},
        x=Axis(scale, bottom, 6, lambda value: format_tick(metric, value), f"test {metric.name}"),
    )


# --- curves


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve: the mean of ``n`` values, its interval, and the smallest and largest value."""

    at: int
    mean: float
    low: float
    high: float
    n: int
    least: float
    most: float


def curve_points(curve: Mapping[int, Sequence[float]], *, share: bool = False) -> list[Point]:
    """Return the points of a curve, thinned out if it is long. share: see ``mean_interval``."""
    steps = sorted(curve)
    every = -(-len(steps) // MAX_POINTS) if steps else 1
    points = []
    for index, step in enumerate(steps):
        values = [value for value in curve[step] if is_usable(value)]
        if values and (index % every == 0 or step == steps[-1]):
            interval = mean_interval(values, CONFIDENCE, share=share)
            low, high = (interval.mean if edge is None else edge for edge in (interval.low, interval.high))
            points.append(Point(step, interval.mean, low, high, interval.n, min(values), max(values)))
    return points


def latest_curves(history: History, metric: Metric) -> dict[str, list[Point]]:
    """Return the validation curve of each arm in the latest round."""
    last = max(history.rounds, default=0)
    curves = {arm: curve_points(history.metric_by_step(last, arm), share=metric.is_share) for arm in history.arms}
    return {arm: points for arm, points in curves.items() if points}


def curves_chart(
    metric: Metric,
    curves: Mapping[str, Sequence[Point]],
    styles: Mapping[str, ArmStyle],
    steps: int,
    *,
    left: float = PLOT_LEFT,
    width: float = WIDTH,
) -> Chart:
    """Chart curves with their bands. What is measured after a step is drawn where the next one begins."""
    edges = [edge for points in curves.values() for point in points for edge in (point.least, point.most)]
    at_step: dict[int, list[tuple[str, Point]]] = {}
    for arm, points in curves.items():
        for point in points:
            at_step.setdefault(point.at, []).append((arm, point))
    x = Scale(0.0, float(max(1, steps)), left, width - RIGHT)
    y = scale_around(edges, start=BOTTOM, end=TOP, room=0.04)  # a band that is wider is cut off
    ends = "; ".join(f"{arm} ends at {format_value(metric, points[-1].mean)}" for arm, points in curves.items())
    return Chart(
        "learning_curves",
        "Learning curves",
        f"{ends}.",
        BOTTOM + AXIS_HEIGHT,
        {
            "metric": metric,
            "curves": [(styles[arm], points) for arm, points in curves.items()],
            "columns": sorted(at_step.items()),
            "width": max(1.0, (x.end - x.start) / max(1, len(at_step))),
        },
        x=Axis(x, BOTTOM, TOP, lambda step: f"{step:g}", "decision step"),
        y=Axis(y, left, width - RIGHT, lambda value: format_tick(metric, value)),
        width=width,
    )


# --- seeds


def seed_lives(
    history: History, arm: str, lives: Mapping[int, Sequence[SeedLife]], acts: Sequence[GovernorActed]
) -> Chart:
    """Chart the lives of the seeds in some networks of an arm, and what the governor did there."""
    y, networks = 6.0, []
    for seed, seeds in lives.items():
        rows = [
            (y + 20 + 17 * number, life, list(life_spans(life, history.steps_of(life.environment))))
            for number, life in enumerate(seeds)
        ]
        networks.append((y, seed, [act for act in acts if act.seed == seed], rows))
        y += 20 + 17 * len(rows) + 5
    x = Scale(0.0, float(max(1, history.steps_per_episode)), LIVES_LEFT, WIDTH - RIGHT)
    return Chart(
        "seed_lives",
        f"Lives of seeds, {arm}",
        f"{plural(sum(map(len, lives.values())), 'seed')} in {plural(len(lives), 'network')} of {arm}.",
        y + AXIS_HEIGHT,
        networks,
        x=Axis(x, y, 6, lambda step: f"{step:g}", "decision step"),
    )


def life_spans(life: SeedLife, steps: int) -> Iterator[tuple[Stage, int, int, str]]:
    """Yield the spans that are drawn of a life: stage, first and last step, and what the mark says.

    A change takes effect in the step after it. Events count steps from 0, the report from 1. A seed starts to train
    in the step after its germination, so both are one span.
    """
    starts = [change.step + 1 for change in life.changes]
    stops = [*starts[1:], max(steps, starts[-1])]
    following = [*(change.now for change in life.changes[1:]), None]
    germinated: tuple[int, Reason] | None = None
    for change, after, start, stop in zip(life.changes, following, starts, stops, strict=True):
        stage, first, reason = change.now, start, change.reason
        text = f"{STAGE_NAMES[stage]} from step {start} to step {stop}"
        if stage in (Stage.GERMINATED, Stage.PRUNED):
            text = f"{stage.value} at step {start}"
        elif stage is Stage.TRAINING and germinated is not None:
            first, reason = germinated
            text = f"germinated at step {first}, {text}"
        germinated = (start, change.reason) if stage is Stage.GERMINATED else None
        if germinated is None or after is not Stage.TRAINING:
            yield stage, first, stop, f"{text}. {format_reason(reason)}"


def life_text(life: SeedLife) -> str:
    """Describe a seed's life in one sentence."""
    names = {**STAGE_NAMES, Stage.GERMINATED: "germinated"}
    stages = ", ".join(f"{names[change.now]} at step {change.step + 1}" for change in life.changes)
    return f"{life.blueprint} in {life.slot}, {plural(life.parameters, 'parameter')}: {stages}"


def seed_gains(gains: Sequence[tuple[SeedLife, SeedGain]], unit: str = "nats") -> Chart:
    """Chart the latest gain of each seed with its interval and its gate's price, in a unit."""
    edges = [gain.mean + side * Z_95 * gain.error for _, gain in gains for side in (-1, 1)]
    prices = [gain.price for _, gain in gains if gain.price is not None]
    scale = scale_around([*edges, *prices, 0.0], start=GAINS_LEFT, end=WIDTH - GAINS_RIGHT)
    rows = []
    for number, (life, gain) in enumerate(gains):
        name = f"{cut(life.arm, 12)} {life.seed}  {life.slot}  {short_name(life.blueprint)}"
        price = "" if gain.price is None else f", price {format_number(gain.price)}"
        mean, error = format_number(gain.mean, signed=True, decimals=3), format_number(gain.error, decimals=3)
        figures = f"gain {mean} ± {error} {unit} (n = {gain.examples}){price}"
        text = f"{name}: {figures}, step {gain.step + 1}, {STAGE_NAMES[gain.stage]}; {fate(life)}"
        rows.append((10 + 16 * (number + 0.5), life, gain, name, text))
    bottom = 10.0 + 16 * len(rows)
    return Chart(
        "seed_gains",
        "Gains of seeds",
        f"{plural(len(gains), 'seed')}; {sum(life.kept for life, _ in gains)} of them kept.",
        bottom + AXIS_HEIGHT,
        rows,
        x=Axis(scale, bottom, 6, format_number, f"gain in {unit}"),
    )


def fate_class(life: SeedLife) -> str:
    """Return the CSS class of a seed's fate."""
    if life.kept:
        return "stage-fossilised"
    return "stage-pruned" if life.ended else "living"


def short_fate(life: SeedLife) -> str:
    """Return what became of a seed, in a few words."""
    if life.kept:
        return "kept"
    if not life.ended:
        return "still living"
    reason, opinion = life.reason, life.reason.opinion
    if reason.cause is Cause.POLICY and opinion is not None and opinion.finding is Finding.NOT_SHOWN:
        return "gain not shown" if opinion.lacking else "below its price"
    return f"{short_name(reason.detail)} was chosen" if reason.cause is Cause.NURSERY else reason.words


def fate(life: SeedLife) -> str:
    """Return what became of a seed, with the reason."""
    if not life.ended:
        return f"still {STAGE_NAMES[life.stage]}"
    return f"{STAGE_NAMES[life.stage]}: {format_reason(life.reason)}"
