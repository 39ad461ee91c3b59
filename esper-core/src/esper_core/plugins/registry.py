"""Registry: take the components that plugins add, check them, and find them by name.

A ``ComponentRegistrar`` is what a registration hook receives. It is bound to one plugin, one kind and one call, and
checks each component as it is added, so that a message names the author's own line. The ``Registry`` is the read-only
view of all components of the active plugins.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from esper_core.leyline.errors import ConfigError, PluginError, Problem, suggestion
from esper_core.leyline.specs import (
    COMPONENT_KINDS,
    SITE_KINDS,
    BlueprintSpec,
    HostSpec,
    SlotPlace,
    Spec,
)
from esper_core.plugins import lookup_errors
from esper_core.plugins.discovery import NAME_RULE, is_name
from esper_core.plugins.isolation import is_target
from esper_core.plugins.plugin_records import KINDS, Component

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.plugin_records import PluginCandidate, PluginRecord

SpecT = TypeVar("SpecT", bound=Spec)

_WILDCARDS: Final = frozenset("*?[")


class ComponentRegistrar(Generic[SpecT]):
    """The ``registry`` argument of the registration hooks: takes the components of one plugin and one kind."""

    def __init__(self, candidate: PluginCandidate, kind: ComponentKind) -> None:
        self._candidate = candidate
        self._kind = kind
        self.components: dict[str, Component] = {}

    def add(self, name: str, target: Callable[..., Any] | str, spec: SpecT) -> None:
        """Add a component.

        Args:
            name: lower case letters and digits, joined by single - or _; unique in the plugin for this kind.
            target: what builds the component, or "module:attribute" of that, which is imported when first used.
            spec: what the component declares.

        Raises:
            PluginError: the name, the target or the specification is invalid.
        """
        if not is_name(name):
            self._refuse("E216", f"with an invalid name: {name!r}", NAME_RULE)
        if name in self.components:
            self._refuse("E220", f'"{name}" twice', "Give one of them another name.")
        if not (callable(target) or (isinstance(target, str) and is_target(target))):
            hint = 'A target is a class, a function, or "module:attribute".'
            self._refuse("E219", f'"{name}" with a target that cannot be called: {target!r}', hint)
        self._check_spec(name, spec)
        entry = self._candidate.entry_point
        self.components[name] = Component(
            id=f"{self._candidate.id}/{name}",
            short=name,
            kind=self._kind,
            plugin=self._candidate.id,
            package=entry.package,
            version=entry.version,
            target=target,
            spec=spec,
        )

    def _check_spec(self, name: str, spec: Spec) -> None:
        expected = KINDS[self._kind].spec
        if not isinstance(spec, expected):
            hint = f"A {self._kind} is declared with {expected.__name__}(...)."
            self._refuse("E217", f'"{name}" with an invalid specification: {spec!r}', hint)
        for part, hint in _invalid_parts(spec):
            self._refuse("E217", f'"{name}" with {part}', hint)

    def _refuse(self, code: str, fault: str, hint: str) -> NoReturn:
        raise PluginError(Problem(code, f"{self._candidate.title} adds the {self._kind} {fault}", hint=hint))


class Registry:
    """The components of all active plugins, read-only."""

    def __init__(
        self,
        components: Iterable[Component],
        *,
        records: Sequence[PluginRecord],
        withheld: Iterable[Component],
    ) -> None:
        """Collect the components of the active plugins.

        Args:
            components: those of the active plugins.
            records: all plugins, for messages.
            withheld: components of plugins that are not active, for messages.
        """
        order = {kind: place for place, kind in enumerate(COMPONENT_KINDS)}
        self._components = tuple(sorted(components, key=lambda component: (order[component.kind], component.id)))
        self._records = tuple(records)
        self._withheld = tuple(withheld)

    def __repr__(self) -> str:
        counts = Counter(component.kind for component in self._components)
        shown = ", ".join(f"{kind} {count}" for kind, count in counts.items())
        return f"<Registry: {shown or 'no components'}>"

    def components(self, kind: ComponentKind | None = None) -> tuple[Component, ...]:
        """Return all components, or those of a kind, in the order of kinds and ids."""
        return tuple(component for component in self._components if kind in (None, component.kind))

    def find(self, kind: ComponentKind, name: str, *, context: str = "") -> Component:
        """Return the component of a name, short or with its plugin: ``conv_light``, ``blueprints/conv_light``.

        Settings of a blueprint stand behind its name: ``lora(rank=8)``. ``context`` says for the message where the name
        is used: ``slot "early"``.

        Raises:
            ConfigError: there is none, or more than one, or it does not take such settings (E120).
            PluginError: its plugin is broken or rejected.
        """
        name, _, settings = name.partition("(")
        claims = [component for component in self.components(kind) if name in (component.id, component.short)]
        if len(claims) == 1:
            return claims[0].configured(settings)
        if claims:
            raise lookup_errors.ambiguous(kind, name, context, claims)
        raise self._missing(kind, name, context)

    def match(self, kind: ComponentKind, pattern: str, *, context: str = "") -> tuple[Component, ...]:
        """Return the components that a name or a glob matches: ``conv_*``, ``blueprints/*``; at least one.

        A pattern with a slash is compared with full ids, any other with short names. Globs leave out blueprints that
        read their layer: these take few modules, and no site says which. Arguments and errors as for ``find``.
        """
        if not _WILDCARDS & set(pattern):
            return (self.find(kind, pattern, context=context),)
        full = "/" in pattern
        components = [
            component.configured()
            for component in self.components(kind)
            if fnmatchcase(component.id if full else component.short, pattern)
            and not getattr(component.spec, "reads_layer", False)
        ]
        if not components:
            raise self._missing(kind, pattern, context, is_pattern=True)
        return tuple(components)

    def find_any(self, name: str) -> tuple[Component, ...]:
        """Return the components of all kinds that have a name, at least one; errors as for ``find``."""
        components = tuple(component for component in self._components if name in (component.id, component.short))
        if not components:
            raise self._missing(None, name, "")
        return components

    def _missing(
        self, kind: ComponentKind | None, name: str, context: str, *, is_pattern: bool = False
    ) -> ConfigError | PluginError:
        """Return the error for a name that no active plugin provides; its plugin may be installed and not active."""
        plugin, slash, _ = name.rpartition("/")
        owners = {
            component.plugin
            for component in self._withheld
            if kind in (None, component.kind) and component.short == name
        }
        if slash:
            owners = {plugin}
        owners -= {record.id for record in self._records if record.status == "active"}
        for record in self._records:
            if record.id in owners:
                return lookup_errors.unusable(kind, name, context, record)
        return lookup_errors.unknown_component(
            kind, name, context, self._components, self._records, is_pattern=is_pattern
        )


def _invalid_parts(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in a specification, each with a hint."""
    for part in fields(spec):
        value, kind = getattr(spec, part.name), type(part.default)
        # Dataclasses check no types: a wrong one would fail in a listing or a run, far from the author's line.
        if kind in (bool, int, str) and not isinstance(value, kind):
            yield f"{part.name}={value!r}", f"Expected a value of type {kind.__name__}."
    if isinstance(spec, BlueprintSpec) and spec.adapts and not spec.starts_as_identity:
        yield "adapts=True, starts_as_identity=False", "An adapter has starts_as_identity=True."
    settings: object = spec.settings
    is_model = settings is None or (isinstance(settings, type) and hasattr(settings, "model_validate"))
    if not (is_target(settings) if isinstance(settings, str) else is_model):
        yield f"settings={spec.settings!r}", 'Settings are a pydantic model class, or "module:Class".'
    if isinstance(spec, HostSpec):
        for name, place in spec.slots.items():
            if not isinstance(place, SlotPlace):
                yield f"slot {name!r}: {place!r}", 'A slot is "name": SlotPlace("module").'
            elif place.kind is not None and place.kind not in SITE_KINDS:
                yield f"slot {name!r} of kind {place.kind!r}", suggestion(str(place.kind), SITE_KINDS)
            elif not isinstance(place.output, str | int | None):
                yield f"slot {name!r} on output {place.output!r}", "It is a key, a field or an index."
