"""Running averages: the weights by which a network is judged.

The weights of one step are noisy: from step to step a gain moves further than its standard error says. So host,
branches and twins are evaluated with an average of what trains in them, in which a batch counts half after a number of
further batches. That takes one more copy of it, in float32 at least, and no training.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import proxy

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from esper_core.growth.dry_runs import PLAIN, device_of
from esper_core.growth.serialization import decode_state, encode_state
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from esper_core.growth.garden import Garden
    from esper_core.growth.seeds import Seed

Place: TypeAlias = tuple[nn.Module, str]
"""Where a tensor is registered. A branch has other tensors in the same places."""

MISSING: Final = torch.empty(0, device="meta")
"""In the place of a weight that is gone: it has the form of none."""

STATISTICS: Final = ("running_", "moving_")
"""How the names of buffers begin that are averaged, by which normalisations evaluate. Of others the average may be no
value of their kind, as of the directions of a spectral norm, a mask with infinities, or indices: they stay."""

_Entry: TypeAlias = tuple[dict[str, Tensor], str, tuple[torch.Size, torch.dtype, torch.device], Tensor]
"""Where torch keeps a weight, by which name, the weight's form, and its average."""


class RunningAverage:
    """The average of some weights over batches, in which a batch counts ½ after ``half_life`` more.

    Over the first batches of a tensor it is their plain mean, so that it does not depend on the first weights.

    Args:
        half_life: In batches.
        list_places: Returns where the weights are.

    Attributes:
        places: What it returned; None: it is asked again in the next batch, because the network may have changed.
    """

    def __init__(self, half_life: float, list_places: Callable[[], list[Place]]) -> None:
        self._half_life = half_life
        self._list_places = list_places
        self.places: list[Place] | None = None
        self._averages: dict[Place, Tensor] = {}
        self._batches: dict[Place, int] = {}
        self._alike: dict[int, list[_Entry]] = {}
        """By batches, since to group the averages in each batch takes as long as to average a small network."""

    def update(self) -> None:
        """Take the present weights in, after a batch."""
        if self.places is None or (alike := self._present()) is None:
            self.places = None
            self.list_all()
            alike = self._present() or {}
        for batches, (averages, weights) in alike.items():
            take_in(averages, weights, self._half_life, batches + 1)
        self.count(1)

    def _present(self) -> dict[int, tuple[list[Tensor], list[Tensor]]] | None:
        """Return averages and weights by batches; None if a loop or a module put something else in a weight's place."""
        alike: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        for batches, entries in self._alike.items():
            weights = [registered.get(name, MISSING) for registered, name, _, _ in entries]
            if [(weight.shape, weight.dtype, weight.device) for weight in weights] != [form for *_, form, _ in entries]:
                return None
            averages = [average for *_, average in entries]
            pairs = zip(weights, averages, strict=True)
            wide = [
                weight if weight.dtype is average.dtype else weight.detach().to(average) for weight, average in pairs
            ]
            alike[batches] = averages, wide
        return alike

    def list_all(self) -> dict[int, tuple[Tensor, int]]:
        """Return each average with its number of batches, by the identity of what is registered in its place.

        New weights have an average of no batches. Those that were averaged elsewhere are changed in place, and the
        batches then counted by ``count``.
        """
        before, batches = self._averages, self._batches
        self._averages, self._batches, self._alike = {}, {}, {}
        self.places = self._list_places() if self.places is None else self.places
        listed = {}
        for place in self.places:
            tensor, average = getattr(*place), before.get(place)
            form = tensor.shape, _wide(tensor), tensor.device
            if average is None or (average.shape, average.dtype, average.device) != form:
                average, batches[place] = torch.zeros_like(tensor, dtype=_wide(tensor), requires_grad=False), 0
            self._averages[place], self._batches[place] = average, batches[place]
            listed[id(tensor)] = average, batches[place]
            (module, name), form = place, (tensor.shape, tensor.dtype, tensor.device)
            # What torch keeps of a module: to ask the module takes longer than to average a weight.
            registered = next(kept for kept in (vars(module)["_parameters"], vars(module)["_buffers"]) if name in kept)
            self._alike.setdefault(batches[place], []).append((registered, name, form, average))
        return listed

    def count(self, batches: int) -> None:
        """Count batches that were taken in elsewhere."""
        self._batches = {place: before + batches for place, before in self._batches.items()}
        self._alike = {before + batches: entries for before, entries in self._alike.items()}

    def tensors(self) -> dict[int, Tensor]:
        """Return the averages, by the identities of the tensors that are registered in their places."""
        return {id(tensor): average.to(tensor.dtype) for tensor, average in self._pairs()}

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return [(getattr(*place), average) for place, average in self._averages.items()]

    def forget(self) -> None:
        """Begin anew, because the weights were restored from a snapshot."""
        self._averages, self._batches, self.places = {}, {}, None

    def settle(self) -> None:
        """Give the network its average weights for good, and begin anew."""
        self._apply()
        self.forget()

    def adopt(self, other: RunningAverage, *, copy: bool = False) -> None:
        """Take over the averages of another network that this one now equals."""
        self._averages |= {place: tensor.clone() if copy else tensor for place, tensor in other._averages.items()}
        self._batches |= other._batches
        self.places = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the network have its average weights in the ``with`` block."""
        before = [(tensor, tensor.data) for tensor, _ in self._pairs()]
        try:
            try:
                self._apply()
                yield
            finally:
                _put_back(before)
        finally:  # an interrupt may have come in the middle of it
            _put_back(before)

    def _apply(self) -> None:
        """Give the network its average weights."""
        for tensor, average in self._pairs():
            # Not another tensor: optimizers, tied modules and hooks know the one that is there.
            tensor.data = average.to(tensor.dtype)

    def state_dict(self, paths: Mapping[int, str]) -> State:
        """Return the averages, each with its number of batches; ``paths`` are those of the modules, by identity."""
        return encode_state(
            {
                (paths[id(module)], name): (self._batches[module, name], average)
                for (module, name), average in self._averages.items()
                if id(module) in paths
            }
        )

    def load_state_dict(self, model: nn.Module, state: State) -> None:
        """Continue from what ``state_dict`` returned, in a network with the same seeds."""
        for (path, name), (batches, average) in decode_state(state, device_of(model)).items():
            place = (model.get_submodule(path), name)
            self._batches[place], self._averages[place] = batches, average
        self.places = None


LEAST_CORRELATION: Final = 0.2
MOST_CORRELATION: Final = 0.999
"""So that two looks without a batch between them still have something new, and no number is divided by 0."""


class Averages:
    """The running averages of a host and of each seed that incubates; with a half-life of 0 there are none.

    ``is_final``: whether the host ends with its average.
    """

    def __init__(self, garden: Garden, half_life: float, *, is_final: bool = False) -> None:
        # Weak, since what incubates in the garden holds its averages: no garden may wait for the garbage collector.
        self._garden = proxy(garden)
        self._half_life, self.is_final = half_life, is_final
        self._host = RunningAverage(half_life, partial(_places, self._garden, None)) if half_life else None
        self._apart: dict[int, RunningAverage] = {}
        self._seeds: dict[int, list[Seed]] = {}
        self._batches = 0

    def open_step(self) -> None:
        """Begin a decision step: seeds may have come and gone since the last."""
        if self._host is not None:
            self._follow()
            for average in (self._host, *self._apart.values()):
                average.places = None

    def take_batch(self) -> None:
        """Take in the host's weights after a batch."""
        self._batches += 1
        if self._host is not None:
            self._follow()
            self._host.update()

    def list_all(self, number: int | None = None) -> dict[int, tuple[Tensor, int]]:
        """Return the averages of the host, or of an incubating seed, as ``RunningAverage.list_all`` does."""
        average = self._of(number)
        return {} if average is None else average.list_all()

    def count(self, batches: int, number: int | None = None) -> None:
        """Count batches that were taken into the averages of the host, or of an incubating seed, elsewhere."""
        if number is None:
            self._batches += batches
        if (average := self._of(number)) is not None:
            average.count(batches)

    def _of(self, number: int | None) -> RunningAverage | None:
        if self._host is None:
            return None
        self._follow()
        return self._host if number is None else self._apart[number]

    def take_correlation(self) -> float:
        """Return how much what is judged now correlates with what was judged when this was called last.

        Of an average, a half is left after each half-life. Less than ``LEAST_CORRELATION`` was not seen of any gain,
        even by raw weights.
        """
        batches, self._batches = self._batches, 0
        left = 0.5 ** (batches / self._half_life) if self._half_life else 0.0
        return min(max(left, LEAST_CORRELATION), MOST_CORRELATION)

    def judged(self, number: int | None = None) -> AbstractContextManager[None]:
        """Let the network have its average weights in the ``with`` block, and an incubating seed, if given, its target.

        Where there are no averages it has its own weights.
        """
        if self._host is None:
            return nullcontext() if number is None else self._garden.incubating[number].trial()
        self._follow()
        return self._host.applied() if number is None else self._tried(number, self._host)

    @contextmanager
    def _tried(self, number: int, host: RunningAverage) -> Iterator[None]:
        incubation, average = self._garden.incubating[number], self._apart[number]
        if incubation.lasting:
            with incubation.trial(), average.applied():  # the branch's weights are in their places first
                yield
        else:
            with host.applied(), average.applied(), incubation.trial():
                yield

    def of_branch(self, number: int) -> dict[int, Tensor]:
        """Return the averages of a branch, by the identities of the tensors in whose places they are judged."""
        return self._apart[number].tensors() if number in self._apart else {}

    def forget(self) -> None:
        """Begin the host's average anew, because its weights were restored from a snapshot."""
        if self._host is not None:
            self._host.forget()

    def settle(self) -> None:
        """Give the network its average weights for good, once it is trained and nothing incubates."""
        if self._host is not None:
            self._host.settle()

    def _follow(self) -> None:
        """Begin an average for each newborn seed, and end those of seeds that no longer incubate."""
        assert self._host is not None
        incubating = self._garden.incubating
        for number in [number for number in self._apart if number not in incubating]:
            average = self._apart.pop(number)
            present = [seed for _, seed in self._garden.all_seeds()]
            if any(seed is other for seed in self._seeds.pop(number) for other in present):
                self._host.adopt(average)  # it was kept with its branch, or acts on the host now
        for number, incubation in incubating.items():
            if number not in self._apart:
                self._seeds[number] = [seed for _, seed in incubation.members]
                average = RunningAverage(self._half_life, partial(_places, self._garden, number))
                if incubation.lasting:
                    # Otherwise the branch would be judged by fewer batches, and so by more noise, than the host.
                    average.adopt(self._host, copy=True)
                self._apart[number], incubation.after_step = average, average.update

    def state_dict(self) -> State:
        """Return the averages."""
        if self._host is None:
            return State({"batches": self._batches})
        self._follow()
        paths = {id(module): path for path, module in self._garden.model.named_modules()}
        apart = {str(number): average.state_dict(paths) for number, average in self._apart.items()}
        return State.of({"host": self._host.state_dict(paths), "apart": State.of(apart)}, batches=self._batches)

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned, for a garden with the same seeds."""
        self._batches = state.plain["batches"]
        if self._host is None:
            return
        self._follow()
        model = self._garden.model
        self._host.load_state_dict(model, state.part("host"))
        for number, average in self._apart.items():
            average.forget()
            average.load_state_dict(model, state.part("apart").part(str(number)))


def _put_back(before: Iterable[tuple[Tensor, Tensor]]) -> None:
    for tensor, data in before:
        tensor.data = data


def _places(garden: Garden, number: int | None) -> list[Place]:
    """Return what is averaged of the host, or of an incubating seed."""
    incubation = None if number is None else garden.incubating[number]
    if incubation is not None and not incubation.lasting:
        ((_, seed),) = incubation.members
        return places_that_train(seed)
    others = [other for other in garden.incubating.values() if other is not incubation]
    return places_that_train(garden.model, (seed for other in others for _, seed in other.members))


def places_that_train(model: nn.Module, without: Iterable[nn.Module] = ()) -> list[Place]:
    """Return where trained parameters and ``STATISTICS`` are; a tensor of two modules is there once."""
    left_out = {id(part) for module in without for part in module.modules()}
    places: dict[int, Place] = {}
    for module in model.modules():
        if id(module) in left_out:
            continue
        trained = [(name, tensor) for name, tensor in module.named_parameters(recurse=False) if tensor.requires_grad]
        buffers = [
            (name, tensor)
            for name, tensor in module.named_buffers(recurse=False)
            if name.startswith(STATISTICS) and tensor.is_floating_point() and tensor.layout is torch.strided
        ]
        for name, tensor in (*trained, *buffers):
            if type(tensor) in PLAIN:
                places.setdefault(id(tensor), (module, name))
    return list(places.values())


def _wide(tensor: Tensor) -> torch.dtype:
    """Return the type of a tensor's average: in half precision a batch's small share would be rounded away."""
    return torch.promote_types(tensor.dtype, torch.float32)


def take_in(averages: Sequence[Tensor], tensors: Sequence[Tensor], half_life: float, batches: int) -> None:
    """Take tensors into averages, as the last of so many batches."""
    # The first of all is taken whole: its weight is 1.
    _averaging(min(0.5 ** (1 / half_life), 1 - 1 / batches))(averages, tensors, 1)


# To make the function takes as long as to average a small network with it.
_averaging = lru_cache(maxsize=8)(get_ema_multi_avg_fn)
