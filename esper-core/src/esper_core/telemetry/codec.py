"""How does an event become a line of JSON and an event again? Without loss: NaN and infinities are told by name."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter

from esper_core.leyline.events import Event


def encode(event: Event) -> str:
    """One line, without the line's end."""
    return _writer(type(event)).dump_json(event).decode()  # type: ignore[arg-type]


def decode(line: str | bytes) -> Event:
    """The event of a line of just this version; pydantic's ValidationError where it is none."""
    return _reader().validate_json(line)


@cache
def _writer(kind: type[Event]) -> TypeAdapter[Event]:
    """One for each kind: in a union pydantic does not heed what a record says of its NaN."""
    return TypeAdapter(kind)


@cache
def _reader() -> TypeAdapter[Event]:
    return TypeAdapter(Annotated[Event, Field(discriminator="type")])
