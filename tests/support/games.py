"""Small decision problems with a known optimum, in the terms of a run; nothing is trained.

    contextual  one decision: the validation loss says which blueprint pays
    memory      the loss of the first step says which blueprint pays in the last step
    delayed     one blueprint pays at the end, the more the earlier it germinates; another pays a little at once

An episode depends on its seed and on the actions only. Seeds that germinate stay in training:
no game offers to advance, fossilise or prune them.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from esper_core import leyline
from esper_core.leyline import Action, ActionMask, ActionSpace, Observation, Op, RewardBreakdown, SlotState, Stage
from esper_core.leyline.protocols import Learner, Rollout, Trajectory, Turn
from esper_core.leyline.signals import SeedSignals, Signals, SlotSignals
from esper_core.leyline.specs import Candidate, SlotDescription

HOST: Final = 1000
"""Parameters of the host in every game."""

SEED: Final = 100
"""Parameters of the first blueprint of a slot; the second has twice as many, the third three times, and so on."""

BLUR: Final = 0.05
"""Largest difference between a loss and the level that it represents."""

Room = Mapping[str, tuple[str, ...]]
"""For each slot the blueprints that can germinate in it."""


Planted = tuple[str, int]
"""A living seed: its blueprint, and the step in which it germinated."""

Pay = Callable[[int, Action, Mapping[str, Planted]], Mapping[str, float]]
"""The terms of a step's reward: by step, the action in it, and the living seeds after it, by slot."""


@dataclass(frozen=True, slots=True)
class Hand:
    """The random part of one episode: for each step the loss to show and the possible actions, and what pays."""

    losses: Sequence[float]
    room: Sequence[Room]
    pay: Pay


@dataclass(frozen=True, slots=True)
class Game:
    """A decision problem whose optimum is known.

    Attributes:
        name: the game's name.
        space: its slots and blueprints.
        steps: of an episode.
        best: mean return of the best policy.
        worst_sane: mean return of waiting, or of uniformly random actions if that is more.
        deal: draws an episode.
    """

    name: str
    space: ActionSpace
    steps: int
    best: float
    worst_sane: float
    deal: Callable[[random.Random], Hand]


class Scene:
    """The episode of a seed, step by step."""

    def __init__(self, game: Game, seed: int) -> None:
        self.game, self._hand = game, game.deal(random.Random(seed))
        self._planted: dict[str, Planted] = {}
        self._step = 0

    def observe(self) -> tuple[Observation, ActionMask]:
        """Return the observation and the mask."""
        room = self._room()
        slots = tuple(self._slot(name, room) for name in self.game.space.slots)
        return Observation(self._step, self.game.steps, self._signals(slots)), self._mask(room)

    def act(self, action: Action) -> RewardBreakdown:
        """Take an action, which must be possible, and return its reward."""
        assert self._mask(self._room()).allows(action), action
        if action.op is Op.GERMINATE and action.slot is not None and action.blueprint is not None:
            self._planted[action.slot] = action.blueprint, self._step
        terms = self._hand.pay(self._step, action, self._planted)
        self._step += 1
        return RewardBreakdown(dict(terms))

    def _room(self) -> Room:
        room = self._hand.room[self._step]
        return {slot: blueprints for slot, blueprints in room.items() if slot not in self._planted}

    def _mask(self, room: Room) -> ActionMask:
        slots = self.game.space.slots
        return ActionMask(
            {name: frozenset({Op.GERMINATE} if name in room else ()) for name in slots},
            {name: room.get(name, ()) for name in slots},
            {name: {blueprint: frozenset()} for name, (blueprint, _) in self._planted.items()},
        )

    def _signals(self, slots: tuple[SlotSignals, ...]) -> Signals:
        loss = self._hand.losses[self._step]
        added = sum(seed.parameters for slot in slots for seed in slot.seeds)
        return Signals(self._step, loss, loss, math.exp(-loss), HOST + added, HOST, slots)

    def _slot(self, name: str, room: Room) -> SlotSignals:
        if name not in self._planted:
            return SlotSignals(name, SlotState.FREE if name in room else SlotState.EMBARGOED, fossils=0)
        blueprint, planted = self._planted[name]
        candidate = self.game.space.descriptions[name].candidate(blueprint)
        assert candidate is not None
        age = self._step - planted
        stage = Stage.TRAINING if age else Stage.GERMINATED
        seed = SeedSignals(blueprint, stage, 0.0, candidate.parameters, age)
        return SlotSignals(name, SlotState.OCCUPIED, fossils=0, seeds=(seed,))


def play(policy: leyline.Policy, game: Game, episodes: int, first_seed: int = 0, round_: int = 0) -> Rollout:
    """Play episodes side by side, with seeds from ``first_seed`` on; return them as a learner gets them.

    The policy is called once in each step for all episodes, as in a run.
    """
    scenes = [Scene(game, first_seed + number) for number in range(episodes)]
    turns: list[list[Turn]] = [[] for _ in scenes]
    for _ in range(game.steps):
        observations, masks = zip(*(scene.observe() for scene in scenes), strict=True)
        actions = policy.act(observations, masks)
        for place, seen in enumerate(zip(observations, masks, actions, strict=True)):
            turns[place].append(Turn(*seen, scenes[place].act(seen[2])))
    played = tuple(Trajectory(tuple(episode_turns)) for episode_turns in turns)
    return Rollout(game.name, round_, played)


def score(rollout: Rollout) -> float:
    """Return the mean return of the episodes. An unknown reward counts as zero."""
    returns = [
        math.fsum(turn.reward.total for turn in episode.turns if turn.reward) for episode in rollout.trajectories
    ]
    return math.fsum(returns) / len(returns)


def learn(policy: leyline.Policy, game: Game, rounds: int, episodes: int, seed: int = 0) -> tuple[float, ...]:
    """Play rounds with new episodes, and let the policy learn after each; return the score of each round."""
    scores = []
    for round_ in range(rounds):
        rollout = play(policy, game, episodes, seed + round_ * episodes, round_)
        scores.append(score(rollout))
        if isinstance(policy, Learner):
            policy.update(rollout)
    return tuple(scores)


def contextual() -> Game:
    """Build a game of one decision: the validation loss says which of three blueprints pays 5.

    The loss is near 1, 2 or 3; the other two blueprints cost 1.
    """
    space = _space({"early": ("games/ash", "games/beech", "games/cedar")})
    paying = {1: "games/beech", 2: "games/cedar", 3: "games/ash"}

    def deal(draw: random.Random) -> Hand:
        level = draw.choice(list(paying))
        return Hand([_blurred(draw, level)], [space.blueprints], _prize(("early", paying[level]), cost=1.0))

    return Game("contextual", space, 1, best=5.0, worst_sane=(5.0 - 1.0 - 1.0) / 4, deal=deal)


def memory() -> Game:
    """Build a game whose first loss says which of two blueprints pays 5 in the last step; the other costs 5.

    That loss is near 1 or 3.

    In between no action is possible and the loss says nothing, so a policy without memory gets 0 on average.
    """
    space = _space({"early": ("games/left", "games/right")})
    paying = {1: "games/right", 3: "games/left"}
    steps = 4

    def deal(draw: random.Random) -> Hand:
        level = draw.choice(list(paying))
        losses = [_blurred(draw, level), *(_blurred(draw, 2) for _ in range(steps - 1))]
        return Hand(losses, [*({} for _ in range(steps - 1)), space.blueprints], _prize(("early", paying[level]), 5.0))

    return Game("memory", space, steps, best=5.0, worst_sane=0.0, deal=deal)


def delayed() -> Game:
    """Build a game of ten steps: an oak pays at the end, more if it germinates early; a daisy pays 1 at once.

    An oak costs 0.1 in each step from its first on, and pays 8 at the end if it germinates in step 0, a fifth less for
    each later step. A daisy pays 1 when it germinates, and nothing more. A weed only costs what an oak does.
    """
    steps, rent, tempting, harvest, season = 10, 0.1, 1.0, 8.0, 5
    oak, daisy, weed = "games/oak", "games/daisy", "games/weed"
    space = _space({"early": (daisy, oak, weed)})

    def crop(planted: int) -> float:
        return harvest * max(0.0, 1.0 - planted / season)

    def pay(step: int, action: Action, planted: Mapping[str, Planted]) -> Mapping[str, float]:
        plant, begun = planted.get("early", (daisy, step))
        return {
            "rent": 0.0 if plant == daisy else -rent,
            "daisy": tempting if action.op is Op.GERMINATE and action.blueprint == daisy else 0.0,
            "harvest": crop(begun) if plant == oak and step == steps - 1 else 0.0,
        }

    def deal(draw: random.Random) -> Hand:
        return Hand([_blurred(draw, 2) for _ in range(steps)], [space.blueprints] * steps, pay)

    # Uniformly random actions wait with probability 1/4 in each step.
    chance = math.fsum(
        0.25 ** (step + 1) * (crop(step) + tempting - 2 * rent * (steps - step)) for step in range(steps)
    )
    return Game("delayed", space, steps, best=crop(0) - rent * steps, worst_sane=max(0.0, chance), deal=deal)


GAMES: Final[Mapping[str, Callable[[], Game]]] = {game.__name__: game for game in (contextual, memory, delayed)}


def _prize(paying: tuple[str, str], cost: float) -> Pay:
    """Return the reward of a step in which one slot and blueprint pays 5, others cost, and waiting pays nothing."""

    def pay(step: int, action: Action, planted: Mapping[str, Planted]) -> Mapping[str, float]:
        if action.op is Op.WAIT:
            return {"prize": 0.0}
        return {"prize": 5.0 if (action.slot, action.blueprint) == paying else -cost}

    return pay


def _space(blueprints: Room) -> ActionSpace:
    """Return the slots with their sites and candidates."""
    descriptions = {}
    for number, (slot, names) in enumerate(blueprints.items()):
        sizes = [(name, SEED * (1 + order)) for order, name in enumerate(names)]
        candidates = tuple(Candidate(name, size, 2 * size, identity=False) for name, size in sizes)
        descriptions[slot] = SlotDescription("vector", 8, (), number / len(blueprints), HOST, 2 * HOST, candidates)
    return ActionSpace(dict(blueprints), descriptions)


def _blurred(draw: random.Random, level: float) -> float:
    return level + draw.uniform(-BLUR, BLUR)
