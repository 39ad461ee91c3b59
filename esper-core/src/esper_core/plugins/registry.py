"""Registry: take the components that plugins add, check them, and find them by name.

A ``ComponentRegistrar`` is what a registration hook receives. It is bound to one plugin, one kind and one call, and
checks each component as it is added, so that a message names the author's own line. The ``Registry`` is the read-only
view of all components of the active plugins.
"""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from esper_core.leyline.errors import PluginError, Problem, suggestion
from esper_core.leyline.specs import (
    BLUEPRINT_TRAITS,
    COMPONENT_KINDS,
    SITE_KINDS,
    BlueprintSpec,
    HostSpec,
    PolicySpec,
    RewardSpec,
    ScheduleSpec,
    SinkSpec,
    Site,
    SlotPlace,
    Spec,
    TaskSpec,
)
from esper_core.plugins import lookup_errors
from esper_core.plugins.discovery import NAME_RULE, is_name
from esper_core.plugins.formula import FormulaError, evaluate_formula
from esper_core.plugins.isolation import is_target
from esper_core.plugins.records import Component

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.records import PluginCandidate, PluginRecord

SpecT = TypeVar("SpecT", bound=Spec)

SPECS: Final[Mapping[ComponentKind, type[Spec]]] = {
    "blueprint": BlueprintSpec,
    "host": HostSpec,
    "policy": PolicySpec,
    "reward": RewardSpec,
    "schedule": ScheduleSpec,
    "sink": SinkSpec,
    "task": TaskSpec,
}
"""The specification that each kind of component is declared with."""

SAMPLE_SITES: Final[Mapping[str, Site]] = {
    "image": Site("image", 8, (6, 5)),
    "sequence": Site("sequence", 8, (40,)),
    "vector": Site("vector", 8),
    "tokens": Site("tokens", 8, (12,)),
}
"""A site of each kind, for which a blueprint's formula must evaluate."""

_VARIABLES: Final[Mapping[str, str]] = {
    "c": "c channels",
    "n": "n spatial dimensions",
    "h": "h height",
    "w": "w width",
    "l": "l length",
    "t": "t tokens",
}
"""What the names in a formula mean."""

_WILDCARDS: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a component is refused: the code, the message behind the plugin's title, and the hint."""

    code: str
    message: str
    hint: str


class ComponentRegistrar(Generic[SpecT]):
    """The ``registry`` argument of the registration hooks: takes the components of one plugin and one kind."""

    def __init__(self, candidate: PluginCandidate, kind: ComponentKind) -> None:
        self._candidate = candidate
        self._kind = kind
        self._components: dict[str, Component] = {}
        self._problems: list[Problem] = []
        self._open = True

    @property
    def components(self) -> tuple[Component, ...]:
        """The components that were added, in order."""
        return tuple(self._components.values())

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The refusals; they count even if the plugin catches the error."""
        return tuple(self._problems)

    def add(self, name: str, target: Callable[..., Any] | str, spec: SpecT) -> None:
        """Add a component.

        Args:
            name: lower case letters and digits, joined by single - or _; unique in the plugin for this kind.
            target: what builds the component, or "module:attribute" of that, which is imported when first used.
            spec: what the component declares.

        Raises:
            PluginError: the name, the target or the specification is invalid.
        """
        fault = self._name_fault(name) or _target_fault(name, target) or self._spec_fault(name, spec)
        if fault is not None:
            raise self._refusal(fault)
        entry = self._candidate.entry_point
        self._components[name] = Component(
            id=f"{self._candidate.id}/{name}",
            short=name,
            kind=self._kind,
            plugin=self._candidate.id,
            package=entry.package,
            version=entry.version,
            target=target,
            spec=_copied(spec),
        )

    def close(self) -> None:
        """Refuse every further component; called when the hook has returned."""
        self._open = False

    def _name_fault(self, name: object) -> _Fault | None:
        if not self._open:
            message = f"adds the {self._kind} {name!r} after its hook has returned"
            return _Fault("E216", message, "Add it in the hook, and do not keep the registry.")
        if not is_name(name):
            return _Fault("E216", f"adds a {self._kind} with an invalid name: {_short(name)}", NAME_RULE)
        if name in self._components:
            message = f'adds the {self._kind} "{name}" twice'
            return _Fault("E220", message, "Give one of them another name.")
        return None

    def _spec_fault(self, name: str, spec: object) -> _Fault | None:
        expected = SPECS[self._kind]
        if not isinstance(spec, expected):
            message = f'adds the {self._kind} "{name}" with an invalid specification: {_short(spec)}'
            return _Fault("E217", message, f"A {self._kind} is declared with {expected.__name__}(...).")
        for message, hint in _invalid_parts(spec):
            return _Fault("E217", f'adds the {self._kind} "{name}" with {message}', hint)
        return _formula_fault(name, spec) if isinstance(spec, BlueprintSpec) else None

    def _refusal(self, fault: _Fault) -> PluginError:
        file, line = _calling_line()
        message = f"{self._candidate.title} {fault.message}"
        problem = Problem(fault.code, message, file=file, line=line, hint=fault.hint)
        self._problems.append(problem)
        return PluginError(problem)


class Registry:
    """The components of all active plugins, read-only."""

    def __init__(
        self,
        components: Iterable[Component] = (),
        *,
        records: Sequence[PluginRecord] = (),
        withheld: Iterable[Component] = (),
        ask: Callable[[ComponentKind, str], str | None] = lambda kind, name: None,
    ) -> None:
        """Collect the components.

        Args:
            components: those of the active plugins.
            records: every plugin, for messages.
            withheld: components of plugins that are not active; they are not found, but the reason is told.
            ask: returns what plugins know of a name that is not there.
        """
        order = {kind: place for place, kind in enumerate(COMPONENT_KINDS)}
        self._components = tuple(sorted(components, key=lambda component: (order[component.kind], component.id)))
        self._records = tuple(records)
        self._withheld = tuple(withheld)
        self._ask = ask

    def components(self, kind: ComponentKind | None = None) -> tuple[Component, ...]:
        """Return all components, or those of a kind, in the order of kinds and ids."""
        return tuple(component for component in self._components if kind in (None, component.kind))

    def find(self, kind: ComponentKind, name: str, *, context: str = "") -> Component:
        """Return the component of a name, short or with its plugin: ``conv_light``, ``blueprints/conv_light``.

        Args:
            kind: the kind to look in.
            name: the name.
            context: where the name is used, for the message: ``slot "early"``.

        Raises:
            UnknownComponent: there is none, or more than one. It carries one problem; the caller fills in the place
                in the file with ``problem.at``.
            UnusableComponent: its plugin is broken or rejected.
        """
        claims = [component for component in self.components(kind) if name in (component.id, component.short)]
        if len(claims) == 1:
            return claims[0]
        if claims:
            raise lookup_errors.ambiguous(kind, name, context, claims)
        self._check_withheld(kind, name, context)
        error = lookup_errors.unknown_component(kind, name, context, self._components, self._records)
        raise lookup_errors.with_hint_line(error, self._ask(kind, name))

    def match(self, kind: ComponentKind, pattern: str, *, context: str = "") -> tuple[Component, ...]:
        """Return the components that a name or a glob matches: ``conv_*``, ``blueprints/*``; at least one.

        A pattern with a slash is compared with full ids, any other with short names. Arguments and errors as for
        ``find``.
        """
        if not _WILDCARDS & set(pattern):
            return (self.find(kind, pattern, context=context),)
        full = "/" in pattern
        found = [one for one in self.components(kind) if fnmatchcase(one.id if full else one.short, pattern)]
        if not found:
            self._check_withheld(kind, pattern, context)
            error = lookup_errors.no_match(kind, pattern, context, self._components, self._records)
            raise lookup_errors.with_hint_line(error, self._ask(kind, pattern))
        return tuple(found)

    def __repr__(self) -> str:
        kinds = Counter(one.kind for one in self._components)
        return f"<Registry: {', '.join(f'{kind} {number}' for kind, number in kinds.items()) or 'empty'}>"

    def _check_withheld(self, kind: ComponentKind, name: str, context: str) -> None:
        """Raise if the name belongs to a plugin that is installed but not active."""
        plugin, slash, _ = name.rpartition("/")
        owners = {plugin} if slash else {one.plugin for one in self._withheld if (one.kind, one.short) == (kind, name)}
        owners -= {record.id for record in self._records if record.status == "active"}
        for record in self._records:
            if record.id in owners:
                raise lookup_errors.unusable(kind, name, context, record)


def _target_fault(name: str, target: object) -> _Fault | None:
    if callable(target) or (isinstance(target, str) and is_target(target)):
        return None
    message = f'adds "{name}" with a target that cannot be called: {_short(target)}'
    return _Fault("E219", message, 'A target is a class, a function, or "module:attribute".')


def _invalid_parts(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in a specification, each with a hint."""
    if not isinstance(spec.summary, str):
        yield f"summary={_short(spec.summary)}", "A summary is one line of text."
    if isinstance(spec, BlueprintSpec):
        yield from _invalid_blueprint_parts(spec)
    elif not _is_settings(spec.settings):
        yield f"settings={_short(spec.settings)}", 'Settings are a pydantic model class, or "module:Class".'
    if isinstance(spec, HostSpec):
        yield from _invalid_host_parts(spec)
    if isinstance(spec, RewardSpec) and not (isinstance(spec.family, str) and spec.family):
        yield f"family={_short(spec.family)}", 'A family is a name: "metric", or one of your own.'


def _invalid_blueprint_parts(spec: BlueprintSpec) -> Iterator[tuple[str, str]]:
    accepts: Any = spec.accepts
    kinds = (accepts,) if isinstance(accepts, str) else accepts
    if not isinstance(kinds, tuple | list) or not kinds:
        yield f"accepts={_short(accepts)}", f"It accepts one or several of: {', '.join(SITE_KINDS)}."
    else:
        for kind in kinds:
            if kind not in SITE_KINDS:
                yield f"accepts={_short(kind)}, which is not a kind of site", suggestion(str(kind), SITE_KINDS)
    if not isinstance(spec.starts_as_identity, bool):
        yield f"starts_as_identity={_short(spec.starts_as_identity)}", "It is True or False."
    traits: Any = spec.traits
    if not isinstance(traits, tuple | list):
        yield f"traits={_short(traits)}", f"Traits are a tuple of: {', '.join(BLUEPRINT_TRAITS)}."
    else:
        for trait in traits:
            if trait not in BLUEPRINT_TRAITS:
                yield f"the trait {_short(trait)}, which does not exist", suggestion(str(trait), BLUEPRINT_TRAITS)
    if type(spec.version) is not int or spec.version < 1:
        yield f"version={_short(spec.version)}", "A version is a whole number from 1."


def _invalid_host_parts(spec: HostSpec) -> Iterator[tuple[str, str]]:
    slots: Any = spec.slots
    if not hasattr(slots, "items"):
        yield f"slots={_short(slots)}", 'Slots are a mapping: {"early": SlotPlace("stem")}.'
        return
    for name, place in slots.items():
        if not isinstance(name, str) or not isinstance(place, SlotPlace) or not isinstance(place.at, str):
            yield f"slot {_short(name)}: {_short(place)}", 'A slot is "name": SlotPlace("module").'
        elif place.kind is not None and place.kind not in SITE_KINDS:
            yield f"slot {_short(name)} of kind {_short(place.kind)}", suggestion(str(place.kind), SITE_KINDS)
        elif type(place.stack) is not int or place.stack < 1:
            yield f"slot {_short(name)} with stack={_short(place.stack)}", "A stack is a whole number from 1."


def _is_settings(settings: object) -> bool:
    if isinstance(settings, str):
        return is_target(settings)
    return settings is None or (isinstance(settings, type) and hasattr(settings, "model_validate"))


def _formula_fault(name: str, spec: BlueprintSpec) -> _Fault | None:
    """Evaluate a blueprint's formula for a site of each kind that it accepts."""
    for kind in spec.kinds:
        site = SAMPLE_SITES[kind]
        try:
            value = evaluate_formula(spec.params, site.formula_variables())
        except FormulaError as error:
            message = f'adds the blueprint "{name}" with an invalid formula for {kind} sites: {error}'
            known = ", ".join(_VARIABLES[variable] for variable in site.formula_variables())
            hint = f"Names for {kind} sites: {known}. Operators: + - * // ** ( ) min max."
            return _Fault("E218", message, hint)
        if value < 0:
            message = f'adds the blueprint "{name}" with {value} parameters for {site}: "{spec.params}"'
            return _Fault("E218", message, "A number of parameters is 0 or more.")
    return None


def _copied(spec: SpecT) -> SpecT:
    """Return the specification without a mapping or list that the plugin could still change."""
    if isinstance(spec, HostSpec):
        return replace(spec, slots=dict(spec.slots))
    if isinstance(spec, BlueprintSpec):
        return replace(spec, accepts=spec.kinds, traits=tuple(spec.traits))
    return spec


def _calling_line() -> tuple[str | None, int | None]:
    """Return the line outside of this module that is calling it."""
    frame = inspect.currentframe()
    while frame is not None and Path(frame.f_code.co_filename) == Path(__file__):
        frame = frame.f_back
    return (None, None) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _short(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= 80 else text[:80] + "…"
