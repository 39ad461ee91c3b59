"""What does a plugin add, and is it fit to be used? Checked as it is added, so that the author's own line can be named.

A registrar is bound to one plugin, one kind and one call: every component has a known package behind it, and nothing
can be added later.

Which component does a name mean? A read-only view of what the active plugins bring.
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
from esper_core.leyline.text import plural
from esper_core.plugins import lookup_errors as unknown
from esper_core.plugins.discovery import is_name, name_rule
from esper_core.plugins.formula import FormulaError, evaluate_formula
from esper_core.plugins.isolation import is_target
from esper_core.plugins.records import Component

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.records import Candidate, PluginRecord


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

SAMPLES: Final[Mapping[str, Site]] = {
    "image": Site("image", 8, (6, 5)),
    "sequence": Site("sequence", 8, (40,)),
    "vector": Site("vector", 8),
    "tokens": Site("tokens", 8, (12,)),
}
"""A site of each kind, on which formulas are tried."""


@dataclass(frozen=True, slots=True)
class _Fault:
    code: str
    what: str
    hint: str


class Registrar(Generic[SpecT]):
    """Takes what one plugin adds. ``registry`` in the hooks is one of these."""

    def __init__(self, candidate: Candidate, kind: ComponentKind) -> None:
        self._candidate = candidate
        self._kind = kind
        self._components: dict[str, Component] = {}
        self._problems: list[Problem] = []
        self._open = True

    @property
    def components(self) -> tuple[Component, ...]:
        """What was added, in order."""
        return tuple(self._components.values())

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What was refused. A plugin that catches the error does not make it undone."""
        return tuple(self._problems)

    def add(self, name: str, target: Callable[..., Any] | str, spec: SpecT) -> None:
        """Adds a component. PluginError at once where something about it is wrong.

        name: lower case letters and digits, joined by single - or _; unique in the plugin for this kind.
        target: what builds the component, or "module:attribute" where that stands: imported when first used.
        """
        fault = self._name_fault(name) or _target_fault(name, target) or self._spec_fault(name, spec)
        if fault is not None:
            raise self._refused(fault)
        announcement = self._candidate.announcement
        self._components[name] = Component(
            id=f"{self._candidate.id}/{name}",
            short=name,
            kind=self._kind,
            plugin=self._candidate.id,
            package=announcement.package,
            version=announcement.version,
            target=target,
            spec=_owned(spec),
        )

    def close(self) -> None:
        """Nothing can be added any more: the hook has returned."""
        self._open = False

    def _name_fault(self, name: object) -> _Fault | None:
        if not self._open:
            what = f"adds the {self._kind} {name!r} after its hook has returned"
            return _Fault("E216", what, "Add it in the hook, and do not keep the registry.")
        if not is_name(name):
            return _Fault("E216", f"adds a {self._kind} with a name that cannot be: {_short(name)}", name_rule())
        if name in self._components:
            what = f'adds the {self._kind} "{name}" twice'
            return _Fault("E220", what, "Give one of them another name.")
        return None

    def _spec_fault(self, name: str, spec: object) -> _Fault | None:
        wanted = SPECS[self._kind]
        if not isinstance(spec, wanted):
            what = f'adds the {self._kind} "{name}" with {_short(spec)} for its specification'
            return _Fault("E217", what, f"A {self._kind} is declared with {wanted.__name__}(...).")
        for unfit in _unfit_parts(spec):
            return _Fault("E217", f'adds the {self._kind} "{name}" with {unfit[0]}', unfit[1])
        return _formula_fault(name, spec) if isinstance(spec, BlueprintSpec) else None

    def _refused(self, fault: _Fault) -> PluginError:
        file, line = _caller()
        message = f"{self._candidate.title} {fault.what}"
        problem = Problem(fault.code, message, file=file, line=line, hint=fault.hint)
        self._problems.append(problem)
        return PluginError(problem)


def _target_fault(name: str, target: object) -> _Fault | None:
    if callable(target) or (isinstance(target, str) and is_target(target)):
        return None
    what = f'adds "{name}" with a target that cannot be called: {_short(target)}'
    return _Fault("E219", what, 'A target is a class, a function, or "module:attribute".')


def _unfit_parts(spec: Spec) -> Iterator[tuple[str, str]]:
    """What is wrong in a specification, each with the way out."""
    if not isinstance(spec.summary, str):
        yield f"summary={_short(spec.summary)}", "A summary is one line of text."
    if isinstance(spec, BlueprintSpec):
        yield from _unfit_blueprint_parts(spec)
    elif not _is_settings(spec.settings):
        yield f"settings={_short(spec.settings)}", 'Settings are a pydantic model class, or "module:Class".'
    if isinstance(spec, HostSpec):
        yield from _unfit_host_parts(spec)
    if isinstance(spec, RewardSpec) and not (isinstance(spec.family, str) and spec.family):
        yield f"family={_short(spec.family)}", 'A family is a name: "metric", or one of your own.'


def _unfit_blueprint_parts(spec: BlueprintSpec) -> Iterator[tuple[str, str]]:
    accepts: Any = spec.accepts
    kinds = (accepts,) if isinstance(accepts, str) else accepts
    if not isinstance(kinds, tuple | list) or not kinds:
        yield f"accepts={_short(accepts)}", f"It accepts one or several of: {', '.join(SITE_KINDS)}."
    else:
        for kind in kinds:
            if kind not in SITE_KINDS:
                yield f"accepts={_short(kind)}, which is no kind of site", suggestion(str(kind), SITE_KINDS)
    if not isinstance(spec.starts_as_identity, bool):
        yield f"starts_as_identity={_short(spec.starts_as_identity)}", "It is True or False."
    traits: Any = spec.traits
    if not isinstance(traits, tuple | list):
        yield f"traits={_short(traits)}", f"Traits are a tuple of: {', '.join(BLUEPRINT_TRAITS)}."
    else:
        for trait in traits:
            if trait not in BLUEPRINT_TRAITS:
                yield f"the trait {_short(trait)}, which is none", suggestion(str(trait), BLUEPRINT_TRAITS)
    if type(spec.version) is not int or spec.version < 1:
        yield f"version={_short(spec.version)}", "A version is a whole number from 1."


def _unfit_host_parts(spec: HostSpec) -> Iterator[tuple[str, str]]:
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
    for kind in spec.kinds:
        site = SAMPLES[kind]
        try:
            value = evaluate_formula(spec.params, site.formula_variables())
        except FormulaError as error:
            what = f'adds the blueprint "{name}" with a formula that gives nothing for {kind} sites: {error}'
            return _Fault("E218", what, _formula_hint(kind))
        if value < 0:
            what = (
                f'adds the blueprint "{name}" with a formula that gives {value} parameters for {site}: "{spec.params}"'
            )
            return _Fault("E218", what, "A number of parameters is 0 or more.")
    return None


def _formula_hint(kind: str) -> str:
    meaning = {
        "c": "c channels",
        "n": "n spatial dimensions",
        "h": "h height",
        "w": "w width",
        "l": "l length",
        "t": "t tokens",
    }
    known = ", ".join(meaning[name] for name in SAMPLES[kind].formula_variables())
    return f"Known for {kind} sites: {known}. Possible: whole numbers, + - * // ** ( ) min max."


def _owned(spec: SpecT) -> SpecT:
    """The specification, with no mapping in it that the plugin still holds."""
    if isinstance(spec, HostSpec):
        return replace(spec, slots=dict(spec.slots))
    if isinstance(spec, BlueprintSpec):
        return replace(spec, accepts=spec.kinds, traits=tuple(spec.traits))
    return spec


def _caller() -> tuple[str | None, int | None]:
    """The line outside of this module that is calling it."""
    frame = inspect.currentframe()
    while frame is not None and Path(frame.f_code.co_filename) == Path(__file__):
        frame = frame.f_back
    return (None, None) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _short(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= 80 else text[:80] + "…"


_WILD = frozenset("*?[")


class Registry:
    """The components of all active plugins. Nothing can be added, and nothing replaced."""

    def __init__(
        self,
        components: Iterable[Component] = (),
        *,
        records: Sequence[PluginRecord] = (),
        withheld: Iterable[Component] = (),
        missing: Callable[[ComponentKind, str], str | None] = lambda kind, name: None,
    ) -> None:
        """``withheld`` are components of plugins that fell: they are not there, but it is known why.

        ``missing`` is asked for a line about a name that is not there: a plugin may know of it.
        """
        order = {kind: place for place, kind in enumerate(COMPONENT_KINDS)}
        self._components = tuple(sorted(components, key=lambda component: (order[component.kind], component.id)))
        self._records = tuple(records)
        self._withheld = tuple(withheld)
        self._missing = missing

    def components(self, kind: ComponentKind | None = None) -> tuple[Component, ...]:
        """All components, or those of a kind, in the order of kinds and ids."""
        return tuple(component for component in self._components if kind in (None, component.kind))

    def find(self, kind: ComponentKind, name: str, *, context: str = "") -> Component:
        """The component of this name, short or with its plugin: ``conv_light``, ``blueprints/conv_light``.

        context: where the name stands, as the message is to say it: ``slot "early"``.
        Raises UnknownComponent (exit code 2), or UnusableComponent (3) where its plugin is broken or rejected. Each
        carries one problem; its place in the file is for the caller to fill in, with ``problem.at``.
        """
        claims = [component for component in self.components(kind) if name in (component.id, component.short)]
        if len(claims) == 1:
            return claims[0]
        if claims:
            raise unknown.ambiguous(kind, name, context, claims)
        self._check_withheld(kind, name, context)
        error = unknown.unknown(kind, name, context, self._components, self._records)
        raise unknown.with_line(error, self._missing(kind, name))

    def match(self, kind: ComponentKind, pattern: str, *, context: str = "") -> tuple[Component, ...]:
        """The components that a name or a glob stands for: ``conv_*``, ``blueprints/*``. Never empty; raises as find.

        A pattern with a slash is held against full ids, any other against short names.
        """
        if not _WILD & set(pattern):
            return (self.find(kind, pattern, context=context),)
        whole = "/" in pattern
        found = [one for one in self.components(kind) if fnmatchcase(one.id if whole else one.short, pattern)]
        if not found:
            self._check_withheld(kind, pattern, context)
            error = unknown.nothing_matches(kind, pattern, context, self._components, self._records)
            raise unknown.with_line(error, self._missing(kind, pattern))
        return tuple(found)

    def __repr__(self) -> str:
        return f"<Registry of {self._counted()}>"

    def _counted(self) -> str:
        kinds = Counter(one.kind for one in self._components)
        each = ", ".join(f"{kind} {number:,}" for kind, number in kinds.items())
        return plural(len(self._components), "component") + (f": {each}" if each else "")

    def _check_withheld(self, kind: ComponentKind, name: str, context: str) -> None:
        """Raises where the name belongs to a plugin that is installed but not active."""
        plugin, slash, _ = name.rpartition("/")
        owners = {plugin} if slash else {one.plugin for one in self._withheld if (one.kind, one.short) == (kind, name)}
        owners -= {record.id for record in self._records if record.status == "active"}
        for record in self._records:
            if record.id in owners:
                raise unknown.unusable(kind, name, context, record)
