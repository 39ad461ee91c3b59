"""Which kinds of component can ``esper new`` start, and what sets their packages apart?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Kind:
    """What sets the packages of one kind apart."""

    plural: str
    """What its hook is called after."""
    component: str
    """Name of the component that the template brings; its module and its class are called so, too."""
    summary: str
    requires: tuple[str, ...]
    """Libraries that it imports."""
    declares: tuple[str, ...] = ()
    """Arguments of its spec besides the summary; none: the model of its settings."""

    @property
    def module(self) -> str:
        """The component's module.

        >>> KINDS["sink"].module, KINDS["sink"].factory
        ('steps_csv', 'StepsCsv')
        """
        return self.component.replace("-", "_")

    @property
    def factory(self) -> str:
        """The component's class."""
        return "".join(word.capitalize() for word in self.component.split("-"))


KINDS: Final[Mapping[str, Kind]] = {
    "blueprint": Kind(
        "blueprints",
        "maxout",
        "The larger of two views of each feature, beside the input.",
        ("torch",),
        (
            'accepts=("vector", "tokens")',
            'params="3*(c*c + c)"',
            "starts_as_identity=True",
            'traits=("deterministic", "bf16")',
        ),
    ),
    "reward": Kind("rewards", "thrifty", "Gain over the twin, less a price for each doubling in size.", ("pydantic",)),
    "policy": Kind("policies", "patient", "Plants wherever it can, waits, and keeps what grew.", ("pydantic",)),
    "task": Kind("tasks", "chirps", "Tells whether a tone in noise rises or falls.", ("pydantic", "torch")),
    "sink": Kind("sinks", "steps-csv", "Writes one line for each step to steps.csv.", ("pydantic",)),
}
"""The kinds that there is a template for. None of their components has the name of one that the project brings."""
