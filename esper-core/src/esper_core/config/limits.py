"""How large may a configuration be? The bounds that keep reading one quick, and a run finite."""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 1 << 20
"""Bytes in a file, and characters in its values once every alias is written out."""

MAX_DEPTH: Final = 50
"""Mappings and lists within one another."""

MAX_NODES: Final = 20_000
"""Keys, values, lists and mappings, once every alias is written out."""

MAX_TOKENS: Final = 5 * MAX_NODES
"""Marks of the syntax. No more than ``MAX_NODES`` nodes need; only directives and document marks can exceed it."""

MAX_NUMBER: Final = 100
"""Characters of one number. A 64-bit integer has 20, a float that is written out exactly about 55."""

MAX_PROBLEMS: Final = 100
"""Problems that one error lists; what is beyond them is counted."""

MAX_SHOWN: Final = 60
"""Characters of a received value, or of a key, that a message shows."""

MAX_EPISODES: Final = 10_000_000
"""Episodes of one run: rounds × environments × arms, the twin among them."""

MAX_PRICE: Final = 1_000_000
"""Of growth.price: times any number of parameters it stays a finite number."""

MAX_AMOUNT: Final = 1e30
"""Of weight decay, and of the penalty for a rollback: both fit into a float32, as does a sum of many of them."""

CAPACITY: Final = "capacity"
"""Name of the arm that has from the start what another grew; of several: capacity-of-ARM."""
