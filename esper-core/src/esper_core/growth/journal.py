"""What did the network grow into? The architecture journal: which blueprint, in which version, grew where, and when."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from esper_core.growth.grafting import slots_of

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Growth:
    """One fossil: all that it takes to build its like in the same place."""

    slot: str
    at: str
    kind: str
    example_shape: tuple[int, ...]
    blueprint: str
    version: int
    blend: str
    number: int
    born: int | None
    kept: int | None
    parameters: int

    def as_json(self) -> dict[str, Any]:
        """The entry as growth.json holds it."""
        return asdict(self)


def read_growth(model: nn.Module) -> tuple[Growth, ...]:
    """The fossils of a grafted model, slot by slot, in the order in which they act."""
    return tuple(
        Growth(
            slot=slot.name,
            at=slot.at,
            kind=seed.site.kind,
            example_shape=seed.site.example_shape,
            blueprint=seed.blueprint,
            version=seed.version,
            blend=seed.blend.value,
            number=seed.number,
            born=seed.born,
            kept=seed.kept,
            parameters=seed.parameter_count,
        )
        for slot in slots_of(model).each()
        for seed in slot.fossils
    )
