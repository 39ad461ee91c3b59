"""Can a learner find what is best, where it is known? Small games, told in the terms of a run, in which nothing trains.

    from esper_testing.games import contextual, learn

    scores = learn(my_policy, contextual(), rounds=50, episodes=32)    # the mean return of each round; 5 is the optimum

    contextual  one decision: the validation loss says which blueprint pays
    memory      what is shown in the first step, and only there, says what pays in the last
    delayed     who plants early is paid at the very end; something else tempts at once
    masked      what is possible changes from step to step, and so does which of it is best
    endless     a stream of rewards that the horizon cuts; nothing can be decided
    arms        blueprints whose worth is fixed and hidden in noise: for a bandit

A game is what ``begin`` makes of a seed, and the player's actions; no other chance plays a part. The seeds that a
player plants only stand there: they never ask to be advanced or kept.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final

from esper_core.leyline import (
    ActionMask,
    ActionSpace,
    Learner,
    Observation,
    Op,
    Played,
    RewardBreakdown,
    Rollout,
    SeedSignals,
    Signals,
    SlotSignals,
    SlotState,
    Stage,
    Turn,
)
from esper_core.leyline.specs import Candidate, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline import Action, Policy

HOST: Final = 1000
"""Parameters of the host in every game."""

SEED: Final = 100
"""Parameters of the first blueprint of a slot; the second has twice as many, the third three times, and so on."""

BLUR: Final = 0.05
"""By how much a loss that is shown may be off."""

Room = Mapping[str, tuple[str, ...]]
"""For each slot the blueprints that could germinate in it."""


@dataclass(frozen=True, slots=True)
class Planted:
    """What grows in a slot, and since which step."""

    blueprint: str
    step: int


Pay = Callable[[int, "Action", Mapping[str, Planted]], Mapping[str, float]]
"""The terms of a step's reward: by step, the action in it, and what is planted after it, by slot."""


@dataclass(frozen=True, slots=True)
class Hand:
    """What chance dealt for one episode: for each step the loss to show and what is possible; and what pays."""

    losses: Sequence[float]
    room: Sequence[Room]
    pay: Pay


@dataclass(frozen=True, slots=True)
class Game:
    """A decision problem whose optimum is known.

    best: what the best player gets for an episode, on average. worst_sane: what one gets who never acts, or does any of
    the things that are possible, each as likely: whichever is more. rooted: whether what is planted stays to the end,
    and its slot is taken; otherwise it is gone at once.
    """

    name: str
    space: ActionSpace
    steps: int
    best: float
    worst_sane: float
    deal: Callable[[random.Random], Hand]
    rooted: bool = True

    def begin(self, seed: int) -> Scene:
        """An episode; with the same seed the same one."""
        return Scene(self, self.deal(random.Random(seed)))


class Scene:
    """One episode of a game: look, act, and be paid, until it is over."""

    def __init__(self, game: Game, hand: Hand) -> None:
        self.game = game
        self._hand = hand
        self._planted: dict[str, Planted] = {}
        self._step = 0

    @property
    def over(self) -> bool:
        """Whether there is nothing more to decide."""
        return self._step >= self.game.steps

    def observe(self) -> tuple[Observation, ActionMask]:
        """What can be seen and done. When it is over: the last step once more, as it was left, and nothing to do."""
        step = min(self._step, self.game.steps - 1)
        room = self._room(step)
        slots = tuple(self._slot(name, room, step) for name in self.game.space.slots)
        observation = Observation(step, self.game.steps, self._signals(step, slots))
        return observation, self._mask(room).shut() if self.over else self._mask(room)

    def act(self, action: Action) -> RewardBreakdown:
        """Carry out what is possible, and pay for it. ValueError for what is not, and after the end."""
        if self.over:
            msg = f"the episode is over after {self.game.steps} steps. Received: {action}"
            raise ValueError(msg)
        room = self._room(self._step)
        if not self._mask(room).allows(action):
            possible = f"possible is to wait, or to germinate {dict(room)}"
            msg = f"step {self._step} of {self.game.name}: {possible}. Received: {action}"
            raise ValueError(msg)
        planted = dict(self._planted)
        if action.op is Op.GERMINATE and action.slot is not None and action.blueprint is not None:
            planted[action.slot] = Planted(action.blueprint, self._step)
        terms = self._hand.pay(self._step, action, planted)
        if self.game.rooted:
            self._planted = planted
        self._step += 1
        return RewardBreakdown(dict(terms))

    def _room(self, step: int) -> Room:
        return {slot: some for slot, some in self._hand.room[step].items() if some and slot not in self._planted}

    def _mask(self, room: Room) -> ActionMask:
        slots = self.game.space.slots
        return ActionMask(
            {name: frozenset({Op.GERMINATE} if name in room else ()) for name in slots},
            {name: room.get(name, ()) for name in slots},
            {name: {one.blueprint: frozenset()} for name, one in self._planted.items()},
        )

    def _signals(self, step: int, slots: tuple[SlotSignals, ...]) -> Signals:
        loss = self._hand.losses[step]
        added = sum(seed.parameters for slot in slots for seed in slot.seeds)
        return Signals(step, loss, loss, math.exp(-loss), HOST + added, HOST, slots)

    def _slot(self, name: str, room: Room, step: int) -> SlotSignals:
        if name not in self._planted:
            return SlotSignals(name, SlotState.FREE if name in room else SlotState.EMBARGOED, fossils=0)
        own = self._planted[name]
        candidate = self.game.space.places[name].candidate(own.blueprint)
        assert candidate is not None
        age = step - own.step
        stage = Stage.TRAINING if age else Stage.GERMINATED
        seed = SeedSignals(own.blueprint, stage, 0.0, candidate.parameters, age)
        return SlotSignals(name, SlotState.OCCUPIED, fossils=0, seeds=(seed,))


# Players.


def play(policy: Policy, game: Game, episodes: int, first_seed: int = 0, round_: int = 0) -> Rollout:
    """Play episodes side by side, with seeds from ``first_seed`` on, and keep them as a learner is given them.

    The policy is asked as a run asks it: in each step once for all episodes, also where it can only wait. ValueError
    where it does what its mask forbids.
    """
    scenes = [game.begin(first_seed + number) for number in range(episodes)]
    turns: list[list[Turn]] = [[] for _ in scenes]
    for _ in range(game.steps):
        observations, masks = zip(*(scene.observe() for scene in scenes), strict=True)
        actions = policy.act(observations, masks)
        for place, seen in enumerate(zip(observations, masks, actions, strict=True)):
            turns[place].append(Turn(*seen, scenes[place].act(seen[2])))
    finals = [scene.observe()[0] for scene in scenes]
    return Rollout(
        game.name, round_, tuple(Played(tuple(own), final) for own, final in zip(turns, finals, strict=True))
    )


def score(rollout: Rollout) -> float:
    """What an episode brought, on average. A reward that is unknown counts as none."""
    returns = [math.fsum(turn.reward.total for turn in one.turns if turn.reward) for one in rollout.episodes]
    return math.fsum(returns) / len(returns)


def learn(policy: Policy, game: Game, rounds: int, episodes: int, seed: int = 0) -> tuple[float, ...]:
    """Play rounds, each with episodes of its own, and let the policy learn after each; the score of each round."""
    scores = []
    for round_ in range(rounds):
        rollout = play(policy, game, episodes, seed + round_ * episodes, round_)
        scores.append(score(rollout))
        if isinstance(policy, Learner):
            policy.update(rollout)
    return tuple(scores)


# Games.


def contextual() -> Game:
    """One decision: the validation loss, near 1, 2 or 3, says which of three blueprints pays 5; the others cost 1."""
    space = _space({"early": ("games/ash", "games/beech", "games/cedar")})
    paying = {1: "games/beech", 2: "games/cedar", 3: "games/ash"}

    def deal(draw: random.Random) -> Hand:
        level = draw.choice(list(paying))

        def pay(step: int, action: Action, planted: Mapping[str, Planted]) -> Mapping[str, float]:
            if action.op is Op.WAIT:
                return {"prize": 0.0}
            return {"prize": 5.0 if action.blueprint == paying[level] else -1.0}

        return Hand([_blurred(draw, level)], [space.blueprints], pay)

    return Game("contextual", space, 1, best=5.0, worst_sane=(5.0 - 1.0 - 1.0) / 4, deal=deal)


def memory() -> Game:
    """The loss of the first step, near 1 or 3, says which of two blueprints brings 5 in the last; the other costs 5.

    In between nothing is possible, and nothing of it can be seen: who does not remember gets 0, whatever it does.
    """
    space = _space({"early": ("games/left", "games/right")})
    paying = {1: "games/right", 3: "games/left"}
    steps = 4

    def deal(draw: random.Random) -> Hand:
        level = draw.choice(list(paying))

        def pay(step: int, action: Action, planted: Mapping[str, Planted]) -> Mapping[str, float]:
            if action.op is Op.WAIT:
                return {"prize": 0.0}
            return {"prize": 5.0 if action.blueprint == paying[level] else -5.0}

        losses = [_blurred(draw, level), *(_blurred(draw, 2) for _ in range(steps - 1))]
        return Hand(losses, [*({} for _ in range(steps - 1)), space.blueprints], pay)

    return Game("memory", space, steps, best=5.0, worst_sane=0.0, deal=deal)


def delayed() -> Game:
    """One slot, ten steps: an oak pays at the very end, the more the earlier it was planted; a daisy pays 1 at once.

    An oak costs 0.1 in each step from the first on, and brings 8 at the end where it was planted in step 0, a fifth
    less for each step later. A daisy brings 1 when it is planted, and nothing more. A weed costs what an oak does.
    """
    steps, rent, tempting, harvest, season = 10, 0.1, 1.0, 8.0, 5
    oak, daisy, weed = "games/oak", "games/daisy", "games/weed"
    space = _space({"early": (daisy, oak, weed)})

    def crop(planted: int) -> float:
        return harvest * max(0.0, 1.0 - planted / season)

    def pay(step: int, action: Action, planted: Mapping[str, Planted]) -> Mapping[str, float]:
        own = planted.get("early")
        costs = own is not None and own.blueprint != daisy
        ripe = own is not None and own.blueprint == oak and step == steps - 1
        return {
            "rent": -rent if costs else 0.0,
            "daisy": tempting if action.op is Op.GERMINATE and action.blueprint == daisy else 0.0,
            "harvest": crop(own.step) if own is not None and ripe else 0.0,
        }

    def deal(draw: random.Random) -> Hand:
        return Hand([_blurred(draw, 2) for _ in range(steps)], [space.blueprints] * steps, pay)

    # Of whom chance decides for, one in four waits in each step.
    chance = math.fsum(
        0.25 ** (step + 1) * (crop(step) + tempting - 2 * rent * (steps - step)) for step in range(steps)
    )
    return Game("delayed", space, steps, best=crop(0) - rent * steps, worst_sane=max(0.0, chance), deal=deal)


def masked() -> Game:
    """Four steps; in each some of two blueprints in two slots are possible. The best that is pays 2, the others cost 1.

    Which is best the validation loss says: near 1, 2 or 3 each step, it stands for an order of the four.
    """
    space = _space({"early": ("games/fern", "games/moss"), "late": ("games/fern", "games/moss")})
    every = [(slot, name) for slot, names in space.blueprints.items() for name in names]
    orders = {1: (0, 1, 2, 3), 2: (3, 0, 1, 2), 3: (1, 2, 3, 0)}
    some = [chosen for chosen in product((False, True), repeat=len(every)) if any(chosen)]
    steps, prize, loss = 4, 2.0, -1.0

    def deal(draw: random.Random) -> Hand:
        levels = [draw.choice(list(orders)) for _ in range(steps)]
        possible = [draw.choice(some) for _ in range(steps)]
        best = [
            next(every[one] for one in orders[level] if chosen[one])
            for level, chosen in zip(levels, possible, strict=True)
        ]

        def pay(step: int, action: Action, planted: Mapping[str, Planted]) -> Mapping[str, float]:
            if action.op is Op.WAIT:
                return {"prize": 0.0}
            return {"prize": prize if (action.slot, action.blueprint) == best[step] else loss}

        room = [_by_slot([pair for pair, yes in zip(every, chosen, strict=True) if yes]) for chosen in possible]
        return Hand([_blurred(draw, level) for level in levels], room, pay)

    chance = math.fsum((prize + loss * (sum(chosen) - 1)) / (sum(chosen) + 1) for chosen in some) / len(some)
    return Game("masked", space, steps, steps * prize, max(0.0, steps * chance), deal, rooted=False)


def endless(steps: int = 10) -> Game:
    """Each step brings 1, whatever is done, and would go on doing so: only the horizon ends it.

    Whoever says what is to be expected from a state on has to count what would have come behind the horizon.
    """
    space = _space({"early": ("games/stone",)})

    def deal(draw: random.Random) -> Hand:
        losses = [_blurred(draw, 2) for _ in range(steps)]
        return Hand(losses, [space.blueprints] * steps, lambda *_: {"stream": 1.0})

    return Game("endless", space, steps, float(steps), float(steps), deal, rooted=False)


WORTH: Final[Mapping[str, Mapping[str, float]]] = {
    "early": {"games/ash": 1.0, "games/beech": 4.0},
    "late": {"games/ash": -3.0, "games/beech": 2.0},
}
"""What each blueprint brings in each slot, on average, in ``arms``."""


def arms(worth: Mapping[str, Mapping[str, float]] = WORTH, noise: float = 2.0) -> Game:
    """One decision, and nothing to see: each blueprint has in each slot a worth of its own, hidden in normal noise."""
    space = _space({slot: tuple(names) for slot, names in worth.items()})
    every = [value for names in worth.values() for value in names.values()]

    def deal(draw: random.Random) -> Hand:
        luck = draw.gauss(0.0, noise)

        def pay(step: int, action: Action, planted: Mapping[str, Planted]) -> Mapping[str, float]:
            return {"worth": math.fsum(worth[slot][own.blueprint] + luck for slot, own in planted.items())}

        return Hand([_blurred(draw, 2)], [space.blueprints], pay)

    chance = math.fsum(every) / (len(every) + 1)
    return Game("arms", space, 1, max(0.0, *every), max(0.0, chance), deal)


GAMES: Final[Mapping[str, Callable[[], Game]]] = {
    "contextual": contextual,
    "memory": memory,
    "delayed": delayed,
    "masked": masked,
    "endless": endless,
    "arms": arms,
}


def _space(blueprints: Room) -> ActionSpace:
    """The slots, with what is known of them."""
    places = {}
    for number, (slot, names) in enumerate(blueprints.items()):
        candidates = tuple(_candidate(name, SEED * (1 + order)) for order, name in enumerate(names))
        places[slot] = Place("vector", 8, (), number / len(blueprints), HOST, 2 * HOST, candidates)
    return ActionSpace(dict(blueprints), places)


def _candidate(blueprint: str, parameters: int) -> Candidate:
    return Candidate(blueprint, parameters, 2 * parameters, 0, identity=False)


def _by_slot(pairs: Sequence[tuple[str, str]]) -> Room:
    return {slot: tuple(name for own, name in pairs if own == slot) for slot, _ in pairs}


def _blurred(draw: random.Random, level: float) -> float:
    return level + draw.uniform(-BLUR, BLUR)
