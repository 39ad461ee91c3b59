"""How is a moment, or a twin's episode, written so that another process has it as it was? As ``told`` writes things.

Numbers come back to the last bit, infinities among them; one that is no number is NaN again. What is equal is written
alike: the order of a set, which is another one in each process, is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.app.episode import Moment, Undisturbed, ending_of, plain_ending
from esper_core.growth import heard, told
from esper_core.leyline.actions import ActionMask
from esper_core.leyline.signals import Observation, RewardBreakdown, Signals
from esper_core.trainer.event_records import plain_of, record_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from esper_core.leyline.protocols import State


def told_of_moment(moment: Moment) -> State:
    """A moment as a state, of which ``moment_of`` makes it again."""
    mask = plain_of(moment.mask)
    return told(
        {
            "observation": plain_of(moment.observation),
            "mask": {**mask, "ops": _ordered(mask["ops"]), "seeds": {k: _ordered(v) for k, v in mask["seeds"].items()}},
            "reward": plain_of(moment.reward),
            "rolled_back": moment.rolled_back,
            "ending": plain_ending(moment.ending),
        }
    )


def moment_of(state: State) -> Moment:
    """The moment that ``told_of_moment`` was given. GrowthError, LookupError, TypeError or ValueError for another."""
    known = heard(state)
    return Moment(
        record_of(Observation, known["observation"]),
        record_of(ActionMask, known["mask"]),
        None if known["reward"] is None else record_of(RewardBreakdown, known["reward"]),
        known["rolled_back"],
        ending_of(known["ending"]),
    )


def told_of_twin(twin: Undisturbed) -> State:
    """A twin's episode as a state, of which ``twin_of`` makes it again."""
    return told(
        {
            "signals": [plain_of(one) for one in twin.signals],
            "losses": twin.losses,
            "ending": plain_ending(twin.ending),
            "rolled_back": sorted(twin.rolled_back),
        }
    )


def twin_of(state: State, device: torch.device | str) -> Undisturbed:
    """The episode that ``told_of_twin`` was given, its losses on this device. Errors are those of ``moment_of``."""
    known = heard(state, device)
    ending = ending_of(known["ending"])
    if ending is None:
        msg = "a twin's episode has an end. Received: one without"
        raise ValueError(msg)
    signals = tuple(record_of(Signals, one) for one in known["signals"])
    return Undisturbed(signals, known["losses"], ending, frozenset(known["rolled_back"]))


def _ordered(sets: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: sorted(own) for name, own in sets.items()}
