"""Slots: forward hooks behind modules of a host, in which seeds act."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from esper_core.growth.dry_runs import HOME as HOME, dtype_of, observe_places
from esper_core.growth.examples import Example
from esper_core.growth.seed_faults import SeedFault, describe_error
from esper_core.growth.seeds import Presence
from esper_core.leyline.errors import one_line, plural
from esper_core.leyline.events import HostLayer
from esper_core.leyline.lifecycle import INCUBATING, SlotState, Stage
from esper_core.leyline.specs import SlotPlace
from esper_core.plugins.isolation import is_interrupt
from esper_core.plugins.notebooks import html_of
from esper_core.plugins.process_state import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch.utils.hooks import RemovableHandle

    from esper_core.growth.examples import OutputPart
    from esper_core.growth.seeds import Seed
    from esper_core.leyline.specs import Site


JOURNAL: Final = "for_esper_grow.load"
"""Key of the growth journal in a state dict, below HOME."""


class Slot(nn.Module):
    """A place where seeds grow, one after the other: fossils first, then the living seed, or those of a nursery.

    The slot is itself the forward hook of the module that it is behind. So a deep copy of the model has a copy of the
    slot, ``.to()`` moves its seeds, and an empty slot adds no key to the state dict and no arithmetic.
    """

    def __init__(self, name: str, place: SlotPlace) -> None:
        super().__init__()
        self.name = name
        self.at = place.at
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
        self.seeds = nn.ModuleList()
        self._tried: int | None = None
        """Number of the seed in trial; a seed as attribute would be registered as a submodule."""
        self._disabled = False
        self._tapped: list[tuple[Tensor, Any]] | None = None
        self.entered: Callable[[Seed], AbstractContextManager[object]] = _unobserved
        """Called where the code of a seed begins to run; an engine notes there which seed that is."""

    def forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Return ``output`` with the seeds applied; None, which keeps it, if none acts."""
        original = hidden = output if self.part is None else self.part.of(output)
        inputs = args[0] if args else None
        for seed in self.stack:
            alpha = self._strength(seed)
            if alpha > 0.0:
                hidden = self._blend(seed, hidden, inputs, alpha)
        if self._tapped is not None:
            leaf = hidden.detach().requires_grad_()
            self._tapped.append((leaf, inputs))
            hidden = leaf.clone()  # hosts write in place, which a leaf does not allow
        if hidden is original:
            return None
        return hidden if self.part is None else self.part.replaced(output, hidden)

    def __repr__(self) -> str:
        seeds = ", ".join(f"{seed.blueprint} {seed.stage}" for seed in self.stack)
        return f"<{one_line(f'Slot {self.name} behind {self.at}: {seeds or self.state}')}>"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows; None, and the notebook shows plain text, if no installed package draws it."""
        layer = HostLayer(name=self.at, kind="", parameters=0, slots=(self.name,))
        return html_of("network", _as_data(f"Slot {self.name}", [layer], {self.name: self}))

    @property
    def place(self) -> SlotPlace:
        """Where it is, as ``graft`` takes it."""
        return SlotPlace(self.at, self.kind, self.limit, self.output)

    def _strength(self, seed: Seed) -> float:
        if self._disabled and seed.stage is not Stage.FOSSILISED:
            return 0.0
        tried = seed.number == self._tried
        if tried and seed.stage in INCUBATING:
            return seed.schedule.target
        return 0.0 if seed.presence is Presence.BRANCHED and not tried else seed.alpha.value

    def _blend(self, seed: Seed, hidden: Tensor, inputs: Any, alpha: float) -> Tensor:
        if torch.compiler.is_compiling():  # a compiler compiles anew for each plain number, but not for a tensor
            return self._run(seed, hidden, hidden.new_ones(()) * alpha, inputs)
        faults: list[str] = []
        with self.entered(seed), Guard(seed.title, faults=faults):
            outputs = self._run(seed, hidden, alpha, inputs)
        if faults:
            raise self._fault(seed, " and ".join(faults))
        return outputs

    def _run(self, seed: Seed, hidden: Tensor, strength: Any, inputs: Any) -> Tensor:
        try:
            outputs: Tensor = seed(hidden, strength, inputs)
        except BaseException as error:
            # Checkpointing ends a second pass that has seen enough by an exception of its own.
            if is_interrupt(error) or type(error).__module__ == checkpoint.__name__:
                raise
            raise self._fault(seed, describe_error(error, seed.block)) from error
        return outputs

    def _fault(self, seed: Seed, failure: str) -> SeedFault:
        slots = [] if seed.stage is Stage.FOSSILISED else [self.name]  # a fossil cannot be removed
        return SeedFault(slots, f'of blueprint "{seed.blueprint}" {failure}', number=seed.number)

    @property
    def stack(self) -> Iterator[Seed]:
        """The seeds in the order in which they act."""
        return cast("Iterator[Seed]", iter(self.seeds))

    @property
    def living(self) -> Seed | None:
        """The seed that is neither fossilised nor pruned, if there is one; of a nursery the eldest."""
        return next(iter(self.nursery), None)

    @property
    def nursery(self) -> tuple[Seed, ...]:
        """The seeds that are neither fossilised nor pruned: several only while they incubate."""
        return tuple(seed for seed in self.stack if seed.stage is not Stage.FOSSILISED)

    @property
    def strength(self) -> float:
        """How strongly the living seed acts now; 0 if there is none."""
        seed = self.living
        return 0.0 if seed is None else self._strength(seed)

    @property
    def fossils(self) -> tuple[Seed, ...]:
        """The seeds that were fossilised."""
        return tuple(seed for seed in self.stack if seed.stage is Stage.FOSSILISED)

    @contextmanager
    def trying(self, seed: Seed) -> Iterator[None]:
        """Let an incubating seed act at the target of its alpha in the ``with`` block."""
        try:
            self._tried = seed.number
            yield
        finally:
            self._tried = None

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Let only fossils act, and no living seed, in the ``with`` block."""
        before, self._disabled = self._disabled, True
        try:
            yield
        finally:
            self._disabled = before

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


def _unobserved(seed: Seed) -> AbstractContextManager[object]:  # a function of the module, as slots are pickled
    return nullcontext()


class Slots(nn.ModuleDict):
    """All slots of a model, in the order of ``graft``; a child of the model, called ``_esper``."""

    def forward(self, hidden: Any) -> Any:
        """Return ``hidden``: a Sequential calls each of its children, and so this one."""
        return hidden

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows; None, and the notebook shows plain text, if no installed package draws it."""
        layers = [HostLayer(name=slot.at, kind="", parameters=0, slots=(slot.name,)) for slot in self.each()]
        slots = {slot.name: slot for slot in self.each()}
        return html_of("network", _as_data(plural(len(slots), "slot"), layers, slots))

    def each(self) -> tuple[Slot, ...]:
        """Return the slots."""
        return cast("tuple[Slot, ...]", tuple(self.values()))

    def named(self, name: str) -> Slot:
        """Return the slot of this name; the key of a module has slashes for its dots."""
        return cast("Slot", self[key_of(name)])

    def matching(self, pattern: str) -> list[Slot]:
        """Return the slots of this name, or whose names fit a pattern such as ``blocks.*.mlp``."""
        return [slot for slot in self.each() if slot.name == pattern or matches(slot.name, pattern)]


_TAKEN = frozenset(dir(Slots()))
"""Attributes of the module, which no child can be named after."""


def key_of(name: str) -> str:
    """Return the key in ``Slots`` of a slot's name.

    >>> key_of("blocks.0"), key_of("values")
    ('blocks/0', 'values_')
    """
    key = name.replace(".", "/")
    return f"{key}_" if key in _TAKEN else key


def matches(module: str, pattern: str) -> bool:
    """Return whether a module's dotted name fits a pattern, part by part.

    >>> matches("blocks.3.mlp", "blocks.*.mlp"), matches("blocks.3.mlp.fc", "blocks.*")
    (True, False)
    """
    parts, pattern_parts = module.split("."), pattern.split(".")
    return len(parts) == len(pattern_parts) and all(
        fnmatchcase(part, want) for part, want in zip(parts, pattern_parts, strict=True)
    )


def observe(model: nn.Module, slots: Sequence[Slot], example: Any) -> None:
    """Run ``model`` on one batch in both modes and set the site and dtype that each slot sees.

    ``example`` is what ``graft`` takes, or an ``Example``. Nothing about the model is changed. GraftError if a module
    is not called exactly once in each mode, or returns no batch of numbers.
    """
    batch = example if isinstance(example, Example) else Example.of(example)
    observed = observe_places(model, {slot.name: slot.place for slot in slots}, batch)
    for slot, place in zip(slots, observed, strict=True):
        slot.site, slot.dtypes, slot.part = (
            place.site,
            (place.dtype, dtype_of(model)),
            place.part,
        )


def host_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of ``model`` without those of its seeds, for an OptimizerKeeper.

    The model may be grafted, wrap a grafted one, or have no slots.

    Examples:
        >>> from torch import nn
        >>> len(host_parameters(nn.Linear(4, 4)))
        2
    """
    homes = [module for module in model.modules() if isinstance(module, Slots)]
    grown = {id(parameter) for home in homes for parameter in home.parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in grown]


def host_layers(model: nn.Module) -> tuple[HostLayer, ...]:
    """Return the layers of a grafted host in the order of its modules, each with the slots behind it.

    A layer is a child of the model that has parameters or slots. One that has slots inside is replaced by its own
    children.
    """
    behind: dict[str, list[str]] = {}
    for module in model.modules():
        if isinstance(module, Slots):
            for slot in module.each():
                behind.setdefault(slot.at, []).append(slot.name)
    layers: list[HostLayer] = []

    def walk(module: nn.Module, path: str) -> None:
        for name, child in module.named_children():
            inner = f"{path}.{name}" if path else name
            if name == HOME:
                continue
            if any(at.startswith(f"{inner}.") for at in behind):
                walk(child, inner)
                continue
            slots, parameters = tuple(behind.pop(inner, ())), sum(parameter.numel() for parameter in child.parameters())
            if parameters or slots:
                parts = child.children() if type(child) is nn.Sequential and len(child) else [child]
                kind = ", ".join(type(part).__name__ for part in parts)
                layers.append(HostLayer(name=inner, kind=kind, parameters=parameters, slots=slots))
        if layers and (slots := tuple(behind.pop(path, ()))):
            layers[-1] = replace(layers[-1], slots=layers[-1].slots + slots)

    walk(model, "")
    return tuple(layers)


def network_html(model: nn.Module) -> str | None:
    """Return what a notebook shows of a grafted model: its layers, slots and seeds; None if nothing can draw it."""
    homes = [module for module in model.modules() if isinstance(module, Slots)]
    if not homes:
        return None
    host = sum(parameter.numel() for parameter in host_parameters(model))
    grown = sum(parameter.numel() for parameter in model.parameters()) - host
    title = f"{type(model).__name__}: {plural(host, 'parameter')}, and {grown:,} in seeds"
    return html_of("network", _as_data(title, host_layers(model), {s.name: s for home in homes for s in home.each()}))


def _as_data(title: str, layers: Iterable[HostLayer], slots: Mapping[str, Slot]) -> dict[str, Any]:
    """Return layers with their slots and seeds as data for a notebook."""
    return {
        "title": title,
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "parameters": layer.parameters,
                "slots": [
                    {
                        "name": name,
                        "state": slots[name].state.value,
                        "site": None if (site := slots[name].site) is None else f"{site.kind} of {site.channels}",
                        "seeds": [
                            {
                                "blueprint": seed.blueprint,
                                "stage": seed.stage.value,
                                "alpha": seed.alpha.value,
                                "parameters": seed.parameter_count,
                            }
                            for seed in slots[name].stack
                        ],
                    }
                    for name in layer.slots
                ],
            }
            for layer in layers
        ],
    }
