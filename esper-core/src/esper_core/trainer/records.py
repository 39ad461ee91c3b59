"""How is a record, an observation say, written as plain data and read again? As its fields are typed."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import TypeAdapter

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")


def plain_of(record: Any) -> Any:
    """What ``record_of`` makes a record again: text, numbers (NaN among them), lists and mappings."""
    return None if record is None else _adapter(cast("Hashable", type(record))).dump_python(record, mode="json")


def record_of(kind: type[T], plain: Any) -> T:
    """The record of this kind that ``plain_of`` was given; ValueError where it was none."""
    record: T = _adapter(cast("Hashable", kind)).validate_python(plain)
    return record


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
