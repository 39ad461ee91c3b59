"""Meanings of the columns of observations, in their order, for ``generate``.

A name that ends with an underscore stands for all columns that begin with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_THE_WHOLE: Mapping[str, str] = {
    "progress": "share of the episode that is over, with this step",
    "steps": "log₁₀(1 + steps of an episode) / 2",
    "train_loss": "log(1 + nats)",
    "validation_loss": "log(1 + nats)",
    "overfit": "validation less training loss, in nats",
    "metric": "validation metric; above 1, 1 + its logarithm",
    "metric_over_twin": "metric less the twin's, times 10; positive means larger, not better",
    "loss_under_twin": "validation loss below the twin's, each as log(1 + nats)",
    "added": "added parameters, as a share of the host's",
    "fossils": "fossils / 4",
    "living": "living seeds / 4",
    "price": "the reward's price of growth / 100",
}

OF_A_SLOT: Mapping[str, str] = {
    "state_": "1 for its state",
    "fossils": "fossils / 4",
    "incubating": "incubating seeds / 4",
    "acting": "acting seeds / 4",
    "may_": "1 if possible now, for anything in the slot",
    "depth": "share of the slots before it",
    "channels": "log₁₀(channels) / 2",
    "positions": "log₁₀(1 + positions) / 2, along the longest side",
    "kind_": "1 for its kind",
}

OF_A_CANDIDATE: Mapping[str, str] = {
    "parameters": "of a new seed, as a share s of the host's: log(1 + 10·s) / log(11)",
    "flops": "forward operations for one example, likewise",
    "identity": "1 if it declares to start as the identity",
    "is_new": "1 if it was not in the configuration",
    "stage_": "1 for its seed's stage; all 0 without a seed",
    "may_": "1 if possible now, for this candidate",
    "alpha": "its seed's alpha",
    "age": "steps since germination, as a share of the episode",
    "promised_loss": "its training loss below the host's, as log(1 + nats)",
    "gain": "tenths of a nat",
    "gain_error": "standard error, likewise",
    "health": "share of usable gradients",
    "surplus": "gain less what its gate requires, in tenths of a nat",
    "gate_opens": "1 if its gate is open",
    "rent": "the reward's price of its parameters / 100",
}
