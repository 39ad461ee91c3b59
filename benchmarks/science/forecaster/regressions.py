"""Fit the regressions of ``forecaster`` by empirical Bayes to curves of training problems, and measure calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.science.forecaster.episodes import looks_at
from esper_policies.forecaster import Recollection
from esper_policies.posteriors import (
    EVIDENCE,
    FARTHEST,
    MOST_LOG,
    SITUATION,
    error_of,
    evidence,
    reach_of,
    situation,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from benchmarks.science.forecaster.curves import Curves

    Array = NDArray[np.float64]

NOISY: Final[dict[str, tuple[str, ...]]] = {
    "untried": ("left", "error"),
    "tried": ("left", "error", "recent", "age"),
}
"""The features that the noise depends on."""
FOLDS: Final = 6
RIDGES: Final = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Precisions of the prior of the weights, of which cross-validation takes the best."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was known at one look, and the gain in the end as a share of the host's error at the look.

    problem, curve: their names. values: the features.
    """

    problem: str
    curve: str
    values: tuple[float, ...]
    gain: float


def rows_of(curves: Curves, seed: tuple[str, str, int]) -> tuple[Row, list[Row]]:
    """Return what was known of a seed before it germinated, and at each look."""
    curve, host, memory = curves.curve(*seed), curves.host, Recollection()
    place = curves.places[seed[0]]
    gain = curve.metric - host["validation_metric"][-1]
    before, looks = None, []
    for seen, slot, living in looks_at(curves, seed):
        memory.look(seen)
        features = situation(seen, memory.losses, curve.parameters, reach_of(place, seed[1])[1])
        share, name = gain / error_of(seen), f"{curves.problem.name} {seed}"
        if seen.step == seed[2]:
            before = Row(curves.problem.name, name, tuple(values_of(features, SITUATION)), share)
        if slot is not None and living is not None and (gains := memory.gains[slot.name][living.blueprint]):
            values = values_of(evidence(features, seen, living, gains), EVIDENCE)
            looks.append(Row(curves.problem.name, name, tuple(values), share))
    assert before is not None
    return before, looks


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as arrays.

    weights: those of one curve together count as LOOKS_COUNT. shares: weights in the calibration.
    """

    values: Array
    gains: Array
    weights: Array
    shares: Array
    problems: tuple[str, ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Rows:
        """Return the rows as arrays."""
        sizes: dict[str, int] = {}
        for row in rows:
            sizes[row.curve] = sizes.get(row.curve, 0) + 1
        gains = np.clip([row.gain for row in rows], -LARGEST, LARGEST)
        weights = np.array([min(1.0, LOOKS_COUNT / sizes[row.curve]) for row in rows])
        return cls(np.array([row.values for row in rows]), gains, weights, weights, tuple(row.problem for row in rows))

    @classmethod
    def of_families(cls, several: Sequence[Sequence[Row]]) -> Rows:
        """Return the rows of several host families; each family has the same share in the calibration."""
        parts = [cls.of(rows) for rows in several]
        return cls(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.gains for part in parts]),
            np.concatenate([part.weights for part in parts]),
            np.concatenate([part.weights / part.weights.sum() for part in parts]),
            tuple(name for part in parts for name in part.problems),
        )

    def again(self, names: Sequence[str]) -> Rows:
        """Return the rows of the named problems, as often as each is named, which a bootstrap does."""
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self.problems):
            places.setdefault(name, []).append(place)
        taken = [place for name in names for place in places.get(name, ())]
        problems = tuple(self.problems[place] for place in taken)
        return Rows(self.values[taken], self.gains[taken], self.weights[taken], self.shares[taken], problems)


LOOKS_COUNT: Final = 2.0
"""Independent observations that the looks at one curve count as: their residuals are much alike."""
LARGEST: Final = 2.0
"""Gains beyond this share of the error count as this."""


def fit(rows: Rows, features: Sequence[str], noisy: Sequence[str]) -> tuple[dict[str, Any], Array]:
    """Return a regression as plain data, and the standardised residual of each row when its problem is left out."""
    centre, scale = np.nanmean(rows.values, axis=0), np.nanstd(rows.values, axis=0) + 1e-6
    design = _design(rows.values, centre, scale)
    columns = [0, *(1 + features.index(name) for name in noisy)]
    folds = _folds(rows.problems)
    best: tuple[float, float, Array, Array] | None = None
    for ridge in RIDGES:
        noise, residuals, spreads = _cross_validated(design, rows, folds, ridge, columns)
        variances = spreads + np.exp(design[:, columns] @ noise)
        score = float(np.average(np.log(variances) + residuals**2 / variances, weights=rows.weights))
        if best is None or score < best[0]:
            best = score, ridge, noise, residuals / np.sqrt(variances)
    assert best is not None
    _, ridge, noise, standard = best
    weights, covariance = _solve(design, rows.gains, rows.weights / np.exp(design[:, columns] @ noise), ridge)
    noise_weights = np.zeros(design.shape[1])
    noise_weights[columns] = noise
    calibration = _quantile(np.abs(standard), rows.shares, 0.8) / 1.2816
    plain = {
        "features": list(features),
        "centre": _rounded(centre),
        "scale": _rounded(scale),
        "weights": _rounded(weights),
        "covariance": [_rounded(line) for line in covariance],
        "noise": _rounded(noise_weights),
        "calibration": round(calibration, 4),
        "ridge": ridge,
    }
    return plain, standard / calibration


def _cross_validated(
    design: Array, rows: Rows, folds: NDArray[np.int64], ridge: float, columns: Sequence[int]
) -> tuple[Array, Array, Array]:
    """Return the noise model, and for each row its residual and the variance of its prediction by the other folds."""
    noise = np.zeros(len(columns))
    noise[0] = np.log(np.average((rows.gains - rows.gains.mean()) ** 2, weights=rows.weights))
    residuals, spreads = np.zeros(len(rows.gains)), np.zeros(len(rows.gains))
    for _ in range(3):
        precision = rows.weights / np.exp(design[:, columns] @ noise)
        for fold in range(FOLDS):
            held_out, fitted = folds == fold, folds != fold
            if held_out.any():
                weights, covariance = _solve(design[fitted], rows.gains[fitted], precision[fitted], ridge)
                residuals[held_out] = rows.gains[held_out] - design[held_out] @ weights
                spreads[held_out] = np.einsum("ni,ij,nj->n", design[held_out], covariance, design[held_out])
        noise = _noise(design[:, columns], residuals**2, rows.weights, noise)
    return noise, residuals, spreads


def _solve(design: Array, gains: Array, precision: Array, ridge: float) -> tuple[Array, NDArray[np.floating[Any]]]:
    """Return mean and covariance of the weights. The prior precision is for gains of a tenth of the error."""
    prior = np.full(design.shape[1], 100.0 * ridge)
    prior[0] = 1.0
    covariance: NDArray[np.floating[Any]] = np.linalg.inv((design * precision[:, None]).T @ design + np.diag(prior))
    return covariance @ (design.T @ (precision * gains)), covariance


def _noise(design: Array, squares: Array, weights: Array, start: Array) -> Array:
    """Return the log-linear model of variances with the greatest likelihood, by Newton's method."""
    noise = start.copy()
    penalty = np.diag([0.0, *[1.0] * (len(noise) - 1)])
    for _ in range(30):
        ratio = squares * np.exp(-np.clip(design @ noise, -MOST_LOG, MOST_LOG))
        gradient = design.T @ (weights * (1.0 - ratio)) + penalty @ noise
        curvature = (
            (design * (weights * np.maximum(ratio, 0.1))[:, None]).T @ design + penalty + 1e-6 * np.eye(len(noise))
        )
        noise = noise - np.clip(np.linalg.solve(curvature, gradient), -1.0, 1.0)
    return noise


def coefficients(untried: Rows, tried: Rows, hazard: float) -> dict[str, Any]:
    """Return everything that the policy reads, as plain data."""
    first, _ = fit(untried, SITUATION, NOISY["untried"])
    second, _ = fit(tried, EVIDENCE, NOISY["tried"])
    before, after = _deviations(first, untried.values), _deviations(second, tried.values)
    steps = np.diff(np.expm1(tried.values[:, EVIDENCE.index("age")]))
    goes_on = steps > 0
    shrink = float(np.exp(np.mean(np.diff(np.log(after))[goes_on] / steps[goes_on])))
    at_end = np.append(~goes_on, True)
    return {
        "untried": first,
        "tried": second,
        "shrink": round(min(1.0, shrink), 4),
        "doubt": round(min(1.0, float(after[at_end].mean() / before.mean())), 4),
        "hazard": round(hazard, 5),
    }


def coverage(standard: Array, weights: Array) -> dict[str, float]:
    """Return the share of gains within the 50, 80 and 95 % intervals.

    >>> coverage(np.array([0.0, 1.0, 1.5, 3.0]), np.ones(4))
    {'50': 0.25, '80': 0.5, '95': 0.75}
    """
    ends = {"50": 0.6745, "80": 1.2816, "95": 1.96}
    return {name: round(float(np.average(np.abs(standard) <= end, weights=weights)), 3) for name, end in ends.items()}


def standardised(plain: dict[str, Any], rows: Rows) -> Array:
    """Return the residuals of other rows in the deviations that a regression states."""
    design = _design(rows.values, np.array(plain["centre"]), np.array(plain["scale"]))
    residuals: Array = (rows.gains - design @ np.array(plain["weights"])) / _deviations(plain, rows.values)
    return residuals


def _deviations(plain: dict[str, Any], values: Array) -> Array:
    design = _design(values, np.array(plain["centre"]), np.array(plain["scale"]))
    spread = np.einsum("ni,ij,nj->n", design, np.array(plain["covariance"]), design)
    deviations: Array = plain["calibration"] * np.sqrt(spread + np.exp(design @ np.array(plain["noise"])))
    return deviations


def _design(values: Array, centre: Array, scale: Array) -> Array:
    scaled = np.clip(np.nan_to_num((values - centre) / scale, nan=0.0), -FARTHEST, FARTHEST)
    return np.hstack([np.ones((len(values), 1)), scaled])


def _folds(problems: Sequence[str]) -> NDArray[np.int64]:
    numbers = {name: number % FOLDS for number, name in enumerate(dict.fromkeys(problems))}
    return np.array([numbers[name] for name in problems])


def _quantile(values: Array, weights: Array, share: float) -> float:
    places = np.argsort(values)
    total = np.cumsum(weights[places])
    return float(values[places][np.searchsorted(total, share * total[-1])])


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
