"""Posteriors of what a seed gains by the end of an episode, from evidence that does not depend on the host.

The gain is a share of the host's present error (1 − metric). It is predicted by Bayesian linear regression twice: from
what is known of a candidate before it is tried, and from the looks at a seed in training. The coefficients are data,
in ``forecaster.json``; ``python -m benchmarks.science.forecaster`` fits them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from esper_core.leyline import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.leyline import Observation, SeedSignals, SlotDescription

Series = Sequence[tuple[int, float]]
"""Values with the steps after which they were measured, in their order."""

COEFFICIENTS: Final = "forecaster.json"
SITUATION: Final = ("left", "error", "progress", "overfit", "rent", "reach", "reach · left")
"""Features of a candidate, and products of them. left: share of the episode to come. error: 1 − metric of the host.
progress: by which share of itself the loss falls. overfit: share of the validation loss beyond that on training data.
rent: log(1 + parameters over the host's). reach: log(1 + positions)."""
EVIDENCE: Final = (*SITUATION, "errors", "recent", "slope", "promise", "age", "errors · left", "recent · age")
"""Features of a seed in training. errors: gain in standard errors. recent: mean gain of the latest looks, as a share of
the host's loss. slope: how that gain changes. promise: gain on the training loss. age: log(1 + steps)."""
RECENT: Final = 4
"""Steps over which slopes are taken, and whose looks ``recent`` averages."""
PER_STEPS: Final = 10.0
"""Slopes are per so many steps."""
LEAST_ERROR: Final = 0.02
"""Errors of the host below this count as this."""
STEADY: Final = 1e-9
"""Deviations below this count as certainty."""
FARTHEST: Final = 4.0
"""Deviations beyond which a feature counts as this far from its mean."""
MOST_LOG: Final = 20.0
"""Largest absolute logarithm of a variance."""


@dataclass(frozen=True, slots=True)
class Belief:
    """A normal distribution of a gain in points, or of a gain beyond its cost."""

    mean: float
    deviation: float

    @property
    def option(self) -> float:
        """The expected value if the seed is kept only where its gain turns out positive: E max(0, gain).

        >>> Belief(0.0, 1.0).option == Belief(0.0, 2.0).option / 2, round(Belief(3.0, 0.1).option, 6)
        (True, 3.0)
        """
        if self.deviation < STEADY:
            return max(0.0, self.mean)
        z = self.mean / self.deviation
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return self.mean * (1 + math.erf(z / math.sqrt(2))) / 2 + self.deviation * density

    def minus(self, cost: float) -> Belief:
        """Return the belief of what is left of the gain after its cost."""
        return Belief(self.mean - cost, self.deviation)

    def after_looking(self, share: float) -> Belief:
        """Return how the mean is distributed that is expected once only this share of the deviation is left."""
        return Belief(self.mean, self.deviation * math.sqrt(max(0.0, 1.0 - share**2)))


@dataclass(frozen=True, slots=True)
class Regression:
    """A Bayesian linear regression on standardised features, with noise that depends on some of them.

    Attributes:
        features: Their names, in order.
        centre: Mean of each feature; an unknown value counts as the mean.
        scale: Deviation of each feature.
        weights: Intercept, then a weight for each feature.
        covariance: Of the weights.
        noise: Intercept and weight per feature of the logarithm of the noise variance.
        calibration: Factor of all deviations.
    """

    features: tuple[str, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: tuple[float, ...]
    calibration: float = 1.0

    def standardised(self, values: Sequence[float]) -> list[float]:
        """Return 1 for the intercept, then each feature less its mean, in deviations; at most FARTHEST of them."""
        scaled = zip(values, self.centre, self.scale, strict=True)
        return [1.0, *(0.0 if math.isnan(value) else _within((value - c) / s, FARTHEST) for value, c, s in scaled)]

    def predict(self, facts: Mapping[str, float]) -> Belief:
        """Return the predicted share of the host's error."""
        row = self.standardised(values_of(facts, self.features))
        spread = sum(
            a * b * v for a, line in zip(row, self.covariance, strict=True) for b, v in zip(row, line, strict=True)
        )
        noise = math.exp(_within(_dot(row, self.noise), MOST_LOG))
        return Belief(_dot(row, self.weights), self.calibration * math.sqrt(max(0.0, spread) + noise))


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The two regressions, and what a look is worth.

    Attributes:
        untried: The gain of a candidate, before it germinates.
        tried: The gain of a seed in training.
        shrink: Factor of the deviation of ``tried`` from one look to the next.
        doubt: Share of the deviation of ``untried`` that is left after a whole preview.
        hazard: Probability that a seed that can be kept now cannot be kept in the next step.
    """

    untried: Regression
    tried: Regression
    shrink: float
    doubt: float
    hazard: float


def load_coefficients(file: str | None = None) -> Coefficients:
    """Return the coefficients of a file; None: those that come with this package.

    Raises:
        SettingError: The file cannot be read, or does not hold coefficients.
    """
    home = resources.files("esper_policies").joinpath(COEFFICIENTS) if file is None else Path(file)
    try:
        return TypeAdapter(Coefficients).validate_json(home.read_bytes())
    except OSError as error:
        at, message = "coefficients", f"{home} cannot be read: {error.strerror}"
        raise SettingError(at, message, f"Give an existing file. Received: {file}") from error
    except ValidationError as error:
        at, message = "coefficients", f"{home} does not hold the coefficients of a forecaster"
        hint = f"python -m benchmarks.science.forecaster writes such a file. Received: {file}"
        raise SettingError(at, message, hint) from error


def situation(seen: Observation, losses: Series, parameters: int, reach: float) -> dict[str, float]:
    """Return what is known of a candidate; ``losses`` are the host's validation losses, the present one last."""
    now = seen.signals
    return {
        "left": (seen.steps - 1 - seen.step) / seen.steps,
        "error": error_of(seen),
        "progress": _share(-_slope(losses), now.validation_loss),
        "overfit": _share(now.validation_loss - now.train_loss, now.validation_loss),
        "rent": math.log1p(parameters / max(1, now.host_parameters)),
        "reach": reach,
    }


def evidence(facts: Mapping[str, float], seen: Observation, seed: SeedSignals, gains: Series) -> dict[str, float]:
    """Return what is known of a seed in training, in addition to ``known``, its situation.

    gains: the gain as a share of the host's loss at each look; the present look is the last.
    """
    assert seed.gain is not None
    recent = [gain for then, gain in gains if then > gains[-1][0] - RECENT]
    error, trained, loss = seed.gain.standard_error, seed.incubation_loss, seen.signals.train_loss
    return {
        **facts,
        "errors": _within(seed.gain.mean / error, 10.0) if error > 0 else 0.0,
        "recent": sum(recent) / len(recent),
        "slope": _within(_slope(gains), 1.0),
        "promise": math.nan if trained is None else _share(loss - trained, loss),
        "age": math.log1p(seed.age or 0),
    }


def values_of(facts: Mapping[str, float], features: Sequence[str]) -> list[float]:
    """Return the values of features, of which some are products.

    >>> values_of({"left": 0.5, "reach": 3.0}, ["left", "reach · left"])
    [0.5, 1.5]
    """
    return [math.prod(facts[name] for name in feature.split(" · ")) for feature in features]


def error_of(seen: Observation) -> float:
    """Return the host's error, a share between LEAST_ERROR and 1."""
    metric = seen.signals.validation_metric
    return 1.0 if math.isnan(metric) else min(1.0, max(LEAST_ERROR, 1.0 - metric))


def relative_gain(seen: Observation, seed: SeedSignals) -> float:
    """Return a seed's gain as a share of the host's loss, between −1 and 1; NaN if it is not known."""
    return math.nan if seed.gain is None else _share(seed.gain.mean, seen.signals.validation_loss)


def reach_of(place: SlotDescription | None, blueprint: str) -> tuple[int | None, float]:
    """Return the parameters of a blueprint in a place, and log(1 + reach); NaN where it is not known."""
    candidate = None if place is None else place.candidate(blueprint)
    if candidate is None:
        return None, math.nan
    return candidate.parameters, math.nan if candidate.reach is None else math.log1p(candidate.reach)


def _slope(series: Series) -> float:
    """Return the change of a series since RECENT steps ago, for PER_STEPS steps; 0 if it is one step long."""
    step, value = series[-1]
    then, before = next((pair for pair in reversed(series) if pair[0] <= step - RECENT), series[0])
    return 0.0 if then == step else PER_STEPS * (value - before) / (step - then)


def _share(value: float, total: float) -> float:
    if not math.isfinite(value) or not math.isfinite(total):
        return math.nan
    return _within(value / max(total, STEADY), 1.0)


def _within(value: float, limit: float) -> float:
    return min(limit, max(-limit, value))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
