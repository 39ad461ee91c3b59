"""Actions as text: ``OP [SLOT [BLUEPRINT]] [key=value…]``, as they are typed and as events.jsonl has them.

>>> space = ActionSpace({"early": ("blueprints/conv_light",)})
>>> parse_action("germinate early conv_light blend=gate speed=8", space).blend.value
'gate'
>>> parse_action("prune erly", space)
Traceback (most recent call last):
    ...
esper_core.leyline.errors.ConfigError: E432 there is no slot "erly"
  --action
  Did you mean "early"?
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from esper_core.leyline import ConfigError, Problem
from esper_core.leyline.actions import ARGUMENTS, Action, ActionSpace, Blend, Curve, Op
from esper_core.leyline.constants import FULL
from esper_core.leyline.errors import suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline.actions import ActionMask

GRAMMAR: Final = "OP [SLOT [BLUEPRINT]] [key=value…], as: germinate early conv_light blend=gate speed=8"
OPTIONS: Final = ("blend", "speed", "curve", "target")
"""The arguments of an action that are written as key=value."""

_SHOWN: Final = 60
_SPEED: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_TARGET: Final = re.compile(r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


def parse_action(text: str, space: ActionSpace) -> Action:
    """Return the action that a user typed.

    A blueprint can be named without its plugin where only one of that name may grow in the slot.

    Raises:
        ConfigError: E432, with the closest known name, if the text is not an action.
    """
    words = text.split()
    named = [word for word in words if "=" not in word]
    if not named:
        _refuse("the action is empty", GRAMMAR)
    op = Op(_one_of("op", named[0], list(Op)))
    takes = [name for name in ("slot", "blueprint") if name in ARGUMENTS[op]]
    if len(named) - 1 > len(takes):
        _refuse(f"{op} takes {' and '.join(takes) or 'no slot'}, received {quoted(' '.join(named[1:]))}", GRAMMAR)
    if takes and not named[1:]:
        _refuse(f"{op} needs a slot", f"Slots: {', '.join(space.slots)}")
    slot = _one_of("slot", named[1], space.slots) if takes else None
    choices = () if slot is None else space.blueprints[slot]
    if op is Op.GERMINATE and not named[2:]:
        _refuse(f"{op} needs a blueprint", f"Blueprints of slot {quoted(str(slot))}: {', '.join(choices)}")
    blueprint = _blueprint(named[2], choices, str(slot)) if named[2:] else None
    return Action(op, slot, blueprint, **_options(op, [word for word in words if "=" in word]))


def format_action(action: Action) -> str:
    """Return an action as ``parse_action`` reads it, without options that have their default.

    >>> format_action(Action(Op.PRUNE, "early", speed=0))
    'prune early speed=0'
    """
    usual = Action(action.op)
    options = [
        f"{key}={getattr(action, key)}"
        for key in OPTIONS
        if key in ARGUMENTS[action.op] and getattr(action, key) != getattr(usual, key)
    ]
    return " ".join([action.title, *options])


def possible_actions(mask: ActionMask) -> tuple[str, ...]:
    """Return every action that a mask allows, as text and without options."""
    actions = [str(Op.WAIT)]
    for slot, ops in mask.ops.items():
        for op in (op for op in Op if op in ops):
            several = [blueprint for blueprint, seed_ops in mask.seeds.get(slot, {}).items() if op in seed_ops]
            if op is Op.GERMINATE:
                actions += [f"{op} {slot} {blueprint}" for blueprint in mask.blueprints.get(slot, ())]
            elif len(several) > 1 and "blueprint" in ARGUMENTS[op]:
                actions += [f"{op} {slot} {blueprint}" for blueprint in several]
            else:
                actions.append(f"{op} {slot}")
    return tuple(actions)


def quoted(text: str) -> str:
    """Return text in double quotes on one line, shortened if it is long."""
    return json.dumps(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…", ensure_ascii=False)


def _blueprint(name: str, blueprints: Sequence[str], slot: str) -> str:
    claims = [blueprint for blueprint in blueprints if name in (blueprint, blueprint.rpartition("/")[2])]
    if len(claims) > 1:
        _refuse(f"{len(claims)} blueprints are called {quoted(name)}", f"Write one of:  {' or '.join(claims)}")
    if not claims:
        names = [blueprint if "/" in name else blueprint.rpartition("/")[2] for blueprint in blueprints]
        _refuse(f"no blueprint {quoted(name)} may grow in slot {quoted(slot)}", suggestion(name, names))
    return claims[0]


def _options(op: Op, words: Sequence[str]) -> dict[str, Any]:
    names = [name for name in ARGUMENTS[op] if name in OPTIONS]
    options: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in names:
            _refuse(f"{op} takes no {quoted(key)}", suggestion(key, names) if names else f"{op} takes no options.")
        if key in options:
            _refuse(f"{key} is given twice: {quoted(str(options[key]))} and {quoted(value)}", GRAMMAR)
        options[key] = _option(key, value)
    return options


def _option(key: str, text: str) -> Blend | Curve | int | float:
    if key == "blend":
        return Blend(_one_of(key, text, list(Blend)))
    if key == "curve":
        return Curve(_one_of(key, text, list(Curve)))
    if key == "speed":
        if not _SPEED.fullmatch(text):
            _refuse(f"speed is a whole number of steps from 0. Received: {quoted(text)}", "0 means at once.")
        return int(text)
    target = float(text) if _TARGET.fullmatch(text) else 0.0
    if not 0.0 < target <= FULL:
        _refuse(
            f"target is a number above 0 and up to 1. Received: {quoted(text)}", "A seed can be fossilised only at 1."
        )
    return target


def _one_of(kind: str, name: str, choices: Sequence[str]) -> str:
    if name not in choices:
        _refuse(f"there is no {kind} {quoted(name)}", suggestion(name, [str(choice) for choice in choices]))
    return name


def _refuse(message: str, hint: str) -> NoReturn:
    raise ConfigError(Problem("E432", message, path="--action", hint=hint))
