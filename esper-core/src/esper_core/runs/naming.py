"""What is a run called? By when it began, and two words that a person can say."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

_MANNERS = """
bright calm clear crisp daring early eager fair gentle golden hardy humble keen late lively lucid
mellow merry mild mossy nimble patient plain proud quick quiet ready rosy sandy silent silver slow
snowy solid still stout sunny swift tidy upright vivid warm wild wise
""".split()  # noqa: SIM905
_CREATURES = """
acorn alder aspen badger beech birch bracken clover crane curlew elder fern finch gorse hare hazel
heron iris ivy juniper kestrel larch lark lichen linden lotus marten moss oak osprey otter pine
plover poplar reed robin rowan sedge sorrel sparrow swift thistle thrush vole willow wren yarrow yew
""".split()  # noqa: SIM905


def run_id(began: datetime, name: str | None = None) -> str:
    """``20261121-101512-quiet-otter``, or with ``name`` in place of the words."""
    return f"{began:%Y%m%d-%H%M%S}-{name or two_words()}"


def two_words() -> str:
    """A manner and a creature. Drawn from the system, so that no seed is touched."""
    return f"{secrets.choice(_MANNERS)}-{secrets.choice(_CREATURES)}"
