"""Did the factors on the loss drift apart? Then arms of one seed were not trained alike, and whoever compares is told.

In float16 each environment searches for a factor of its own: one that overflows leaves a step out and halves it. Where
the arms of a seed end with different ones, some of them were trained on fewer batches than others.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline.signals import Signals
    from esper_core.trainer.roster import Member

log = logging.getLogger("esper")


def warn_of_scales(environments: Sequence[Member], signals_E: Sequence[Signals]) -> None:
    """At the end of a round: one warning that names the seeds whose arms have different factors, with these."""
    factors: dict[int, dict[str, float]] = {}
    for environment, signals in zip(environments, signals_E, strict=True):
        if signals.loss_scale is not None:
            factors.setdefault(environment.seed, {})[environment.arm] = signals.loss_scale
    apart = [
        f"seed {seed}: {', '.join(f'{arm} {factor:g}' for arm, factor in own.items())}"
        for seed, own in factors.items()
        if len(set(own.values())) > 1
    ]
    if apart:
        what = "the factors on the loss (float16) differ between arms, which were not trained on the same batches"
        log.warning("%s: %s", what, "; ".join(apart))
