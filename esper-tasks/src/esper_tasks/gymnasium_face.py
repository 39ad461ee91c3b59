"""Can an agent from elsewhere learn to grow networks? One environment of a run, as gymnasium knows environments.

    from esper_tasks.gymnasium_face import GrowthEnv

    env = GrowthEnv("study.yaml", seeds=range(16))
    seen, info = env.reset()
    seen, reward, terminated, truncated, info = env.step(env.action_space.sample(info["action_mask"]))

It is an extra: ``pip install "esper-tasks[gymnasium]"``. Importing it makes it known as ``esper/Growth-v0``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from esper_core import Play, Remembered
from esper_core.leyline import (
    CANDIDATE_COLUMNS,
    GLOBAL_COLUMNS,
    SLOT_COLUMNS,
    WAIT,
    Action,
    Op,
    rows_of,
)
from esper_core.leyline.constants import RAMP_STEPS
from esper_core.leyline.observations import LIMIT

try:
    import gymnasium
except ModuleNotFoundError as error:
    message = 'esper_tasks.gymnasium_face needs gymnasium. Install it:  pip install "esper-tasks[gymnasium]"'
    raise ModuleNotFoundError(message, name=error.name) from error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from esper_core import Moment
    from esper_core.leyline import ActionMask, ActionSpace, Observation, RewardBreakdown

NAME: Final = "esper/Growth-v0"
"""What gymnasium calls it."""

SEEDS: Final = range(16)
"""Environment seeds of the episodes, where nobody says which: as many as ``Play`` keeps the twins of."""

Numbers = NDArray[np.float32]
Told = dict[str, Any]


def actions_of(
    space: ActionSpace, *, speed: int = RAMP_STEPS, single_out: bool = False, fossilise: bool = True
) -> tuple[Action, ...]:
    """What there is to choose from, in a fixed order: to wait, then slot by slot what can be done there.

    speed: decision steps that alpha takes, where an action says it. single_out: whether ADVANCE and PRUNE can also name
    the blueprint that they mean, which makes a difference in a nursery. fossilise: whether FOSSILISE is among them.

    >>> from esper_core.leyline import ActionSpace
    >>> [action.op.value for action in actions_of(ActionSpace({"early": ("blueprints/mlp",)}))]
    ['wait', 'germinate', 'advance', 'prune', 'fossilise']
    """
    found = [WAIT]
    for slot, blueprints in space.blueprints.items():
        found += [Action(Op.GERMINATE, slot, blueprint, speed=speed) for blueprint in blueprints]
        for blueprint in (None, *(blueprints if single_out else ())):
            found += [Action(Op.ADVANCE, slot, blueprint), Action(Op.PRUNE, slot, blueprint, speed=speed)]
        found += [Action(Op.FOSSILISE, slot)] if fossilise else []
    return tuple(found)


def columns_of(space: ActionSpace) -> tuple[str, ...]:
    """What each number of an observation is: of the whole, then of each slot, then of each candidate.

    >>> from esper_core.leyline import ActionSpace
    >>> columns = columns_of(ActionSpace({"early": ("blueprints/mlp",)}))
    >>> columns[0], columns[-1]
    ('progress', 'early blueprints/mlp gate_opens')
    """
    slots = [f"{slot} {column}" for slot in space.slots for column in SLOT_COLUMNS]
    names = [f"{slot} {blueprint}" for slot, blueprint in _candidates(space)]
    candidates = [f"{name} {column}" for name in names for column in CANDIDATE_COLUMNS]
    return (*GLOBAL_COLUMNS, *slots, *candidates)


def numbers_of(space: ActionSpace, observation: Observation, mask: ActionMask) -> Numbers:
    """The rows of ``leyline.features`` one behind the other, as ``columns_of`` names them."""
    rows = rows_of(space, observation, mask)
    candidates = dict(zip(rows.candidate_names, rows.candidates, strict=True))
    told = [rows.whole, *rows.slots, *(candidates[name] for name in _candidates(space))]
    return np.concatenate([np.asarray(row, dtype=np.float32) for row in told])


class GrowthEnv(gymnasium.Env[Numbers, np.int64]):
    """One episode after the other of one configuration: an agent grows a host, and is paid by the run's reward.

    The same seed and actions give the same numbers, here and in a run. An action that is not possible is a WAIT. An
    episode is *terminated* by a rollback, behind which there is nothing to hope for, and *truncated* by its horizon,
    or where the governor expects nothing more: the reward of the end is in the last step's.

    Observations are flat, float32, from -10 to 10; ``columns`` names them. Actions are numbers of ``actions``.

    ``info`` has in each step ``action_mask`` (int8: 1 where an action is possible), ``seed``, ``refused`` (whether the
    action was not possible), ``terms`` (of the reward) and ``reward_unknown`` (whether it is 0 for want of a number);
    at the end of an episode that was not terminated ``test_metric``, ``twin_test_metric`` and ``grown``.

    configuration: a file, as ``esper run`` takes it, with ``overrides`` as its ``--set``; or what plays one.
    home: a folder in which is kept what was played: nothing of it is trained again, by this process or another.
    seeds: environment seeds of the episodes; each once in an order that is drawn, then in another one.
    decide_every: decision steps from one decision to the next; between them nothing is asked for, and rewards add up.
    speed: decision steps that alpha takes to its target, and back to 0.
    auto_fossilise: whether each WAIT keeps a seed for good where one may be kept; FOSSILISE is then no choice.
    actions: what to choose from, WAIT first, in place of ``actions_of``.
    """

    def __init__(
        self,
        configuration: Path | str | Play | Remembered,
        overrides: Sequence[str] = (),
        *,
        home: Path | str | None = None,
        seeds: Sequence[int] = SEEDS,
        decide_every: int = 1,
        speed: int = RAMP_STEPS,
        auto_fossilise: bool = False,
        actions: Sequence[Action] | None = None,
    ) -> None:
        _check(configuration, overrides, seeds, decide_every, actions)
        if isinstance(configuration, Remembered) and home is not None:
            msg = f"what remembers has a home of its own, or none. Received: home={str(home)!r}"
            raise ValueError(msg)
        if type(speed) is not int or speed < 0:
            msg = f"speed is a number of decision steps, from 0. Received: {speed}"
            raise ValueError(msg)
        self._owns = not isinstance(configuration, Play | Remembered)
        play = configuration if isinstance(configuration, Play | Remembered) else Play.of(configuration, overrides)
        self.play = play if home is None or isinstance(play, Remembered) else Remembered(play, home=home)
        self.seeds = tuple(map(int, seeds))
        self.decide_every = decide_every
        self.auto_fossilise = auto_fossilise
        usual = actions_of(self.play.space, speed=speed, fossilise=not auto_fossilise)
        self.actions = usual if actions is None else tuple(actions)
        self.columns = columns_of(self.play.space)
        self.action_space = gymnasium.spaces.Discrete(len(self.actions))
        self.observation_space = gymnasium.spaces.Box(-LIMIT, LIMIT, (len(self.columns),), np.float32)
        self._to_come: list[int] = []
        self._seed = -1
        self._moment: Moment | None = None
        self._owed: list[RewardBreakdown] = []
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Numbers, Told]:
        """Begin an episode: that of ``seed``, else that of the next of the environment's seeds.

        The host has trained for one step then. What that step was worth, nothing as a rule, is in the first reward.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._to_come = []
        self._seed = self._next_seed() if seed is None else seed
        self._over = True  # as long as nothing has begun: the governor may stop it
        self._moment = self.play.begin(self._seed)
        self._owed = [] if self._moment.reward is None else [self._moment.reward]
        self._over = False
        return self._seen(self._moment), self._info(self._moment)

    def step(self, action: np.int64 | int) -> tuple[Numbers, float, bool, bool, Told]:
        """Carry out an action, by its number, and go on to the next decision.

        GovernorStop where the governor would stop the run: it may not roll back, or there is nothing to go back to.
        """
        moment = self._now()
        if self._over:
            msg = "the episode is over: reset() begins another"
            raise gymnasium.error.ResetNeeded(msg)
        if not self.action_space.contains(np.int64(action)):
            msg = f"an action is a number from 0 to {len(self.actions) - 1}. Received: {action}"
            raise gymnasium.error.InvalidAction(msg)
        asked = self.actions[int(action)]
        refused = not moment.mask.allows(asked)
        rewards: list[RewardBreakdown | None] = [*self._owed]
        self._over = True  # should the governor stop it
        for asking in (WAIT if refused else asked, *[WAIT] * (self.decide_every - 1)):
            if moment.rolled_back or moment.over:
                break
            moment = self.play.act(self._instead(moment.mask) if asking.op is Op.WAIT else asking)
            rewards.append(moment.reward)
        self._moment, self._owed, self._over = moment, [], moment.rolled_back or moment.over
        info = {**self._info(moment), "refused": refused, **_paid(rewards)}
        return self._seen(moment), math.fsum(info["terms"].values()), moment.rolled_back, moment.over, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Which of the actions are possible now, as agents that mask their choices ask for it."""
        mask = self._now().mask
        return np.array([mask.allows(action) for action in self.actions], dtype=np.bool_)

    def close(self) -> None:
        """Let the networks go, unless they are somebody else's."""
        self._moment, self._over = None, True
        if self._owns:
            self.play.close()

    def _next_seed(self) -> int:
        if not self._to_come:
            self._to_come = [self.seeds[place] for place in self.np_random.permutation(len(self.seeds))]
        return self._to_come.pop(0)

    def _now(self) -> Moment:
        if self._moment is None:
            msg = "no episode has begun: reset() begins one"
            raise gymnasium.error.ResetNeeded(msg)
        return self._moment

    def _instead(self, mask: ActionMask) -> Action:
        """What is done in place of nothing."""
        if self.auto_fossilise:
            ready = (Action(Op.FOSSILISE, slot) for slot in self.play.space.slots)
            return next(filter(mask.allows, ready), WAIT)
        return WAIT

    def _seen(self, moment: Moment) -> Numbers:
        return numbers_of(self.play.space, moment.observation, moment.mask)

    def _info(self, moment: Moment) -> Told:
        told: Told = {"seed": self._seed, "action_mask": self.action_masks().astype(np.int8)}
        if moment.ending is not None:
            told["test_metric"] = moment.ending.test_metric
            told["twin_test_metric"] = self.play.twin.ending.test_metric
            told["grown"] = tuple(f"{one.slot} {one.blueprint}" for one in moment.ending.growth)
        return told


def _paid(rewards: Sequence[RewardBreakdown | None]) -> Told:
    """The terms of several steps together, and whether one of them is unknown."""
    known: list[Mapping[str, float]] = [one.terms for one in rewards if one is not None]
    names = dict.fromkeys(name for terms in known for name in terms)
    terms = {name: math.fsum(one.get(name, 0.0) for one in known) for name in names}
    return {"terms": terms, "reward_unknown": len(known) < len(rewards)}


def _candidates(space: ActionSpace) -> tuple[tuple[str, str], ...]:
    return tuple((slot, blueprint) for slot, blueprints in space.blueprints.items() for blueprint in blueprints)


def _check(
    configuration: object, overrides: Sequence[str], seeds: Sequence[int], every: int, actions: Sequence[Action] | None
) -> None:
    """ValueError for what no environment can be made of."""
    if isinstance(configuration, Play | Remembered) and overrides:
        msg = f"what plays already is overridden no more; give its file. Received: overrides={list(overrides)}"
        raise ValueError(msg)
    if len(seeds) == 0 or min(seeds) < 0:
        msg = f"seeds are whole numbers from 0, one at least. Received: {seeds}"
        raise ValueError(msg)
    if every < 1:
        msg = f"decide_every is a number of decision steps, 1 at least. Received: {every}"
        raise ValueError(msg)
    if actions is not None and (not actions or actions[0] != WAIT):
        msg = f"the first of the actions is WAIT, which is always possible. Received: {actions}"
        raise ValueError(msg)


gymnasium.register(NAME, entry_point="esper_tasks.gymnasium_face:GrowthEnv")
