"""Which component does a name mean? A read-only view of what the active plugins bring."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from esper_core.leyline.markup import counted, notebook, table
from esper_core.leyline.specs import COMPONENT_KINDS
from esper_core.plugins import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.component import Component
    from esper_core.plugins.records import PluginRecord

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

    def _repr_html_(self) -> str:
        """What a notebook shows of it: a line for each component."""
        rows = [(one.kind, one.id, one.source, one.spec.summary) for one in self._components]
        return notebook(self._counted(), table(["kind", "name", "package", "what it is"], rows))

    def _counted(self) -> str:
        kinds = Counter(one.kind for one in self._components)
        each = ", ".join(f"{kind} {number:,}" for kind, number in kinds.items())
        return counted(len(self._components), "component") + (f": {each}" if each else "")

    def _check_withheld(self, kind: ComponentKind, name: str, context: str) -> None:
        """Raises where the name belongs to a plugin that is installed but not active."""
        plugin, slash, _ = name.rpartition("/")
        owners = {plugin} if slash else {one.plugin for one in self._withheld if (one.kind, one.short) == (kind, name)}
        owners -= {record.id for record in self._records if record.status == "active"}
        for record in self._records:
            if record.id in owners:
                raise unknown.unusable(kind, name, context, record)
