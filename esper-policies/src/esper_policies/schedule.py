"""The policy that carries out a fixed plan, and how plans are read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import ARGUMENTS, WAIT, Action, Blend, ConfigError, Op, SettingError, State
from esper_core.leyline.constants import RAMP_STEPS
from esper_core.leyline.errors import suggestion
from esper_policies.settings import PlanEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.leyline import ActionMask, ActionSpace, Observation


WAYS: Final[Mapping[str, str]] = {
    "blueprint": "The op acts on the only seed in the slot.",
    "blend": "Set it in the entry that germinates the seed.",
    "speed": "Set it in the entry that germinates the seed.",
}
"""Arguments that only some ops take, with these ops."""


@dataclass(frozen=True, slots=True)
class Move:
    """An entry of a plan with resolved names: ``action`` is tried from ``step`` on."""

    index: int
    step: int
    slot: str
    action: Action

    def __str__(self) -> str:
        blueprint = f" {self.action.blueprint}" if self.action.blueprint else ""
        return f"plan[{self.index}]: {self.action.op.value}{blueprint} in {self.slot}, from step {self.step}"


def read_plan(plan: Sequence[PlanEntry], space: ActionSpace) -> tuple[Move, ...]:
    """Return the moves of ``plan`` in order. Raises SettingError for one mistake, ConfigError for several."""
    slips = [slip for index, entry in enumerate(plan) for slip in _slips(f"plan[{index}]", entry, space)]
    slips += _steps_that_fall(plan)
    if len(slips) == 1:
        raise slips[0]
    if slips:
        raise ConfigError([problem for slip in slips for problem in slip.problems])
    return tuple(_move(index, entry, space) for index, entry in enumerate(plan))


def _move(index: int, entry: PlanEntry, space: ActionSpace) -> Move:
    assert entry.slot is not None
    blueprint = None if entry.blueprint is None else _meant(entry.blueprint, space.blueprints[entry.slot])[0]
    action = Action(
        Op(entry.op),
        entry.slot,
        blueprint,
        blend=Blend.ADD if entry.blend is None else Blend(entry.blend),
        speed=RAMP_STEPS if entry.speed is None else entry.speed,
    )
    return Move(index, entry.step, entry.slot, action)


def _meant(name: str, ids: Sequence[str]) -> list[str]:
    """Return the full ids that ``name`` can mean: itself, or all that end in it."""
    return [name] if name in ids else [id_ for id_ in ids if _short(id_) == name]


def _short(id_: str) -> str:
    return id_.rpartition("/")[2]


def _slips(path: str, entry: PlanEntry, space: ActionSpace) -> Iterator[SettingError]:
    """Yield the mistakes of a single entry."""
    if entry.slot is None:
        yield SettingError(f"{path}.slot", f"{entry.op} needs a slot", f"Slots of this run: {', '.join(space.slots)}")
    elif entry.slot not in space.blueprints:
        yield SettingError(f"{path}.slot", f'there is no slot "{entry.slot}"', suggestion(entry.slot, space.slots))
    elif Op(entry.op) is Op.GERMINATE or (entry.blueprint is not None and "blueprint" in ARGUMENTS[Op(entry.op)]):
        yield from _wrong_blueprint(f"{path}.blueprint", entry, entry.slot, space.blueprints[entry.slot])
    for argument, belongs in WAYS.items():
        value = getattr(entry, argument)
        if value is not None and argument not in ARGUMENTS[Op(entry.op)]:
            received = f'"{value}"' if isinstance(value, str) else value
            hint = f"{belongs} Received: {received}"
            yield SettingError(f"{path}.{argument}", f"{entry.op} takes no {argument}", hint)


def _wrong_blueprint(path: str, entry: PlanEntry, slot: str, ids: Sequence[str]) -> Iterator[SettingError]:
    name = entry.blueprint
    if name is None:
        yield SettingError(path, f"{entry.op} needs a blueprint", f'In slot "{slot}": {", ".join(ids) or "none"}')
    elif not (meant := _meant(name, ids)):
        names = ids if "/" in name else [_short(id_) for id_ in ids]
        yield SettingError(path, f'no blueprint "{name}" may grow in slot "{slot}"', suggestion(name, names))
    elif len(meant) > 1:
        yield SettingError(path, f'"{name}" is the name of several blueprints', f"Write one of: {' or '.join(meant)}")


def _steps_that_fall(plan: Sequence[PlanEntry]) -> Iterator[SettingError]:
    """Yield entries that follow one of the same slot with a later step."""
    latest: dict[str, int] = {}
    for index, entry in enumerate(plan):
        if entry.slot is None:
            continue
        if entry.step < latest.get(entry.slot, 0):
            message = f'in slot "{entry.slot}" step {entry.step} follows step {latest[entry.slot]}'
            yield SettingError(f"plan[{index}].step", message, "Sort the entries of a slot by step.")
        latest[entry.slot] = max(entry.step, latest.get(entry.slot, 0))


class Schedule:
    """Carries out a fixed plan, the same in every environment, as far as the action masks allow.

    Each entry is carried out once, at the first step from its own on at which the mask allows it. Entries of one slot
    keep their order: one that is not possible yet holds back those after it. If entries of several slots are possible
    in one step, the first in the plan is carried out and the others wait. Step 0 restarts an environment's plan.

    >>> from esper_core.leyline import ActionSpace
    >>> space = ActionSpace({"early": ("blueprints/conv_light",)})
    >>> plan = [{"step": 0, "op": "germinate", "slot": "early", "blueprint": "conv_light"}]
    >>> [str(move) for move in Schedule(space, plan=plan).moves]
    ['plan[0]: germinate blueprints/conv_light in early, from step 0']

    space: the run's slots and blueprints. plan: entries as ``settings.PlanEntry`` has them, or as mappings.
    """

    def __init__(self, space: ActionSpace, *, plan: Sequence[PlanEntry | Mapping[str, Any]]) -> None:
        self.moves = read_plan([PlanEntry.model_validate(entry) for entry in plan], space)
        self._waiting: list[list[Move]] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return each environment's next move that is due and legal, else WAIT."""
        del self._waiting[len(observations) :]
        self._waiting += [list(self.moves) for _ in observations[len(self._waiting) :]]
        actions = []
        for place, (observation, mask) in enumerate(zip(observations, masks, strict=True)):
            if observation.step == 0:
                self._waiting[place] = list(self.moves)
            actions.append(_next(self._waiting[place], observation.step, mask))
        return actions

    def impossible(self, steps: int) -> list[str]:
        """Return the entries that begin after the last decision of an episode of so many steps."""
        return [str(move) for move in self.moves if move.step >= steps]

    def unfinished(self) -> list[tuple[str, ...]]:
        """Return for each environment the entries that its episode has not carried out so far."""
        return [tuple(str(move) for move in moves) for moves in self._waiting]

    def state_dict(self) -> State:
        """Return for each environment the numbers of the entries that are left."""
        return State({"waiting": [[move.index for move in moves] for moves in self._waiting]})

    def load_state_dict(self, state: State) -> None:
        """Restore which entries are left."""
        self._waiting = [[self.moves[index] for index in left] for left in state.plain["waiting"]]


def _next(waiting: list[Move], step: int, mask: ActionMask) -> Action:
    """Return the action to take now, and remove its move from ``waiting``."""
    held_back: set[str] = set()
    for place, move in enumerate(waiting):
        if move.slot in held_back:
            continue
        if move.step <= step and mask.allows(move.action):
            return waiting.pop(place).action
        held_back.add(move.slot)
    return WAIT
