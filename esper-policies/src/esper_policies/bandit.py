"""A bandit: learns over episodes which blueprint pays in which slot, by Thompson sampling.

An arm is a slot and a blueprint. Its worth is the sum of the rewards of an episode in which it was germinated. The
belief is the conjugate prior for a normal with unknown mean and variance, normal and inverse-gamma: the mean follows
Student's t. A reward's unit is unknown, so the prior is scaled by the root mean square of all returns so far, or 1.
"""

from __future__ import annotations

import logging
import math
import random
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import WAIT, Action, Op, State
from esper_core.leyline.constants import RAMP_STEPS
from esper_policies.settings import WIDTH, BanditSettings, too_few_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from esper_core.leyline import ActionMask, ActionSpace, Observation, Played, Rollout


Arm = tuple[str, str]
"""A slot and a blueprint."""


NOISE: Final = 0.5
"""Prior standard deviation between an arm's episodes, in units of the usual size; weighs two episodes."""

LARGEST: Final = 1e100
"""Larger rewards are ignored: their squares overflow."""


@dataclass(frozen=True, slots=True)
class Belief:
    """Belief about an arm's worth: Student's t around ``mean`` with scale ``deviation``."""

    mean: float
    deviation: float
    freedom: float

    def guess(self, draw: random.Random) -> float:
        """Draw a worth from the belief."""
        strength = draw.gammavariate(self.freedom / 2, 2 / self.freedom)
        return self.mean + self.deviation * draw.gauss(0.0, 1.0) / math.sqrt(strength)


@dataclass(frozen=True, slots=True)
class Record:
    """The returns of an arm: count, mean, and sum of squared deviations."""

    pulls: int = 0
    mean: float = 0.0
    spread: float = 0.0

    def and_then(self, brought: float) -> Record:
        """Return the record with one more episode.

        >>> Record().and_then(2.0).and_then(4.0)
        Record(pulls=2, mean=3.0, spread=2.0)
        """
        pulls, off = self.pulls + 1, brought - self.mean
        mean = self.mean + off / pulls
        return Record(pulls, mean, self.spread + off * (brought - mean))

    def belief(self, size: float, width: float = WIDTH) -> Belief:
        """Return the belief, given the usual ``size`` of returns and the prior ``width``.

        >>> Record().belief(size=10.0)
        Belief(mean=0.0, deviation=20.0, freedom=2.0)
        """
        noise, weight = NOISE * size, (NOISE / width) ** 2
        total = weight + self.pulls
        mean = self.pulls * self.mean / total
        shape = 1 + self.pulls / 2
        scale = noise**2 + (self.spread + weight * mean * self.mean) / 2
        return Belief(mean, math.sqrt(scale / (shape * total)), 2 * shape)


def size_of(records: Iterable[Record]) -> float:
    """Return the root mean square of all returns; 1 if there are none."""
    told = [record for record in records if record.pulls]
    squares = math.fsum(record.spread + record.pulls * record.mean**2 for record in told)
    return math.sqrt(squares / sum(record.pulls for record in told)) if squares > 0 else 1.0


def best_of_each_slot(worth: Mapping[Arm, float]) -> list[Arm]:
    """Return for each slot its best arm of positive worth, the best first; of equals the first one."""
    paying = sorted((arm for arm, value in worth.items() if value > 0), key=lambda arm: -worth[arm])
    return [arm for place, arm in enumerate(paying) if arm[0] not in {slot for slot, _ in paying[:place]}]


@dataclass(frozen=True, slots=True)
class Harvest:
    """An episode with all its parts: the arms in order, and the return; None if it is unknown."""

    planted: tuple[Arm, ...]
    brought: float | None

    def lessons(self) -> list[tuple[Arm, float]]:
        """Return an equal share of the return for each arm; nothing if the return is unknown."""
        if self.brought is None:
            return []
        return [(arm, self.brought / len(self.planted)) for arm in self.planted]


def harvests(episodes: Sequence[Played]) -> list[Harvest]:
    """Return the arms and return of each episode; parts that a rollback cut apart count as one episode.

    The part after a rollback follows directly, and begins at a later step than the part before; an episode begins with
    step 0.
    """
    wholes: list[list[Played]] = []
    for one in episodes:
        before = wholes[-1][-1] if wholes else None
        goes_on = before is not None and before.terminated and _begins(one) > before.final.step
        if goes_on:
            wholes[-1].append(one)
        else:
            wholes.append([one])
    return [_harvest(parts) for parts in wholes]


def _begins(one: Played) -> int:
    return one.turns[0].observation.step if one.turns else 0


def _harvest(parts: Sequence[Played]) -> Harvest:
    turns = [turn for part in parts for turn in part.turns]
    planted = dict.fromkeys(
        (turn.action.slot, turn.action.blueprint)
        for turn in turns
        if turn.action.op is Op.GERMINATE and turn.action.slot is not None and turn.action.blueprint is not None
    )
    rewards = [turn.reward.total for turn in turns if turn.reward is not None]
    brought = math.fsum(rewards) if rewards and all(abs(one) < LARGEST for one in rewards) else None
    return Harvest(tuple(planted), brought)


log = logging.getLogger("esper")

UNPAID_ROUNDS: Final = 3
"""Rounds without any reward after which a warning is logged."""

UNSURE_ROUNDS: Final = 10
"""Rounds after which a warning is logged if no arm is known to be better or worse than planting nothing."""

SURE: Final = 2.0
"""Distance of an arm's mean from 0, in deviations, from which on its sign counts as known."""


@dataclass(frozen=True, slots=True)
class _Episode:
    """One environment's episode: its number, its length, the arms to germinate, and those germinated."""

    number: int = 0
    steps: int = 0
    wishes: tuple[Arm, ...] = ()
    planted: tuple[Arm, ...] = ()

    def plain(self) -> list[Any]:
        """Return the episode as JSON-compatible data."""
        return [self.number, self.steps, [list(arm) for arm in self.wishes], [list(arm) for arm in self.planted]]

    @classmethod
    def of(cls, plain: Sequence[Any]) -> _Episode:
        """Build an episode from what ``plain`` returned."""
        number, steps, *arms = plain
        wishes, planted = (tuple((slot, blueprint) for slot, blueprint in some) for some in arms)
        return cls(number, steps, wishes, planted)


class Bandit:
    """Germinates one arm in each episode, chosen by Thompson sampling over the returns of earlier episodes.

    An arm is a blueprint in a slot; its worth is the return of an episode in which it was germinated, so it includes
    the reward's price of growth. Doing nothing is worth 0, since rewards are relative to the twin. At the start of an
    episode a worth is drawn for each arm from the belief about it; the arm with the largest is germinated, unless all
    are below 0. So uncertain arms are explored, and arms that pay are used more and more. If ``seeds`` is above 1, the
    best arms of other slots follow, each after the one before it is kept or gone; the return is then shared equally
    among them, which is only an approximation.

    A seed is blended in after its preview, and kept, as soon as the mask allows it. It is never pruned: one that a gate
    refuses stays to the end, which counts in the arm's worth. Nothing is learnt from an episode whose arm could not be
    germinated or whose rewards are unknown. The policy does not observe the price: a new price needs new training.

    >>> from esper_core.leyline import ActionMask, ActionSpace, Observation, Signals, SlotSignals, SlotState
    >>> conv = ActionSpace({"early": ("blueprints/conv_light",)})
    >>> policy = Bandit(conv, first=0.0, learn=False)
    >>> tried = {"records": [["early", "blueprints/conv_light", 3, 7.5, 0.5]]}
    >>> policy.load_state_dict(State({**policy.state_dict().plain, **tried}))
    >>> free = SlotSignals("early", SlotState.FREE, fossils=0)
    >>> seen = Observation(0, 40, Signals(0, 2.3, 2.3, 0.1, parameters=10, host_parameters=10, slots=(free,)))
    >>> mask = ActionMask({"early": frozenset({Op.GERMINATE})}, {"early": ("blueprints/conv_light",)})
    >>> [action] = policy.act([seen], [mask])
    >>> str(action.op), action.slot, action.blueprint
    ('germinate', 'early', 'blueprints/conv_light')

    space: the run's slots and blueprints.
    seed, seeds, preview, first, speed, width, learn, explore_rounds: as ``settings.BanditSettings`` says.
    """

    def __init__(
        self,
        space: ActionSpace,
        *,
        seed: int = 0,
        seeds: int = 1,
        preview: int = 5,
        first: float = 0.1,
        speed: int = RAMP_STEPS,
        width: float = WIDTH,
        learn: bool = True,
        explore_rounds: int | None = None,
    ) -> None:
        self.space = space
        self.settings = BanditSettings(
            seed=seed,
            seeds=seeds,
            preview=preview,
            first=first,
            speed=speed,
            width=width,
            learn=learn,
            explore_rounds=explore_rounds,
        )
        self.arms: tuple[Arm, ...] = tuple((slot, name) for slot in space.slots for name in space.blueprints[slot])
        self._records: dict[Arm, Record] = {}
        self._episodes: list[_Episode] = []
        self._rounds = 0
        self._rewarded = False
        self._warned: list[str] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return for each environment the next action for its seed, else WAIT."""
        self._episodes += [_Episode() for _ in observations[len(self._episodes) :]]
        return [self._one(place, *seen) for place, seen in enumerate(zip(observations, masks, strict=True))]

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learn from the returns of a round's episodes.

        Returns:
            ``explored``, the share of episodes that did not begin with the arm of the best mean; ``taught``, the number
            of episodes it learnt from; and for each arm its number of pulls, mean and deviation.
        """
        found = harvests(rollout.episodes)
        best = next(iter(best_of_each_slot({arm: one.mean for arm, one in self.beliefs().items()})), None)
        explored = sum((one.planted[0] if one.planted else None) != best for one in found)
        lessons = [one.lessons() if self.settings.learn else [] for one in found]
        for arm, brought in (lesson for some in lessons for lesson in some):
            self._records[arm] = self._records.get(arm, Record()).and_then(brought)
        self._rounds += 1
        self._rewarded = self._rewarded or any(one.brought is not None for one in found)
        self._warn(rollout.arm)
        told = {"explored": explored / max(1, len(found)), "taught": float(sum(map(bool, lessons)))}
        return {**told, **self._figures()}

    def beliefs(self) -> dict[Arm, Belief]:
        """Return the belief about the worth of each arm."""
        size = size_of(self._records.values())
        return {arm: self._records.get(arm, Record()).belief(size, self.settings.width) for arm in self.arms}

    def unfinished(self) -> list[tuple[str, ...]]:
        """Return for each environment a notice if the episode is too short for any seed to be kept."""
        return [self.impossible(episode.steps) for episode in self._episodes]

    def state_dict(self) -> State:
        """Return what it has learnt, and its memory of each environment's episode."""
        records = [[*arm, one.pulls, one.mean, one.spread] for arm, one in self._records.items()]
        return State(
            {
                "episodes": [episode.plain() for episode in self._episodes],
                "records": records,
                "rounds": self._rounds,
                "rewarded": self._rewarded,
                "warned": list(self._warned),
            }
        )

    def load_state_dict(self, state: State) -> None:
        """Restore what was learnt and remembered; records of arms that this run lacks are kept."""
        told = state.plain
        self._episodes = [_Episode.of(plain) for plain in told["episodes"]]
        self._records = {(slot, name): Record(*numbers) for slot, name, *numbers in told["records"]}
        self._rounds, self._rewarded = told["rounds"], told["rewarded"]
        self._warned = list(told["warned"])

    def _one(self, place: int, observation: Observation, mask: ActionMask) -> Action:
        episode = self._episodes[place]
        if observation.step == 0 or not episode.steps:
            number = episode.number + (observation.step == 0)
            episode = _Episode(number, observation.steps, self._wishes(number, place))
        action = next((found for found in self._moves(observation, episode) if mask.allows(found)), WAIT)
        if action.op is Op.GERMINATE and action.slot is not None and action.blueprint is not None:
            episode = replace(episode, planted=(*episode.planted, (action.slot, action.blueprint)))
        self._episodes[place] = episode
        return action

    def _wishes(self, number: int, place: int) -> tuple[Arm, ...]:
        """Return the arms to try in an episode, the most promising first."""
        last = self.settings.explore_rounds
        tries = self.settings.learn and (last is None or self._rounds < last)
        guesses = {}
        for arm, belief in self.beliefs().items():
            key = "\n".join(map(str, (self.settings.seed, number, place, *arm, "guess")))
            draw = random.Random(int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big"))
            guesses[arm] = belief.guess(draw) if tries else belief.mean
        return tuple(best_of_each_slot(guesses)[: self.settings.seeds])

    def _moves(self, observation: Observation, episode: _Episode) -> Iterator[Action]:
        """Yield what to do now, if legal: germinate the next arm, fossilise, advance after the preview.

        It germinates only after the previous seed was kept or pruned.
        """
        living = [(slot.name, seed) for slot in observation.signals.slots for seed in slot.seeds]
        unsettled = {slot for slot, _ in episode.planted} & {slot for slot, _ in living}
        if not unsettled and self._can_germinate_at(observation.step, observation.steps):
            wishes = [arm for arm in episode.wishes if arm not in episode.planted]
            yield from (Action(Op.GERMINATE, *arm, speed=self.settings.speed) for arm in wishes)
        yield from (Action(Op.FOSSILISE, slot) for slot, _ in living)
        ready = [(slot, seed) for slot, seed in living if seed.age is None or seed.age >= self.settings.preview]
        yield from (Action(Op.ADVANCE, slot, seed.blueprint) for slot, seed in ready)

    def _can_germinate_at(self, step: int, steps: int) -> bool:
        """Return whether it is not too early, and there is time for a preview and to blend in."""
        return step >= self.settings.first * steps and step + self.settings.preview + self.settings.speed < steps

    def impossible(self, steps: int) -> tuple[str, ...]:
        """Return a notice if an episode of so many steps is too short for any seed to be kept."""
        own = self.settings
        life = f"a preview of {own.preview} and a ramp of {own.speed}"
        return too_few_steps(steps, lambda n: self._can_germinate_at(math.ceil(own.first * n), n), life)

    def _figures(self) -> dict[str, float]:
        """Return the number of pulls, mean and deviation of each arm."""
        figures = {}
        for (slot, name), belief in self.beliefs().items():
            figures[f"{slot}/{name}/pulls"] = float(self._records.get((slot, name), Record()).pulls)
            figures[f"{slot}/{name}/mean"] = belief.mean
            figures[f"{slot}/{name}/deviation"] = belief.deviation
        return figures

    def _warn(self, arm: str) -> None:
        """Warn once about each condition that makes learning pointless."""
        known = [one for one in self.arms if one in self._records]
        unsure = all(abs(one.mean) <= SURE * one.deviation for one in self.beliefs().values())
        faults = {
            "ignorant": (
                not self.settings.learn and not known,
                "it knows the worth of no seed and does not learn (learn: false), so it germinates nothing",
            ),
            "unpaid": (
                self.settings.learn and not self._rewarded and self._rounds >= UNPAID_ROUNDS,
                f"all rewards of {self._rounds} rounds are unknown, so nothing is learnt and choices are random; "
                "rewards need a twin (twin: true)",
            ),
            "unsure": (
                self.settings.learn and self._rewarded and self._rounds >= UNSURE_ROUNDS and unsure,
                f"after {self._rounds} rounds no seed is known to be better or worse than none: each mean is within "
                f"{SURE:g} deviations of 0",
            ),
        }
        for name, (found, what) in faults.items():
            if found and name not in self._warned:
                self._warned.append(name)
                log.warning("arm %s: bandit: %s", arm, what)
