"""What can a run use? A component: its name, the package behind it, and the way to its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.markup import notebook, shown, table
from esper_core.plugins.faults import Label, attempt, fault_in, root_of, target_of
from esper_core.plugins.loading import author_of, import_target, remedy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from esper_core.leyline.specs import ComponentKind, Spec


@dataclass(frozen=True, slots=True)
class Component:
    """A blueprint, host, policy, reward, sink or task that a plugin brings. Its code is imported by ``load``.

    id: plugin and name, ``blueprints/conv_light``; unique among the components of a kind.
    target: what builds it, or the "module:attribute" where that stands.
    """

    id: str
    short: str
    kind: ComponentKind
    plugin: str
    package: str
    version: str
    target: Callable[..., Any] | str = field(hash=False)
    spec: Spec = field(hash=False)

    @property
    def source(self) -> str:
        """Package and version, as messages name them."""
        return f"{self.package} {self.version}"

    @property
    def title(self) -> Label:
        """How messages name it: ``policy "policies/schedule" (esper-policies 0.1.0)``. It knows its target."""
        target = self.target if isinstance(self.target, str) else target_of(self.target)
        return Label(f'{self.kind} "{self.id}" ({self.source})', target)

    def __repr__(self) -> str:
        summary = f": {self.spec.summary}" if self.spec.summary else ""
        return f"<{shown(f'{self.kind} {self.id}, {self.source}{summary}')}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it: what it says of itself. Nothing is imported."""
        said = [(field.name, self._said(field.name)) for field in fields(self.spec)]
        rows = [("kind", self.kind), ("package", self.source), *((name, text) for name, text in said if text)]
        return notebook(self.id, table(["", ""], rows))

    def _said(self, name: str) -> str:
        """What its spec says under a name, in words."""
        value = getattr(self.spec, name)
        if isinstance(value, type):
            return f"{value.__module__}:{value.__qualname__}"
        if isinstance(value, (tuple, Mapping)):
            return ", ".join(map(str, value))
        return "" if value is None else str(value)

    def load(self) -> Callable[..., Any]:
        """What builds it. Imports the package's code; PluginError (E219) where that fails."""
        found = self._import(self.target, "cannot be loaded") if isinstance(self.target, str) else self.target
        if not callable(found):
            raise PluginError(
                Problem(
                    "E219",
                    f"{self.title} cannot be called: {self.target} is {_article(type(found).__name__)}",
                    hint=f"A target is a class or a function. {author_of(self.package)}",
                )
            )
        return found

    def settings_model(self) -> type[BaseModel] | None:
        """The pydantic model of its settings; None where it has no settings. PluginError where it cannot be had."""
        declared = getattr(self.spec, "settings", None)
        if declared is None:
            return None
        found = self._import(declared, "has settings that cannot be loaded") if isinstance(declared, str) else declared

        from pydantic import BaseModel

        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
        raise PluginError(
            Problem(
                "E217",
                f"{self.title} declares settings that are no pydantic model: {declared}",
                hint=f"Settings are a class that derives from pydantic.BaseModel. {author_of(self.package)}",
            )
        )

    def _import(self, target: str, failing: str) -> Any:
        tried = attempt(lambda: import_target(target))
        if tried.error is None:
            return tried.value
        fault = fault_in(tried.error, root_of(target))
        problem = Problem(
            "E219",
            f"{self.title} {failing}: {fault.summary}",
            file=fault.file,
            line=fault.line,
            path=None if fault.file else target,
            hint=remedy(fault, target, self.package) or author_of(self.package),
        )
        raise PluginError(problem) from tried.error


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
