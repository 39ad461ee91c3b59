"""What of growth stands in a state dict? The seeds' numbers, and beside them, as numbers, what it takes to build them.

So whoever keeps his state dict loses nothing, and ``esper_core.load`` can make the network of it anew. An empty
model has no key of ours. The name of the one key beside the numbers is what torch says when somebody loads the file
into a model that has not grown: that it is for ``esper_core.load``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import torch

from esper_core.growth.journal import Network, parse_network, read_network
from esper_core.leyline.errors import GrowthError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from esper_core.growth.slot import Slots

HOME: Final = "_esper"
"""Name of the one child that a graft adds to the root."""

JOURNAL: Final = "for_esper_core.load"
"""Key of the journal below HOME."""


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
    """Take the journal out again, and object where another network has grown; the hook on the way in."""
    told = state.pop(prefix + JOURNAL, None)
    if told is None or not strict:
        return
    try:
        theirs = network_in({f"{HOME}.{JOURNAL}": told})
    except GrowthError as error:
        errors.append(str(error))
        return
    own = read_network(home, "")
    if theirs is not None and _built(theirs) != _built(own):
        errors.append(
            f"the state dict is of a network that has grown {_in_words(theirs)}, and this one has grown "
            f"{_in_words(own)}. Take a fresh model, and esper_core.load(model, state) instead of load_state_dict."
        )


def network_in(state: Mapping[str, Tensor]) -> Network | None:
    """The journal that a state dict holds; None where nothing had grown."""
    told = state.get(f"{HOME}.{JOURNAL}")
    if told is None:
        return None
    return parse_network(bytes(told.cpu().to(torch.uint8).tolist()), source="the state dict")


def _built(network: Network) -> list[tuple[Any, ...]]:
    return [(seed.slot, seed.blueprint, seed.version, seed.blend, seed.identity) for seed in network.seeds]


def _in_words(network: Network) -> str:
    return ", ".join(f"{seed.blueprint} in {seed.slot}" for seed in network.seeds) or "nothing"
