"""Slots: forward hooks behind modules of a host, in which seeds act."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from esper_core.growth import dry_runs
from esper_core.growth.dry_runs import HOME as HOME, dtype_of, observe_places
from esper_core.growth.examples import Example
from esper_core.growth.seeds import Presence, SeedFault, describe_error
from esper_core.leyline.constants import FULL
from esper_core.leyline.errors import GraftError, Problem, one_line
from esper_core.leyline.events import HostLayer
from esper_core.leyline.lifecycle import INCUBATING, SlotState, Stage
from esper_core.leyline.specs import SlotPlace
from esper_core.plugins.isolation import is_interrupt
from esper_core.plugins.process_state import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch.utils.hooks import RemovableHandle

    from esper_core.growth.examples import OutputPart
    from esper_core.growth.seeds import Seed
    from esper_core.leyline.specs import Site

    class Seeds(nn.ModuleList):
        """A list of seeds; torch's own has no type of its items."""

        def __iter__(self) -> Iterator[Seed]:
            pass


JOURNAL: Final = "for_esper_grow.load"
"""Key of the growth journal in a state dict, below the slot: what to call is all that an ungrown host reports."""


class Slot(nn.Module):
    """A place where seeds grow, one after the other: fossils first, then the living seed, or those of a nursery.

    The slot is the forward hook of the module that it is behind, and a child of it. So whatever is done with that
    module, or one around it, is done with the seeds: copies, moves, state dicts, freezing. An empty slot adds no key to
    the state dict and no arithmetic.
    """

    def __init__(self, name: str, place: SlotPlace, order: int) -> None:
        super().__init__()
        self.name = name
        self.order = order
        """Its place among the slots of one ``graft``."""
        self.kind = place.kind
        self.limit = place.stack
        self.output = place.output
        self.part: OutputPart | None = None
        """The part of the module's output on which seeds act, as it was observed; None: all of it."""
        self.site: Site | None = None
        self.dtypes: tuple[torch.dtype, torch.dtype] | None = None
        """Dtype of the module's output when it was observed, and the model's own dtype then."""
        self.hook: RemovableHandle
        self.state = SlotState.FREE
        self.embargo = 0
        self.seeds = cast("Seeds", nn.ModuleList())
        """In the order in which they act."""
        self.tried: tuple[int, ...] = ()
        """Numbers of the incubating seeds that act at the target of their alpha for now; seeds would be submodules."""
        self._tapped: list[tuple[Tensor, Any]] | None = None
        self.entered: Callable[[Seed], AbstractContextManager[object]] = nullcontext
        """Called where the code of a seed begins to run; an engine notes there which seed that is."""

    @property
    def for_esper_grow(self) -> SimpleNamespace:
        """Where ``load`` stands in the key of the journal: torch.distributed.checkpoint looks attributes up by keys."""
        return SimpleNamespace(load=None)

    def forward(self, module: Any, args: tuple[Any, ...] | None = None, output: Any = None) -> Any:
        """Return ``output`` with the seeds applied; None, which keeps it, if none acts."""
        if args is None:  # a module that calls each of its children calls its slot, too
            return module
        original = hidden = output if self.part is None else self.part.of(output)
        inputs, whole = (args[0] if args else None), hidden
        for seed in self.seeds:
            alpha = self.strength_of(seed)
            if alpha > 0.0:
                hidden = self._blend(seed, hidden, alpha, inputs, module, whole)
        if self._tapped is not None:
            leaf = hidden.detach().requires_grad_()
            self._tapped.append((leaf, inputs))
            hidden = leaf.clone()  # hosts write in place, which a leaf does not allow
        if hidden is original:
            return None
        return hidden if self.part is None else self.part.replaced(output, hidden)

    def __repr__(self) -> str:
        seeds = ", ".join(f"{seed.blueprint} {seed.stage}" for seed in self.seeds)
        return f"<{one_line(f'Slot {self.name}: {seeds or self.state}')}>"

    def strength_of(self, seed: Seed) -> float:
        """Return how strongly a seed of this slot acts now."""
        if not seed.acts:
            return 0.0
        tried = self.tried != () and seed.number in self.tried  # in this order: compilers guard what is read
        if tried and seed.stage in INCUBATING:
            return FULL
        return 0.0 if seed.presence is Presence.BRANCHED and not tried else seed.alpha.value

    def _blend(self, seed: Seed, hidden: Tensor, alpha: float, *beside: Any) -> Tensor:
        if torch.compiler.is_compiling():  # a compiler compiles anew for each plain number, but not for a tensor
            return self._run(seed, hidden, hidden.new_ones(()) * alpha, *beside)
        faults: list[str] = []
        with self.entered(seed), Guard(seed.title, faults=faults):
            outputs = self._run(seed, hidden, alpha, *beside)
        if faults:
            raise self._fault(seed, " and ".join(faults))
        return outputs

    def _run(self, seed: Seed, hidden: Tensor, strength: Any, *beside: Any) -> Tensor:
        try:
            outputs: Tensor = seed(hidden, strength, *beside)
        except BaseException as error:
            # Checkpointing ends a second pass that has seen enough by an exception of its own.
            if is_interrupt(error) or type(error).__module__ == checkpoint.__name__:
                raise
            raise self._fault(seed, describe_error(error, seed.block)) from error
        return outputs

    def _fault(self, seed: Seed, failure: str) -> SeedFault:
        slots = [] if seed.stage is Stage.FOSSILISED else [self.name]  # a fossil cannot be removed
        return SeedFault(slots, failure, number=seed.number, blueprint=seed.blueprint)

    @property
    def living(self) -> Seed | None:
        """The seed that is neither fossilised nor pruned, if there is one; of a nursery the eldest."""
        return next(iter(self.nursery), None)

    @property
    def nursery(self) -> tuple[Seed, ...]:
        """The seeds that are neither fossilised nor pruned: several only while they incubate."""
        return tuple(seed for seed in self.seeds if seed.stage is not Stage.FOSSILISED)

    @property
    def strength(self) -> float:
        """How strongly the living seed acts now; 0 if there is none."""
        return next(map(self.strength_of, self.nursery), 0.0)

    @property
    def fossils(self) -> tuple[Seed, ...]:
        """The seeds that were fossilised."""
        return tuple(seed for seed in self.seeds if seed.stage is Stage.FOSSILISED)

    @contextmanager
    def disabled(self, seed: Seed) -> Iterator[None]:
        """Let a seed not act in the ``with`` block."""
        before, seed.acts = seed.acts, False
        try:
            yield
        finally:
            seed.acts = before

    @contextmanager
    def tapped(self) -> Iterator[list[tuple[Tensor, Any]]]:
        """Keep, in the ``with`` block, the outputs of the slot, as leaves for autograd, and its module's inputs."""
        try:
            self._tapped = []
            yield self._tapped
        finally:
            self._tapped = None

    def dtype_in(self, model: nn.Module) -> torch.dtype:
        """Return the dtype in which a seed here computes: that of the module's output, unless the model was cast."""
        model_dtype = dtype_of(model)
        return self.dtypes[0] if self.dtypes is not None and self.dtypes[1] is model_dtype else model_dtype


class Slots:
    """The slots in a model or a part of one, in the order of ``graft``, by name: a view, which changes nothing.

    Modules that were grafted apart may meet in one model. Of several slots with one name all but the first are then
    called after their modules, too.
    """

    def __init__(self, model: nn.Module) -> None:
        located = [
            (path.removesuffix(HOME).removesuffix("."), slot)
            for path, slot in model.named_modules()
            if isinstance(slot, Slot)
        ]
        located.sort(key=lambda place: place[1].order)  # stable: parts that were grafted apart stay as in the model
        names = distinct_names([(slot.name, at) for at, slot in located])
        self.by_module: dict[str, Slot] = dict(located)
        """The slots by the names of the modules that they are behind, in the same order."""
        self._by_name = dict(zip(names, self.by_module.values(), strict=True))

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._by_name.values())

    def claim(self) -> dict[str, Slot]:
        """Give slots and seeds the names and numbers that tell them apart in this model; return the slots by name."""
        seeds = [seed for slot in self for seed in slot.seeds]
        for seed, number in zip(seeds, distinct_numbers([seed.number for seed in seeds]), strict=True):
            seed.number = number
        for name, slot in self._by_name.items():
            slot.name = name
        return dict(self._by_name)

    def places(self) -> dict[str, str]:
        """Return the name of the module behind which each slot is, by the names of the slots."""
        return dict(zip(self._by_name, self.by_module, strict=True))

    def named(self, name: str) -> Slot:
        """Return the slot of this name."""
        return self._by_name[name]

    def matching(self, pattern: str) -> list[Slot]:
        """Return the slots of this name, or whose names fit a pattern such as ``blocks.*.mlp``."""
        return [slot for name, slot in self._by_name.items() if name == pattern or matches(name, pattern)]


def distinct_names(places: Sequence[tuple[str, str]]) -> list[str]:
    """Return a name for each slot, from the name that it has and the module that it is behind.

    >>> distinct_names([("stem", "a.stem"), ("stem", "b.stem")])
    ['stem', 'stem:b.stem']
    """
    names = [name for name, _ in places]
    return [name if names.index(name) == place else f"{name}:{at}" for place, (name, at) in enumerate(places)]


def distinct_numbers(numbers: Sequence[int]) -> Sequence[int]:
    """Return the numbers of seeds, or other ones if some occur twice.

    >>> list(distinct_numbers([0, 2])), list(distinct_numbers([0, 2, 0]))
    ([0, 2], [0, 1, 2])
    """
    return numbers if len({*numbers}) == len(numbers) else range(len(numbers))


def is_grafted(model: nn.Module) -> bool:
    """Return whether a module has slots, or is in front of one."""
    return isinstance(model, nn.Module) and any(isinstance(module, Slot) for module in model.modules())


def slots_of(model: nn.Module) -> Slots:
    """Return the slots of a grafted model, or of a part of one."""
    slots = Slots(model) if isinstance(model, nn.Module) else None
    if slots is None or not slots.by_module:
        hint = "Call esper_core.graft first."
        raise GraftError(Problem("E311", f"{type(model).__name__} has no slots", hint=hint))
    return slots


def matches(module: str, pattern: str) -> bool:
    """Return whether a module's dotted name fits a pattern, part by part.

    >>> matches("blocks.3.mlp", "blocks.*.mlp"), matches("blocks.3.mlp.fc", "blocks.*")
    (True, False)
    """
    parts, pattern_parts = module.split("."), pattern.split(".")
    return len(parts) == len(pattern_parts) and all(
        fnmatchcase(part, want) for part, want in zip(parts, pattern_parts, strict=True)
    )


def observe(model: nn.Module, example: Any) -> None:
    """Run ``model`` on one batch in both modes and set the site and dtype that each slot sees.

    ``example`` is what ``graft`` takes, or an ``Example``. Nothing about the model is changed. GraftError if a module
    is not called exactly once in each mode, or returns no batch of numbers.
    """
    batch = example if isinstance(example, Example) else Example.of(example)
    view = slots_of(model)
    view.claim()
    places = {slot.name: SlotPlace(at, slot.kind, slot.limit, slot.output) for at, slot in view.by_module.items()}
    for slot, observed in zip(view, observe_places(model, places, batch), strict=True):
        slot.site, slot.dtypes, slot.part = observed.site, (observed.dtype, dtype_of(model)), observed.part


def host_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of ``model`` without those of its seeds, for an OptimizerKeeper.

    The model may be grafted, wrap a grafted one, or have no slots.

    Examples:
        >>> from torch import nn
        >>> len(host_parameters(nn.Linear(4, 4)))
        2
    """
    return list(dry_runs.host_parameters(model).values())


def host_layers(model: nn.Module) -> tuple[HostLayer, ...]:
    """Return the layers of a grafted host in the order of its modules, each with the slots behind it.

    A layer is a child of the model that has parameters or slots. One that has slots inside is replaced by its own
    children.
    """
    behind = {at: name for name, at in Slots(model).places().items()}
    layers: list[HostLayer] = []

    def walk(module: nn.Module, path: str) -> None:
        for name, child in module.named_children():
            inner = f"{path}.{name}" if path else name
            if name == HOME:
                continue
            if any(at.startswith(f"{inner}.") for at in behind):
                walk(child, inner)
                continue
            slots = (behind.pop(inner),) if inner in behind else ()
            parameters = sum(parameter.numel() for parameter in host_parameters(child))
            if parameters or slots:
                grouped = isinstance(child, nn.Sequential) and type(child).__name__ == "Sequential"
                parts = [part for name, part in child.named_children() if grouped and name != HOME]
                kind = ", ".join(type(part).__name__ for part in parts or [child])
                layers.append(HostLayer(name=inner, kind=kind, parameters=parameters, slots=slots))
        if layers and path in behind:
            layers[-1] = replace(layers[-1], slots=(*layers[-1].slots, behind.pop(path)))

    walk(model, "")
    return tuple(layers)
