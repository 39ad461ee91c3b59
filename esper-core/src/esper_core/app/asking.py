"""Which action does somebody ask for who types it? ``OP [SLOT [BLUEPRINT]] [key=value…]``, every slip told.

>>> space = ActionSpace({"early": ("blueprints/conv_light",)})
>>> action_asked("germinate early conv_light blend=gate speed=8", space).blend.value
'gate'
>>> action_asked("prune erly", space)
Traceback (most recent call last):
    ...
esper_core.leyline.errors.ConfigError: E432 there is no slot "erly"
  --action
  Did you mean "early"?
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from esper_core.config.showing import quoted
from esper_core.leyline.actions import ARGUMENTS, Action, ActionSpace, Blend, Curve, Op
from esper_core.leyline.constants import FULL
from esper_core.leyline.errors import ConfigError, Problem, suggestion
from esper_core.trainer.event_records import arguments_of, describe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from esper_core.leyline.actions import ActionMask

GRAMMAR: Final = "OP [SLOT [BLUEPRINT]] [key=value…], as: germinate early conv_light blend=gate speed=8"

_NAMED: Final = ("slot", "blueprint")
_WHOLE: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


def action_asked(text: str, space: ActionSpace) -> Action:
    """The action that ``text`` says; ConfigError (E432) with the nearest name where it says none.

    A blueprint can be named without its plugin where only one of this name may grow in the slot.
    """
    words = text.split()
    named = [word for word in words if "=" not in word]
    if not named:
        _refuse("no action is named", GRAMMAR)
    op = Op(_one_of("op", named[0], list(Op)))
    reads = ARGUMENTS[op]
    takes = [name for name in _NAMED if name in reads]
    if len(named) - 1 > len(takes):
        _refuse(f"{op.value} takes {' and '.join(takes) or 'no slot'}, received {quoted(' '.join(named[1:]))}", GRAMMAR)
    slot = _slot(op, named[1:2], space) if "slot" in takes else None
    blueprint = _blueprint(op, named[2:3], space.blueprints[slot], slot) if slot and "blueprint" in takes else None
    arguments = [word for word in words if "=" in word]
    return Action(op, slot, blueprint, **_arguments(op, arguments, [name for name in reads if name not in _NAMED]))


def as_typed(action: Action) -> str:
    """An action as ``action_asked`` takes it, without the arguments that are as they would be anyway.

    >>> as_typed(Action(Op.PRUNE, "early", speed=0))
    'prune early speed=0'
    """
    usual, told = arguments_of(Action(action.op)), arguments_of(action)
    return " ".join([describe(action), *(f"{key}={given}" for key, given in told.items() if given != usual[key])])


def possible_in(mask: ActionMask) -> tuple[str, ...]:
    """Every action that a mask allows, as it would be typed, without the arguments that can be left out."""
    found = [Op.WAIT.value]
    for slot, ops in mask.ops.items():
        for op in (op for op in Op if op in ops):
            several = [one for one, own in mask.seeds.get(slot, {}).items() if op in own]
            if op is Op.GERMINATE:
                found += [f"{op.value} {slot} {blueprint}" for blueprint in mask.blueprints.get(slot, ())]
            elif len(several) > 1 and "blueprint" in ARGUMENTS[op]:
                found += [f"{op.value} {slot} {blueprint}" for blueprint in several]
            else:
                found.append(f"{op.value} {slot}")
    return tuple(found)


def refused(message: str, hint: str, path: str | None = None) -> ConfigError:
    """The error of a replay that cannot be as it is asked for."""
    return ConfigError(Problem("E432", message, path=path, hint=hint))


def _slot(op: Op, given: Sequence[str], space: ActionSpace) -> str:
    if not given:
        _refuse(f"{op.value} needs a slot", f"Slots: {', '.join(space.slots)}")
    return _one_of("slot", given[0], space.slots)


def _blueprint(op: Op, given: Sequence[str], known: Sequence[str], slot: str) -> str | None:
    if not given:
        if op is Op.GERMINATE:
            _refuse(f"{op.value} needs a blueprint", f"What may grow in slot {quoted(slot)}: {', '.join(known)}")
        return None
    claims = [one for one in known if given[0] in (one, one.rpartition("/")[2])]
    if len(claims) > 1:
        _refuse(f"{len(claims)} blueprints are called {quoted(given[0])}", f"Write which one:  {' or '.join(claims)}")
    if not claims:
        names = [one if "/" in given[0] else one.rpartition("/")[2] for one in known]
        _refuse(f"no blueprint {quoted(given[0])} may grow in slot {quoted(slot)}", suggestion(given[0], names))
    return claims[0]


def _arguments(op: Op, words: Iterable[str], known: Collection[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in known:
            hint = suggestion(key, known) if known else f"{op.value} takes none."
            _refuse(f"{op.value} takes no {quoted(key)}", hint)
        if key in found:
            _refuse(f"{key} is given twice: {quoted(str(found[key]))} and {quoted(value)}", GRAMMAR)
        found[key] = _value(key, value)
    return found


def _value(key: str, text: str) -> Blend | Curve | int | float:
    if key == "blend":
        return Blend(_one_of(key, text, list(Blend)))
    if key == "curve":
        return Curve(_one_of(key, text, list(Curve)))
    if key == "speed":
        if not _WHOLE.fullmatch(text):
            _refuse(f"speed is a whole number of steps, 0 or more. Received: {quoted(text)}", "0 is at once.")
        return int(text)
    number = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0.0 < number <= FULL:
        _refuse(f"target is a number above 0 and up to 1. Received: {quoted(text)}", "Only at 1 can a seed be kept.")
    return number


def _one_of(what: str, name: str, known: Sequence[str]) -> str:
    if name not in known:
        _refuse(f"there is no {what} {quoted(name)}", suggestion(name, [str(one) for one in known]))
    return name


def _refuse(message: str, hint: str) -> NoReturn:
    raise refused(message, hint, "--action")
