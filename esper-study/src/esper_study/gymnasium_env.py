"""A gymnasium environment: an agent of another library decides what grows in the host of a configuration.

    from esper_study.gymnasium_env import GrowthEnv

    env = GrowthEnv("study.yaml", seeds=range(16))
    observation, info = env.reset()
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample(info["action_mask"]))

Needs the extra: ``pip install "esper-study[gymnasium]"``. Importing this module registers ``esper/Growth-v0``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from esper_core.leyline import WAIT, Action, Op
from esper_core.leyline.constants import RAMP_STEPS
from esper_policies.observations import CANDIDATE_COLUMNS, GLOBAL_COLUMNS, LIMIT, SLOT_COLUMNS, rows_of
from esper_run.app.episode import Episode

try:
    import gymnasium
except ModuleNotFoundError as error:
    message = 'esper_study.gymnasium_env needs gymnasium. Install it:  pip install "esper-study[gymnasium]"'
    raise ModuleNotFoundError(message, name=error.name) from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from esper_core.leyline import ActionMask, ActionSpace, Observation, RewardBreakdown
    from esper_run.app.episode import EpisodeStep

NAME: Final = "esper/Growth-v0"
SEEDS: Final = range(16)
"""Default seeds of the episodes: as many as ``Episode`` keeps twins of."""

Numbers = NDArray[np.float32]
Info = dict[str, Any]


def actions_of(
    space: ActionSpace, *, speed: int = RAMP_STEPS, single_out: bool = False, fossilise: bool = True
) -> tuple[Action, ...]:
    """Return the actions to choose from, in a fixed order: WAIT, then everything that can be done in each slot.

    >>> from esper_core.leyline import ActionSpace
    >>> [action.op.value for action in actions_of(ActionSpace({"early": ("blueprints/mlp",)}))]
    ['wait', 'germinate', 'advance', 'prune', 'fossilise']

    Args:
        space: The slots, with the blueprints that can germinate in each.
        speed: Steps that a change of alpha takes.
        single_out: Add ADVANCE and PRUNE for each blueprint, to tell several seeds of a nursery apart.
        fossilise: Include FOSSILISE.
    """
    actions = [WAIT]
    for slot, blueprints in space.blueprints.items():
        actions += [Action(Op.GERMINATE, slot, blueprint, speed=speed) for blueprint in blueprints]
        for blueprint in (None, *(blueprints if single_out else ())):
            actions += [Action(Op.ADVANCE, slot, blueprint), Action(Op.PRUNE, slot, blueprint, speed=speed)]
        actions += [Action(Op.FOSSILISE, slot)] if fossilise else []
    return tuple(actions)


def columns_of(space: ActionSpace) -> tuple[str, ...]:
    """Return the names of an observation's numbers: of the whole, then of each slot, then of each candidate.

    >>> from esper_core.leyline import ActionSpace
    >>> columns = columns_of(ActionSpace({"early": ("blueprints/mlp",)}))
    >>> columns[0], columns[-1]
    ('progress', 'early blueprints/mlp rent?')
    """
    slots = [f"{slot} {column}" for slot in space.slots for column in SLOT_COLUMNS]
    candidates = [f"{slot} {name} {column}" for slot, name in _candidates(space) for column in CANDIDATE_COLUMNS]
    return (*GLOBAL_COLUMNS, *slots, *candidates)


def numbers_of(space: ActionSpace, observation: Observation, mask: ActionMask) -> Numbers:
    """Return an observation as one vector: the numbers of ``rows_of``, as ``columns_of`` names them."""
    rows = rows_of(space, observation, mask)
    candidates = dict(zip(rows.candidate_names, rows.candidates, strict=True))
    parts = [rows.whole, *rows.slots, *(candidates[name] for name in _candidates(space))]
    return np.concatenate([np.asarray(part, dtype=np.float32) for part in parts])


class GrowthEnv(gymnasium.Env[Numbers, np.int64]):
    """Episodes of one configuration, in which the agent grows the host and receives the reward of the run.

    The same RNG seed and actions give the same numbers, here and in ``esper run``. Observations are flat vectors within
    ±10, named by ``columns``. An action is an index into ``actions``; one that is not possible counts as WAIT.

    An episode is *terminated* by a rollback of the governor, and *truncated* at its last step or where the governor
    ends it early. A run that the governor would stop raises GovernorStop.

    ``info`` has the keys ``action_mask`` (int8), ``seed``, ``refused`` (the action was not possible), ``terms`` (of the
    reward) and ``reward_unknown`` (a reward could not be computed and counts as 0). At the end of an episode that was
    not terminated it also has ``test_metric``, ``twin_test_metric`` and ``grown``.

    Args:
        configuration: A configuration file, or an ``Episode`` of one.
        overrides: Changes to the file, as ``--set`` takes them.
        seeds: Environment seeds of the episodes, played in a random order, each once before any is repeated.
        decide_every: Steps from one decision to the next. The environment waits in between and adds up the rewards.
        speed: Steps that a change of alpha takes.
        auto_fossilise: Fossilise a seed where possible whenever the agent waits, and remove FOSSILISE from ``actions``.
        actions: Actions to choose from instead of ``actions_of``, WAIT first.

    Raises:
        ValueError: If an argument is out of range, or contradicts another one.
    """

    def __init__(
        self,
        configuration: Path | str | Episode,
        overrides: Sequence[str] = (),
        *,
        seeds: Sequence[int] = SEEDS,
        decide_every: int = 1,
        speed: int = RAMP_STEPS,
        auto_fossilise: bool = False,
        actions: Sequence[Action] | None = None,
    ) -> None:
        self._owns = not isinstance(configuration, Episode)
        _require(self._owns or not overrides, "overrides need a configuration file, not an Episode", overrides)
        _require(len(seeds) > 0 and min(seeds) >= 0, "seeds must be integers from 0, at least one", seeds)
        _require(decide_every >= 1, "decide_every must be at least 1", decide_every)
        _require(type(speed) is int and speed >= 0, "speed must be an integer from 0", speed)
        _require(actions is None or list(actions[:1]) == [WAIT], "the first of the actions must be WAIT", actions)
        self.play = configuration if isinstance(configuration, Episode) else Episode.of(configuration, overrides)
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
        self._latest: EpisodeStep | None = None
        self._moves = 0
        self._unpaid: list[RewardBreakdown | None] = []
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Numbers, Info]:
        """Begin the episode of ``seed``, or of the next of the environment's seeds, and train its first step.

        The reward of that step, usually 0, is added to the one of the first action.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._to_come = []
        self._seed = self._next_seed() if seed is None else seed
        self._over = True  # until the first step is trained: the governor may stop the run in it
        self._latest = step = self.play.begin(self._seed)
        self._moves = self.play.moves
        self._unpaid = [] if step.reward is None else [step.reward]
        self._over = False
        return self._numbers(step), self._info(step)

    def step(self, action: np.int64 | int) -> tuple[Numbers, float, bool, bool, Info]:
        """Carry out an action and train up to the next decision."""
        step = self._present()
        if self._over:
            msg = "the episode is over: call reset() to begin another one"
            raise gymnasium.error.ResetNeeded(msg)
        if self.play.moves != self._moves:
            msg = "the Episode was used by other code since the latest step: call reset() first"
            raise gymnasium.error.ResetNeeded(msg)
        if not self.action_space.contains(np.int64(action)):
            msg = f"an action is an integer from 0 to {len(self.actions) - 1}. Received: {action}"
            raise gymnasium.error.InvalidAction(msg)
        chosen = self.actions[int(action)]
        refused = not step.mask.allows(chosen)
        rewards, self._unpaid = self._unpaid, []
        self._over = True  # stays so if the governor stops the run
        for move in (WAIT if refused else chosen, *[WAIT] * (self.decide_every - 1)):
            if step.rolled_back or step.ending:
                break
            step = self.play.act(self._waiting(step.mask) if move.op is Op.WAIT else move)
            rewards.append(step.reward)
        over = step.ending is not None
        self._latest, self._moves, self._over = step, self.play.moves, step.rolled_back or over
        info = {**self._info(step), "refused": refused, **_summed(rewards)}
        return self._numbers(step), math.fsum(info["terms"].values()), step.rolled_back, over, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions are possible now, under the name that sb3-contrib's MaskablePPO calls."""
        mask = self._present().mask
        return np.array([mask.allows(action) for action in self.actions], dtype=np.bool_)

    def close(self) -> None:
        """Free the networks, unless the environment was built on an ``Episode`` of the caller's."""
        self._latest, self._over = None, True
        if self._owns:
            self.play.close()

    def _next_seed(self) -> int:
        if not self._to_come:
            self._to_come = [self.seeds[place] for place in self.np_random.permutation(len(self.seeds))]
        return self._to_come.pop(0)

    def _present(self) -> EpisodeStep:
        if self._latest is None:
            msg = "no episode has begun: call reset() first"
            raise gymnasium.error.ResetNeeded(msg)
        return self._latest

    def _waiting(self, mask: ActionMask) -> Action:
        """Return the number of the action WAIT."""
        if self.auto_fossilise:
            return next(filter(mask.allows, (Action(Op.FOSSILISE, slot) for slot in self.play.space.slots)), WAIT)
        return WAIT

    def _info(self, step: EpisodeStep) -> Info:
        info: Info = {"seed": self._seed, "action_mask": self.action_masks().astype(np.int8)}
        if step.ending is not None:
            info["test_metric"] = step.ending.test_metric
            info["twin_test_metric"] = self.play.twin.ending.test_metric
            info["grown"] = tuple(f"{growth.slot} {growth.blueprint}" for growth in step.ending.growth)
        return info

    def _numbers(self, step: EpisodeStep) -> Numbers:
        return numbers_of(self.play.space, step.observation, step.mask)


def _summed(rewards: Sequence[RewardBreakdown | None]) -> Info:
    """Return the terms of several steps, added up, and whether a reward is unknown."""
    paid = [reward.terms for reward in rewards if reward is not None]
    names = dict.fromkeys(name for terms in paid for name in terms)
    terms = {name: math.fsum(step_terms.get(name, 0.0) for step_terms in paid) for name in names}
    return {"terms": terms, "reward_unknown": len(paid) < len(rewards)}


def _candidates(space: ActionSpace) -> list[tuple[str, str]]:
    return [(slot, blueprint) for slot, blueprints in space.blueprints.items() for blueprint in blueprints]


def _require(valid: bool, rule: str, received: object) -> None:
    if not valid:
        msg = f"{rule}. Received: {received!r}"
        raise ValueError(msg)


gymnasium.register(NAME, entry_point="esper_study.gymnasium_env:GrowthEnv")
