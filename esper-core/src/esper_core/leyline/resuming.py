"""What does a thing with a memory give to a checkpoint, and take back from it? Plain data, and tensors by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

BETWEEN = "/"
"""Stands in the name of a tensor between the name of a part and the tensor's own."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that something knows, so that another of its kind, built alike, can go on in its place.

    plain: what JSON holds without loss: text, whole numbers, finite floats, booleans, None, lists, and mappings with
    names for keys. tensors: by name; a checkpoint keeps copies, on the CPU.
    """

    plain: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Mapping[str, State], **plain: Any) -> State:
        """The states of several parts in one, with plain data beside them. No part has a / in its name.

        >>> State.of({"order": State({"left": 3})}, steps=2).plain
        {'steps': 2, 'order': {'left': 3}}
        """
        if strange := [name for name in parts if BETWEEN in name or name in plain]:
            msg = f"a part has a name of its own, without {BETWEEN}. Received: {strange[0]!r}"
            raise ValueError(msg)
        tensors = {
            f"{name}{BETWEEN}{own}": tensor for name, part in parts.items() for own, tensor in part.tensors.items()
        }
        return cls({**plain, **{name: part.plain for name, part in parts.items()}}, tensors)

    def part(self, name: str) -> State:
        """The state of one part, as ``of`` was given it."""
        prefix = f"{name}{BETWEEN}"
        own = {key.removeprefix(prefix): tensor for key, tensor in self.tensors.items() if key.startswith(prefix)}
        return State(self.plain[name], own)


@runtime_checkable
class Resumable(Protocol):
    """What has a memory. A policy that remembers its episodes is one, and so is a learner; one without is not asked."""

    def state(self) -> State:
        """All that it knows; whatever happens to it later, the state stays what it is."""
        ...

    def load(self, state: State) -> None:
        """Know what another one of its kind knew, which was built alike, and nothing else."""
        ...
