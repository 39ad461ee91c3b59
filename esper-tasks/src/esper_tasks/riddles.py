"""Five problems over one form of data, each with another best blueprint.

All have signals of 40 numbers and three classes, so a policy can tell them apart only by measurements.

Points of validation accuracy that a block brings behind ``pointwise-mlp`` (8 channels, 16 hidden, kernel 1), less
what it costs at a price of 40; means over the data of seeds 100 to 102, one training each of 20 steps of 10 batches
of 100, Adam 3e-3; germinated at step 4, in the shadow for 4 steps, blended in over 2:

========= ===== ================= ===================== ================= =================
kind      alone pointwise         depthwise_separable   dilated           mlp (late)
========= ===== ================= ===================== ================= =================
``near``   73.6 +16.3 − 12.4      **+20.1 − 5.8**       +24.0 − 13.1      +6.1 − 20.2
``far``    59.9 +14.4 − 12.4      +10.3 − 5.8           **+29.2 − 13.1**  +4.4 − 20.2
``value``  62.0 **+28.1 − 12.4**  +9.0 − 5.8            +18.9 − 13.1      +2.0 − 20.2
``joint``  38.6 +8.2 − 12.4       +5.6 − 5.8            +19.4 − 13.1      **+45.6 − 20.2**
``easy``   89.8 +1.1 − 12.4       +0.3 − 5.8            +1.7 − 13.1       −0.3 − 20.2
========= ===== ================= ===================== ================= =================
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from esper_tasks.settings import RiddlesSettings
from esper_tasks.supervised import Classification, as_split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.random import RandomState
    from numpy.typing import NDArray

    from esper_tasks.settings import RiddleKind

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

CLASSES: Final = 3
LENGTH: Final = 40

_NEAR_FILTERS: Final = ((1, 1, 1), (1, -1, 1), (0, 1, 0))
_FAR_PATTERNS: Final = ((1, 1, -1, -1, 1), (1, -1, 1, 1, -1), (-1, 1, 1, 1, -1))
_FAR_GAP: Final = 3
_BANDS: Final = ((0, 1, 2), (2, 1, 0), (1, 2, 0))
"""In each third of the values: which of its three bands each class has in ``value``."""
_LOUD: Final = 4.0
"""Standard deviation of the uninformative pairs of values in ``value``."""
_DIRECTIONS: Final = 3
_EASY_HEIGHT: Final = 1.0


def riddles(**chosen: Any) -> Classification:
    """Generate signals (N, 1, 40) of one of three classes, equally frequent in each split.

    Formulas, with y the class, i the place, e standard normal, s a random sign:

    - ``near``: x[i] = Σⱼ f[y, j]·z[i+j] + 0.05·noise·e, z standard normal, f[y] three weights of length 1.
    - ``far``: x = 0.4·noise·e, and at five places, 3 apart, from a random one on: + 1.5·s·p[y]; p[y] five signs.
    - ``value``: x[i] lies between −2 and 2, in one of nine bands of equal width, three of which belong to each class;
      a share of 0.3·noise of the pairs x[2i], x[2i+1] is 4·e instead.
    - ``joint``: x = Σₖ v[k]·t[k] + 0.7·noise·e, where t are three orthogonal directions that the seed draws, of
      length √40; v has a random direction, and the length y + 0.5 or y + 3.5.
    - ``easy``: x = 1.5·noise·e, + 1 in the third of the positions that belongs to y.

    A share of the examples can be of the kind ``easy`` instead, and another share pure noise: then the initial accuracy
    of a host says little about what it lacks, or how much can be gained.

    >>> task = riddles(kind="far")
    >>> task.shape, [len(task.split(name)) for name in ("train", "validation", "test")]
    (DataShape(kind='sequence', example=(1, 40), outputs=3), [1000, 300, 500])

    chosen: settings, those of ``RiddlesSettings``.
    """
    settings = RiddlesSettings.model_validate(chosen)
    generator = np.random.RandomState(settings.seed)
    count = settings.samples + settings.validation + settings.test
    starts = (0, settings.samples, settings.samples + settings.validation, count)
    target = np.concatenate([_evenly(generator, until - start) for start, until in pairwise(starts)])
    signals = _SIGNALS[settings.kind](generator, target, settings.noise)
    if settings.easy or settings.void:
        signals = _mixed(generator, target, signals, settings)
    inputs = signals[:, None, :]
    train, held_out, last = (slice(start, until) for start, until in pairwise(starts))
    return Classification(
        {
            "train": as_split(inputs[train], target[train]),
            "validation": as_split(inputs[held_out], target[held_out]),
            "test": as_split(inputs[last], target[last]),
        },
        "sequence",
        classes=CLASSES,
    )


def _evenly(generator: RandomState, count: int) -> Integers:
    """Return classes in random order whose counts differ by at most one."""
    return generator.permutation(np.arange(count, dtype=np.int64) % CLASSES)


def _mixed(generator: RandomState, target: Integers, signals: Floats, settings: RiddlesSettings) -> Floats:
    """Replace the configured shares of signals by easy ones and by pure noise."""
    share = generator.random_sample(len(target))[:, None]
    easy, pure_noise = _easy(generator, target, settings.noise), generator.standard_normal(signals.shape)
    return np.where(share < settings.easy, easy, np.where(share >= 1 - settings.void, pure_noise, signals))


def _near(generator: RandomState, target: Integers, noise: float) -> Floats:
    filters = np.array(_NEAR_FILTERS, dtype=np.float64)
    filters /= np.linalg.norm(filters, axis=1, keepdims=True)
    width = filters.shape[1]
    source = generator.standard_normal((len(target), LENGTH + width - 1))
    windows = np.lib.stride_tricks.sliding_window_view(source, width, axis=1)
    signals: Floats = np.einsum("nlw,nw->nl", windows, filters[target])
    return signals + 0.05 * noise * generator.standard_normal(signals.shape)


def _far(generator: RandomState, target: Integers, noise: float) -> Floats:
    patterns = np.array(_FAR_PATTERNS, dtype=np.float64)
    reach = _FAR_GAP * (patterns.shape[1] - 1)
    signals: Floats = 0.4 * noise * generator.standard_normal((len(target), LENGTH))
    start = generator.randint(LENGTH - reach, size=len(target))
    sign = generator.choice([-1.0, 1.0], size=len(target))
    places = start[:, None] + np.arange(0, reach + 1, _FAR_GAP)
    signals[np.arange(len(target))[:, None], places] += 1.5 * sign[:, None] * patterns[target]
    return signals


def _value(generator: RandomState, target: Integers, noise: float) -> Floats:
    shape = (len(target), LENGTH)
    bands = np.array(_BANDS)
    third = generator.randint(len(bands), size=shape)
    place = third * CLASSES + bands[third, target[:, None]] + generator.random_sample(shape)
    signals: Floats = 4 * place / bands.size - 2
    hidden = np.repeat(generator.random_sample((len(target), LENGTH // 2)) < 0.3 * noise, 2, axis=1)
    return np.where(hidden, _LOUD * generator.standard_normal(shape), signals)


def _joint(generator: RandomState, target: Integers, noise: float) -> Floats:
    directions = np.linalg.qr(generator.standard_normal((LENGTH, _DIRECTIONS)))[0].T * np.sqrt(LENGTH)
    ring = target + CLASSES * generator.randint(2, size=len(target))
    point = generator.standard_normal((len(target), _DIRECTIONS))
    point *= (ring[:, None] + 0.5) / np.linalg.norm(point, axis=1, keepdims=True)
    signals: Floats = point @ directions
    return signals + 0.7 * noise * generator.standard_normal(signals.shape)


def _easy(generator: RandomState, target: Integers, noise: float) -> Floats:
    third = np.arange(LENGTH) * CLASSES // LENGTH
    signals: Floats = _EASY_HEIGHT * (third == target[:, None])
    return signals + 1.5 * noise * generator.standard_normal(signals.shape)


_SIGNALS: Final[Mapping[RiddleKind, Callable[[RandomState, Integers, float], Floats]]] = {
    "near": _near,
    "far": _far,
    "value": _value,
    "joint": _joint,
    "easy": _easy,
}
