"""What of growth stands in a state dict? The seeds' numbers, and beside them, as numbers, what it takes to build them.

So whoever keeps his state dict loses nothing, and ``esper_core.load`` can make the network of it anew. An empty
model has no key of ours. The name of the one key beside the numbers is what torch says when somebody loads the file
into a model that has not grown: that it is for ``esper_core.load``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from esper_core.growth.journal import LARGEST, no_journal, parse_network, read_network, resume
from esper_core.leyline.errors import GrowthError
from esper_core.leyline.lifecycle import INCUBATING, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.growth.journal import Growth, Network
    from esper_core.growth.seed import Presence
    from esper_core.growth.slot import Slots

HOME: Final = "_esper"
"""Name of the one child that a graft adds to the root."""

JOURNAL: Final = "for_esper_core.load"
"""Key of the journal below HOME."""

ARITHMETIC: Final = f"Who adds up, averages or casts state dicts leaves {HOME}.{JOURNAL} as it is: it is text."
"""What is said where somebody reckoned with the journal's bytes."""


def tell_growth(home: Slots, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Put the journal beside the seeds' numbers; the hook that a state dict passes on its way out."""
    network = read_network(home, "")
    if network.seeds:
        text = json.dumps(network.as_json()).encode()
        state[prefix + JOURNAL] = torch.frombuffer(bytearray(text), dtype=torch.uint8)


def heed_growth(
    home: Slots,
    state: dict[str, Any],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Take the journal out again, object where another network has grown, and where the same has, let its seeds stand
    where they stood: a state dict is of one alpha. The hook on the way in.
    """
    told = state.pop(prefix + JOURNAL, None)
    if told is None:
        return
    theirs: Network | None = None
    try:
        theirs = network_in({f"{HOME}.{JOURNAL}": told})
    except GrowthError as error:
        objection: str | None = str(error)
    else:
        objection = None if theirs is None else _objection(theirs, read_network(home, ""))
    if objection is not None or theirs is None:
        errors += [objection] if strict and objection is not None else []
        return
    for seed, growth in zip((seed for slot in home.each() for seed in slot.stack), theirs.seeds, strict=True):
        resume(seed, growth)


def network_in(state: Mapping[str, Any]) -> Network | None:
    """The journal that a state dict holds; None where nothing had grown."""
    told = state.get(f"{HOME}.{JOURNAL}")
    if told is None:
        return None
    source = "the state dict"
    if not isinstance(told, Tensor):
        raise no_journal(source, f"{JOURNAL} is no row of bytes but {type(told).__name__}", ARITHMETIC)
    if told.dtype is not torch.uint8 or told.ndim != 1 or told.is_meta or told.layout is not torch.strided:
        received = f"{told.dtype}, shape {tuple(told.shape)}, on {told.device}"
        raise no_journal(source, f"{JOURNAL} is no row of bytes but {received}", ARITHMETIC)
    if told.numel() > LARGEST:
        raise no_journal(source, f"{JOURNAL} has {told.numel():,} bytes, and {LARGEST:,} are read", ARITHMETIC)
    return parse_network(bytes(told.tolist()), source=source, otherwise=ARITHMETIC)


def _objection(theirs: Network, own: Network) -> str | None:
    """Why a state dict is not for the network that has grown here; None where it is."""
    way_out = "Take a fresh model, and esper_core.load(model, state) instead of load_state_dict."
    if _built(theirs) != _built(own):
        return (
            f"the state dict is of a network that has grown {_in_words(theirs)}, and this one has grown "
            f"{_in_words(own)}. {way_out}"
        )
    for their, seed in zip(theirs.seeds, own.seeds, strict=True):
        if _phase(their) != _phase(seed):
            return (
                f"the state dict was taken when {their.blueprint} in {their.slot} was {_standing(their)}, and here it "
                f"is {_standing(seed)}: who trains it is another then. {way_out}"
            )
    return None


def _built(network: Network) -> list[tuple[Any, ...]]:
    return [(seed.slot, seed.blueprint, seed.version, seed.blend, seed.identity) for seed in network.seeds]


def _phase(seed: Growth) -> tuple[bool, bool, Presence]:
    """What decides who trains a seed: within one phase its stage and its alpha may be set back."""
    return seed.stage in INCUBATING, seed.stage is Stage.FOSSILIZED, seed.presence


def _standing(seed: Growth) -> str:
    return f"{seed.stage} and {seed.presence}"


def _in_words(network: Network) -> str:
    return ", ".join(f"{seed.blueprint} in {seed.slot}" for seed in network.seeds) or "nothing"
