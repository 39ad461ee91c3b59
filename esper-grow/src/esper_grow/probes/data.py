"""Training batches of a probe: the same ones, in the same order, for the host and for each candidate.

Losses are compared example by example, so every training must see the same batches. Each pass begins with the same
random numbers, from which a loader that shuffles draws its order, and the batches are compared with those of before.
"""

from __future__ import annotations

import random
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from esper_core.growth import Example, RandomStream
from esper_core.leyline.errors import GrowthError, Problem
from esper_grow.gardener.traces import same_random_numbers
from esper_grow.gardener.validation import REPEATABLE, LoaderGenerators, fingerprint, refuse_no_batches, same_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    import torch


class DataStream:
    """Random numbers of one pass over the data: of torch, Python and NumPy, lent while a block runs."""

    def __init__(self, seed: int) -> None:
        self._torch = RandomStream(seed)
        self._python = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let the ``with`` block draw from this stream; put the process's own generators back after it."""
        with same_random_numbers(), self._torch:
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()


class TrainingBatches:
    """The training data of a probe.

    Args:
        batches: Yields the batches each time it is iterated: a DataLoader, or a list.
        seed: RNG seed for loaders.
        device: Where the batches go.
    """

    def __init__(self, batches: Iterable[Any], seed: int, device: torch.device) -> None:
        refuse_no_batches(batches, "training")
        self._batches, self._seed, self._device = batches, seed, device
        self.generators = LoaderGenerators(batches)
        """The loader's own generators, which each training rewinds."""
        self._seen: list[float] = []
        """What the batches of the longest training are known by."""

    def first(self) -> Any:
        """Return the first batch of a training."""
        return next(self.stream("trial"))

    def stream(self, purpose: str) -> Iterator[Any]:
        """Yield batches, pass after pass; for each ``purpose`` always the same.

        Raises:
            GrowthError: A pass has no batches, or others than in another training (E344).
        """
        self.generators.rewind()
        lent: Callable[[], AbstractContextManager[None]] = nullcontext
        if not isinstance(self._batches, list | tuple):  # a list draws no random numbers
            lent = DataStream(RandomStream.derive_seed(self._seed, "batches", purpose)).lent
        place = 0
        while True:
            before = place
            with lent():
                iterator = iter(self._batches)
            while True:
                with lent():
                    batch = next(iterator, _END)
                if batch is _END:
                    break
                moved = Example.of(batch).to(self._device)
                if purpose == "trial":
                    self._recognise(moved, place)
                place += 1
                yield moved
            if place == before:
                defect = "has no batches" if not place else "can be read only once"
                raise GrowthError(Problem("E344", f"the training data {defect}", hint=REPEATABLE))

    def _recognise(self, batch: Any, place: int) -> None:
        """Raise GrowthError if the batch is another one than at this place of an earlier training."""
        number = float(fingerprint(batch, self._device))
        if place == len(self._seen):
            self._seen.append(number)
        elif number != self._seen[place]:
            message = "the training data yielded other batches than in the previous training"
            hint = "Candidates are compared on the same batches: seed the augmentation from torch, random or NumPy."
            raise GrowthError(Problem("E344", message, hint=hint))


_END: Any = object()


def held_out_batches(validation: Iterable[Any], most: int) -> list[Any]:
    """Return the first validation batches, with ``most`` examples or a few more."""
    refuse_no_batches(validation, "validation")
    batches: list[Any] = []
    with same_order(validation):
        for batch in islice(validation, most):
            batches.append(batch)
            if len(batches) * rows_of(batches[0]) >= most:
                break
    return batches


def rows_of(batch: Any) -> int:
    """Return how many examples a batch has; 1 if it has no tensors."""
    return max(1, Example.of(batch).size)
