"""Does a policy decide as it must? Within its masks, once for each environment, and for each by itself.

Each check takes what builds the policy for an action space, and a number of slots; AssertionError where a promise is
broken.

Does a policy lose its memory with the process? Another one that is built alike has to go on in its place.

A policy that remembers something from step to step, or learns, is ``Resumable``. Of one that is not it is believed that
it has no memory, and that is tried: a fresh one takes over in the middle, and nobody may notice.

How is a policy played? On scenes, with every global generator set, so that what is played twice is played alike.

What could a policy be shown? Environments in any state, with the masks that the tables of the lifecycle allow.

What comes back of a state that was written into a checkpoint? The same, or an AssertionError that says why not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import (
    Action,
    ActionMask,
    ActionSpace,
    FollowsPlan,
    Learner,
    Metric,
    Observation,
    Op,
    Played,
    Resumable,
    RewardBreakdown,
    Rollout,
    SeedEvent,
    SlotState,
    Turn,
)
from esper_core.leyline.lifecycle import INCUBATING, may
from esper_testing.checks import NotApplicable
from esper_testing.reward_episodes import random_signals, random_slot
from esper_testing.sites import seeded
from esper_testing.states import same_state, written_and_read

if TYPE_CHECKING:
    from esper_core.leyline import Policy, SlotSignals


EVENTS: Final = {Op.ADVANCE: SeedEvent.ADVANCE, Op.PRUNE: SeedEvent.PRUNE, Op.FOSSILISE: SeedEvent.FOSSILISE}
STEPS: Final = 12
CROWDED: Final = 0.3
"""Share of the incubating seeds that have all other blueprints of their slot beside them."""

UNDONE: Final = 0.1
"""Share of the steps that the governor undid: then nothing is possible."""

METRIC: Final = Metric("accuracy")
STRANGER: Final = "elsewhere/never-seen"
"""A blueprint of no action space."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One environment at one step, as a policy is shown it."""

    observation: Observation
    mask: ActionMask


def space_of(slots: int, plugin: str = "tried") -> ActionSpace:
    """An action space with so many slots; each takes one to three blueprints."""
    names = [f"slot-{place}" for place in range(slots)]
    return ActionSpace(
        {
            name: tuple(f"{plugin}/blueprint-{number}" for number in range(1 + place % 3))
            for place, name in enumerate(names)
        }
    )


def episode(space: ActionSpace, seed: int, *, stranger: bool = False) -> list[Scene]:
    """One environment over an episode, in a new random state at each step.

    stranger: whether the seeds that live there are of a blueprint that is in no action space.
    """
    draw = random.Random(seed)
    return [_scene(space, draw, step, stranger) for step in range(STEPS)]


def side_by_side(episodes: Sequence[Sequence[Scene]]) -> list[tuple[list[Observation], list[ActionMask]]]:
    """For each step what a policy is shown of all environments together."""
    return [
        ([scene.observation for scene in step], [scene.mask for scene in step]) for step in zip(*episodes, strict=True)
    ]


def _scene(space: ActionSpace, draw: random.Random, step: int, stranger: bool) -> Scene:
    slots = tuple(_named(random_slot(draw, name), space, draw, stranger) for name in space.slots)
    signals = replace(random_signals(draw, METRIC, step), slots=slots)
    fitting = {slot.name: _fitting(slot, space, draw) for slot in slots}
    seeds = {slot.name: _possible(slot) for slot in slots if slot.seeds}
    ops = {slot.name: _ops(fitting[slot.name], seeds.get(slot.name, {})) for slot in slots}
    mask = ActionMask(ops, fitting, seeds)
    return Scene(Observation(step, STEPS, signals), mask.shut() if draw.random() < UNDONE else mask)


def _named(slot: SlotSignals, space: ActionSpace, draw: random.Random, stranger: bool) -> SlotSignals:
    """The slot with seeds of its own blueprints: one, or while they incubate sometimes several side by side."""
    if slot.living is None:
        return slot
    own = space.blueprints[slot.name]
    crowded = not stranger and slot.living.stage in INCUBATING and draw.random() < CROWDED
    names = [STRANGER] if stranger else draw.sample(own, len(own) if crowded else 1)
    return replace(slot, seeds=tuple(replace(slot.living, blueprint=name) for name in names))


def _fitting(slot: SlotSignals, space: ActionSpace, draw: random.Random) -> tuple[str, ...]:
    """A slot that is free takes some of its blueprints: others may have been withdrawn."""
    if slot.state is not SlotState.FREE:
        return ()
    return tuple(id_ for id_ in space.blueprints[slot.name] if draw.random() < 0.7)


def _possible(slot: SlotSignals) -> dict[str, frozenset[Op]]:
    return {
        seed.blueprint: frozenset(op for op, event in EVENTS.items() if may(seed.stage, event)) for seed in slot.seeds
    }


def _ops(fitting: tuple[str, ...], seeds: Mapping[str, frozenset[Op]]) -> frozenset[Op]:
    return frozenset({Op.GERMINATE} if fitting else ()).union(*seeds.values())


Maker = Callable[[ActionSpace], Any]
"""Builds the policy for an action space."""

Shown = tuple[Sequence["Observation"], Sequence["ActionMask"]]
"""What a policy is shown in one step of all its environments."""


def actions_in(policy: Policy, shown: Sequence[Shown], draw: int = 0) -> list[list[Action]]:
    """For each step the actions. draw: what torch, numpy and Python draw from."""
    with seeded(draw, elsewhere=draw):
        return [list(policy.act(observations, masks)) for observations, masks in shown]


def actions_by_environment(policy: Policy, episodes: Sequence[Sequence[Scene]], draw: int = 0) -> list[list[Action]]:
    """For each environment its actions over the episode."""
    steps = actions_in(policy, side_by_side(episodes), draw)
    return [[step[place] for step in steps if place < len(step)] for place in range(len(episodes))]


ENVIRONMENTS: Final = 3
USED: Final = (4, STEPS + 7)
"""Before these steps of two episodes one takes over that had played before it."""

ELSEWHERE: Final = 2
"""The number of an episode that only such a one has played."""

LESSONS: Final = 2
MEND: Final = "give the policy state() and load(state), which esper_core.leyline.Resumable describes"
COPIES: Final = "give copies of what goes on living"


def goes_on_where_another_left_off(make: Maker, slots: int) -> None:
    """Another takes over before each step, built alike: with its state, where it has one, or else afresh.

    Nobody notices: every step is decided as by one that stays, and what is unfinished is told as by that one.
    """
    space = space_of(slots)
    stays, twin, heir = (_built(make, space) for _ in range(3))
    for step, one in enumerate(_two_episodes(space)):
        if isinstance(stays, Resumable):
            heir = _with_state_of(heir, make, space, step, _unfinished(stays))
        else:
            heir = _built(make, space)
        decided = actions_in(stays, [one], draw=step)
        if decided != actions_in(twin, [one], draw=step):
            reason = "two fresh policies decide differently, so nobody could go on for the other"
            raise NotApplicable(reason)
        _demand_that_it_goes_on(heir, one, step, (decided, _unfinished(stays)))


def writes_down_what_it_remembers(make: Maker, slots: int) -> None:
    """After each step its state is what JSON and safetensors hold, and no later step changes it.

    To ask for it changes nothing. Skipped where there is no state.
    """
    space = space_of(slots)
    if not isinstance(_built(make, space), Resumable):
        reason = "it has no state() and load(state)"
        raise NotApplicable(reason)
    policy, unasked = _built(make, space), _built(make, space)
    for step, one in enumerate(_two_episodes(space)):
        given = policy.state()
        told, again, handed = (written_and_read(state) for state in (given, policy.state(), given))
        _expect(same_state(told, again), f"gives two states in a row, {_at(step)}, that are not the same")
        taker = _built(make, space)
        taker.load(handed)
        decided = [actions_in(one_of_them, [one], draw=step) for one_of_them in (policy, unasked, taker)]
        _expect(decided[0] == decided[1], f"decides otherwise, {_at(step)}, when it was asked for its state before")
        _expect(same_state(told, handed), f"changes, {_at(step)}, the state that it was given: {COPIES}")
        _expect(same_state(told, written_and_read(given)), f"changes, {_at(step)}, a state that it gave: {COPIES}")


def keeps_what_it_learnt(make: Maker, slots: int) -> None:
    """Who takes over from one that learnt decides as that one, and learns on as that one.

    Skipped where nobody learns.
    """
    space = space_of(slots)
    if not isinstance(_built(make, space), Learner):
        reason = "it does not learn: it has no update(rollout)"
        raise NotApplicable(reason)
    _expect(isinstance(_built(make, space), Resumable), f"learns, and loses it when a run is resumed: {MEND}")
    for lesson in range(LESSONS):
        first, heir = _built(make, space), _built(make, space)
        rounds = [_one_episode(space, 10 * lesson + number) for number in range(3)]
        middle = STEPS // 2
        _learn(first, rounds[0], actions_in(first, rounds[0], draw=0), 0)
        begun = actions_in(first, rounds[1][:middle], draw=1)
        given = first.state()
        told = written_and_read(given)
        heir.load(told)
        figures, played = [], []
        for policy in (first, heir):
            rest = actions_in(policy, rounds[1][middle:], draw=2)
            figures.append(_learn(policy, rounds[1], begun + rest, 1))
            played.append(rest + actions_in(policy, rounds[2], draw=3))
        untold = "has learnt what its state does not tell: another that loads it"
        _expect(played[0] == played[1], f"{untold} decides otherwise")
        _expect(figures[0] == figures[1], f"{untold} says {figures[1]} of its next update, and not {figures[0]}")
        _expect(same_state(told, written_and_read(given)), f"changes a state that it gave, as it learns: {COPIES}")


STATE_CHECKS: Final[tuple[Callable[[Maker, int], None], ...]] = (
    goes_on_where_another_left_off,
    writes_down_what_it_remembers,
    keeps_what_it_learnt,
)


def _with_state_of(policy: Any, make: Maker, space: ActionSpace, step: int, unfinished: Any) -> Any:
    """Another that has taken over; before some steps one that had already played."""
    told = written_and_read(policy.state())
    heir = _built(make, space)
    if step in USED:
        actions_in(heir, _one_episode(space, ELSEWHERE)[:-1], draw=step)
    heir.load(told)
    _expect(_unfinished(heir) == unfinished, f"another list of what is unfinished is told {_by_an_heir(step)}")
    return heir


def _demand_that_it_goes_on(heir: Any, shown: Shown, step: int, expected: Any) -> None:
    has_state = isinstance(heir, Resumable)
    if has_state:
        found = actions_in(heir, [shown], draw=step), _unfinished(heir)
        _expect(found == expected, f"goes on otherwise {_by_an_heir(step)}")
        return
    loses = "it remembers something, and a run that is resumed would lose it"
    try:
        found = actions_in(heir, [shown], draw=step), _unfinished(heir)
    except Exception as error:
        msg = f"raises {type(error).__name__}, {_at(step)}, where a fresh one takes over: {loses}: {MEND} ({error})"
        raise AssertionError(msg) from error
    # What is unfinished is asked for at the end of an episode.
    same = found == expected if (step + 1) % STEPS == 0 else found[0] == expected[0]
    _expect(same, f"goes on otherwise, {_at(step)}, where a fresh one takes over: {loses}: {MEND}")


def _by_an_heir(step: int) -> str:
    if step in USED:
        return f"{_at(step)}, by one that had played before it loaded the state: load(state) leaves what was there"
    return f"{_at(step)}, by another that has its state: state() leaves something out, or load(state) drops it"


# One policy.


def _built(make: Maker, space: ActionSpace) -> Any:
    with seeded(0):
        return make(space)


def _unfinished(policy: Any) -> list[list[str]]:
    return [list(notes) for notes in policy.unfinished()] if isinstance(policy, FollowsPlan) else []


# What it is shown, and told.


def _one_episode(space: ActionSpace, seed: int) -> list[Shown]:
    return list(side_by_side([episode(space, 1000 * place + seed) for place in range(ENVIRONMENTS)]))


def _two_episodes(space: ActionSpace) -> list[Shown]:
    return _one_episode(space, 0) + _one_episode(space, 1)


def _learn(policy: Any, shown: Sequence[Shown], actions: Sequence[Sequence[Action]], number: int) -> dict[str, str]:
    """What it says of its update by this episode; as text, for something that is no number is unlike itself."""
    draw = random.Random(number)
    episodes = []
    for place in range(ENVIRONMENTS):
        turns = [
            Turn(observations[place], masks[place], chosen[place], RewardBreakdown({"tried": draw.uniform(-1, 1)}))
            for (observations, masks), chosen in zip(shown, actions, strict=True)
        ]
        episodes.append(Played(tuple(turns), final=shown[-1][0][place]))
    with seeded(6):
        figures = policy.update(Rollout("tried", number, tuple(episodes)))
    return {str(name): repr(float(value)) for name, value in figures.items()}


def _at(step: int) -> str:
    return f"in step {step % STEPS} of episode {1 + step // STEPS}"


def _expect(kept: bool, broken: str) -> None:
    if not kept:
        raise AssertionError(broken)


PolicySettings = Mapping[str, Any] | Callable[[ActionSpace], Mapping[str, Any]]

EPISODES: Final = 5
OTHER_SEEDS: Final = range(20_011, 20_031)


@dataclass(frozen=True, slots=True)
class _Made:
    """What builds the policy with its settings."""

    factory: Callable[..., Any]
    settings: PolicySettings | None

    def __call__(self, space: ActionSpace, **changed: Any) -> Any:
        found = self.settings(space) if callable(self.settings) else self.settings
        return self.factory(space, **{**(found or {}), **changed})


def maker(factory: Callable[..., Any], settings: PolicySettings | None) -> Maker:
    """What builds the policy with its settings, which may depend on the action space."""
    return _Made(factory, settings)


def acts_within_its_mask(make: Maker, slots: int) -> None:
    """Every action is one that its mask allows."""
    space = space_of(slots)
    for seed in range(EPISODES):
        scenes = episode(space, seed)
        _demand_legal(actions_by_environment(make(space), [scenes]), scenes)


def acts_once_for_each_environment(make: Maker, slots: int) -> None:
    """There are as many actions as observations, and each is an Action."""
    space = space_of(slots)
    for environments in (1, 3, 5):
        policy = make(space)
        for observations, masks in side_by_side([episode(space, seed) for seed in range(environments)]):
            actions = policy.act(observations, masks)
            if len(actions) != environments or not all(isinstance(action, Action) for action in actions):
                msg = f"one Action for each of {environments} environments. Received: {list(actions)}"
                raise AssertionError(msg)


def batch_equals_single(make: Maker, slots: int) -> None:
    """An environment is decided upon alike when it is alone and when it stands beside others like it.

    A policy that draws by a ``seed`` of its own may draw otherwise for each environment, however many there are.
    """
    space = space_of(slots)
    _demand_no_sampling(make, space)
    draws = _draws_by_its_seed(make, space)
    for seed in range(EPISODES):
        scenes = episode(space, seed)
        alone = actions_by_environment(make(space), [scenes])[0]
        beside = actions_by_environment(make(space), [scenes] * 3)
        _demand_same(beside[0], alone, "alone, and as number 0 of three environments that are alike")
        if draws:
            for place, found in enumerate(actions_by_environment(make(space), [scenes] * 2)):
                _demand_same(beside[place], found, f"as number {place} of three environments and of two")
            continue
        for place in (1, 2):
            _demand_same(beside[place], alone, f"alone, and as number {place} of three environments that are alike")


def environments_do_not_mix(make: Maker, slots: int) -> None:
    """What is decided for an environment does not depend on what goes on in the one beside it."""
    space = space_of(slots)
    _demand_no_sampling(make, space)
    for seed in range(EPISODES):
        scenes = episode(space, seed)
        for place in (0, 1):
            decided = []
            for other in (100, 200):
                beside = episode(space, other + seed)
                pair = [scenes, beside] if place == 0 else [beside, scenes]
                decided.append(actions_by_environment(make(space), pair)[place])
            _demand_same(decided[0], decided[1], f"beside two different environments, as number {place}")


def repeats_itself(make: Maker, slots: int) -> None:
    """Two fresh policies decide alike on the same observations, when torch, numpy and Python draw the same numbers."""
    space = space_of(slots)
    for seed in range(EPISODES):
        scenes = episode(space, seed)
        _demand_same(
            actions_by_environment(make(space), [scenes])[0],
            actions_by_environment(make(space), [scenes])[0],
            "by two fresh policies",
        )


def survives_a_blueprint_that_it_never_saw(make: Maker, slots: int) -> None:
    """Other blueprints than usual in the action space, and in a slot one that is in none: it acts, and legally."""
    space = space_of(slots, plugin="unheard-of")
    for seed in range(EPISODES):
        scenes = episode(space, seed, stranger=True)
        try:
            actions = actions_by_environment(make(space), [scenes])
        except Exception as error:
            msg = f"raised {type(error).__name__} where a blueprint is new to it: {error}"
            raise AssertionError(msg) from error
        if len(actions[0]) == len(scenes):
            _demand_legal(actions, scenes)


CHECKS: Final[tuple[Callable[[Maker, int], None], ...]] = (
    acts_within_its_mask,
    acts_once_for_each_environment,
    batch_equals_single,
    environments_do_not_mix,
    repeats_itself,
    survives_a_blueprint_that_it_never_saw,
    *STATE_CHECKS,
)


def _draws_by_its_seed(make: Maker, space: ActionSpace) -> bool:
    """Whether it takes a ``seed``, and decides otherwise with another: one that draws seldom may do so with few."""
    if not isinstance(make, _Made):
        return False
    scenes = [episode(space, seed) for seed in range(EPISODES)]
    own = actions_by_environment(make(space), scenes)
    for seed in OTHER_SEEDS:
        try:
            other = make(space, seed=seed)
        except Exception:  # whatever it says to a setting that it does not have
            return False
        if actions_by_environment(other, scenes) != own:
            return True
    return False


def _demand_no_sampling(make: Maker, space: ActionSpace) -> None:
    for seed in range(EPISODES):
        scenes = episode(space, seed)
        if len({tuple(actions_by_environment(make(space), [scenes], draw)[0]) for draw in (1, 2)}) > 1:
            reason = "it samples its actions, so two of its decisions need not agree"
            raise NotApplicable(reason)


def _demand_legal(actions: Sequence[Sequence[Action]], scenes: Sequence[Scene]) -> None:
    for action, scene in zip(actions[0], scenes, strict=False):
        if not scene.mask.allows(action):
            ops = {slot: sorted(found) for slot, found in scene.mask.ops.items()}
            msg = f"step {scene.observation.step}: {action} is not among what is possible: {ops}"
            raise AssertionError(msg)


def _demand_same(one: Sequence[Action], other: Sequence[Action], when: str) -> None:
    for step, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            msg = f"step {step} is decided differently {when}: {first}, {second}"
            raise AssertionError(msg)
