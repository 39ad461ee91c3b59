"""Checks of policies: legal actions, independence of environments, repeatability, and state.

Each check takes a function that builds the policy for an action space, and a number of slots. The policy is shown
random scenes: environments in any state, with the masks that the lifecycle allows. The global random generators are
seeded before it acts, so that two episodes can be compared.

A policy that remembers something from step to step, or learns, must be ``Resumable``. One that is not is assumed to
have no memory, which ``goes_on_where_another_left_off`` tests: a new policy takes over before each step.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from esper_core.leyline import (
    Action,
    ActionMask,
    ActionSpace,
    Concludes,
    FollowsPlan,
    Learner,
    Metric,
    Observation,
    Op,
    Resumable,
    RewardBreakdown,
    Rollout,
    SeedEvent,
    SlotState,
    State,
    Trajectory,
    Turn,
)
from esper_core.leyline.lifecycle import INCUBATING, Stage, may
from esper_core.trainer import Arm
from esper_testing.checks import applies_if, demand, demand_no_error, require
from esper_testing.reward_episodes import random_signals, random_slot
from esper_testing.sites import seeded, through_safetensors

if TYPE_CHECKING:
    from esper_core.leyline import Policy, SlotSignals


Maker = Callable[..., Any]
"""Builds the policy for an action space."""

PolicySettings = Mapping[str, Any] | Callable[[ActionSpace], Mapping[str, Any]]

Shown = tuple[Sequence[Observation], Sequence[ActionMask]]
"""The arguments of one call of ``act``: the observations and masks of all environments."""

EVENTS: Final = {Op.ADVANCE: SeedEvent.ADVANCE, Op.PRUNE: SeedEvent.PRUNE, Op.FOSSILISE: SeedEvent.FOSSILISE}
STEPS: Final = 12
CROWDED: Final = 0.3
"""Share of the incubating seeds that have all other blueprints of their slot beside them."""

UNDONE: Final = 0.1
"""Share of the steps that the governor rolled back; no action is possible in them."""

METRIC: Final = Metric("accuracy")
STRANGER: Final = "elsewhere/never-seen"
"""A blueprint of no action space."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a policy sees of one environment at one step."""

    observation: Observation
    mask: ActionMask


def space_of(slots: int, plugin: str = "tried") -> ActionSpace:
    """Return an action space with this number of slots; each accepts one to three blueprints."""
    return ActionSpace(
        {
            f"slot-{place}": tuple(f"{plugin}/blueprint-{number}" for number in range(1 + place % 3))
            for place in range(slots)
        }
    )


def episode(space: ActionSpace, seed: int, *, stranger: bool = False) -> list[Scene]:
    """Return an episode of one environment, in a new random state at each step.

    Args:
        space: whose slots and blueprints occur.
        seed: of the random states.
        stranger: whether the living seeds are of a blueprint that is in no action space.
    """
    draw = random.Random(seed)
    return [_scene(space, draw, step, stranger) for step in range(STEPS)]


def _scene(space: ActionSpace, draw: random.Random, step: int, stranger: bool) -> Scene:
    slots = tuple(_with_blueprints(random_slot(draw, name), space, draw, stranger) for name in space.slots)
    signals = replace(random_signals(draw, METRIC, step), slots=slots)
    # A random part of the blueprints of a free slot may germinate.
    accepted = {slot.name: space.blueprints[slot.name] if slot.state is SlotState.FREE else () for slot in slots}
    fitting = {name: tuple(id_ for id_ in ids if draw.random() < 0.7) for name, ids in accepted.items()}
    possible = {stage: frozenset(op for op, event in EVENTS.items() if may(stage, event)) for stage in Stage}
    seeds = {slot.name: {seed.blueprint: possible[seed.stage] for seed in slot.seeds} for slot in slots if slot.seeds}
    ops = {
        name: frozenset({Op.GERMINATE} if blueprints else ()).union(*seeds.get(name, {}).values())
        for name, blueprints in fitting.items()
    }
    mask = ActionMask(ops, fitting, seeds)
    return Scene(Observation(step, STEPS, signals), mask.shut() if draw.random() < UNDONE else mask)


def _with_blueprints(slot: SlotSignals, space: ActionSpace, draw: random.Random, stranger: bool) -> SlotSignals:
    """Return the slot with seeds of its own blueprints: one, or sometimes several while they incubate."""
    if slot.living is None:
        return slot
    accepted = space.blueprints[slot.name]
    crowded = not stranger and slot.living.stage in INCUBATING and draw.random() < CROWDED
    names = [STRANGER] if stranger else draw.sample(accepted, len(accepted) if crowded else 1)
    return replace(slot, seeds=tuple(replace(slot.living, blueprint=name) for name in names))


def _side_by_side(episodes: Sequence[Sequence[Scene]]) -> list[Shown]:
    """Return for each step the arguments of ``act`` for all environments together."""
    return [
        ([scene.observation for scene in step], [scene.mask for scene in step]) for step in zip(*episodes, strict=True)
    ]


def _actions(policy: Policy, shown: Sequence[Shown], seed: int = 0) -> list[list[Action]]:
    """Return the actions in each step. ``seed`` is that of the global generators."""
    with seeded(seed, elsewhere=seed):
        return [list(policy.act(observations, masks)) for observations, masks in shown]


def _actions_by_environment(policy: Policy, episodes: Sequence[Sequence[Scene]], seed: int = 0) -> list[list[Action]]:
    steps = _actions(policy, _side_by_side(episodes), seed)
    return [[step[place] for step in steps if place < len(step)] for place in range(len(episodes))]


ENVIRONMENTS: Final = 3
USED: Final = (4, STEPS + 7)
"""Steps of two episodes before which the state is loaded into a policy that has already played."""

OTHER_EPISODE: Final = 2
"""The episode that such a policy has played."""

LESSONS: Final = 2
ADVICE: Final = "give the policy state_dict() and load_state_dict(state), which esper_core.leyline.Resumable describes"
COPIES: Final = "return and keep copies"


def goes_on_where_another_left_off(make: Maker, slots: int) -> None:
    """Check that a policy restored before a step decides as the original, and reports the same.

    It gets the state of the policy before it, if the policy is Resumable.
    """
    space = space_of(slots)
    stays, twin, heir = (_built(make, space) for _ in range(3))
    resumable = isinstance(stays, Resumable)
    for step, shown in enumerate(_two_episodes(space)):
        takeover = _takeover(step, resumable=resumable)
        if resumable:
            heir = _with_state_of(heir, make, space, step)
            demand(_said(heir) == _said(stays), f"reports something else {takeover}")
        else:
            heir = _built(make, space)
        original = _actions(stays, [shown], seed=step), _said(stays)
        repeatable = original[0] == _actions(twin, [shown], seed=step)
        require(repeatable, "two new policies decide differently, so that none can replace the other")
        with demand_no_error(takeover):
            restored = _actions(heir, [shown], seed=step), _said(heir)
        # Of a policy without a state, what it reports is compared at the end of an episode only.
        same = restored == original if resumable or (step + 1) % STEPS == 0 else restored[0] == original[0]
        demand(same, f"goes on differently {takeover}")


@applies_if(lambda make, slots: isinstance(_built(make, space_of(slots)), Resumable))
def writes_down_what_it_remembers(make: Maker, slots: int) -> None:
    """Check that JSON and safetensors can hold the state after each step, and that later steps do not change it.

    Calling ``state_dict`` changes nothing. There is no such check for a policy without a state.
    """
    space = space_of(slots)
    policy, unasked = _built(make, space), _built(make, space)
    for step, shown in enumerate(_two_episodes(space)):
        returned = policy.state_dict()
        saved, again, loaded = (written_and_read(state) for state in (returned, policy.state_dict(), returned))
        demand(same_state(saved, again), f"returns two different states in a row {_at(step)}")
        heir = _built(make, space)
        heir.load_state_dict(loaded)
        decided = [_actions(candidate, [shown], seed=step) for candidate in (policy, unasked, heir)]
        demand(decided[0] == decided[1], f"decides differently {_at(step)} after state_dict() was called")
        demand(same_state(saved, loaded), f"modifies the state that was loaded, {_at(step)}: {COPIES}")
        demand(
            same_state(saved, written_and_read(returned)), f"modifies a state that it returned, {_at(step)}: {COPIES}"
        )


@applies_if(lambda make, slots: isinstance(_built(make, space_of(slots)), Learner))
def keeps_what_it_learnt(make: Maker, slots: int) -> None:
    """Check that a policy that loads the state of a trained one decides and learns as that one.

    There is no such check for a policy that does not learn.
    """
    space = space_of(slots)
    demand(isinstance(_built(make, space), Resumable), f"a resumed run would lose what it has learnt: {ADVICE}")
    for lesson in range(LESSONS):
        first, heir = _built(make, space), _built(make, space)
        rounds = [_one_episode(space, 10 * lesson + number) for number in range(3)]
        middle = STEPS // 2
        _learn(first, rounds[0], _actions(first, rounds[0], seed=0), 0)
        begun = _actions(first, rounds[1][:middle], seed=1)
        returned = first.state_dict()
        saved = written_and_read(returned)
        heir.load_state_dict(saved)
        figures, decided = [], []
        for policy in (first, heir):
            remaining = _actions(policy, rounds[1][middle:], seed=2)
            figures.append(_learn(policy, rounds[1], begun + remaining, 1))
            decided.append(remaining + _actions(policy, rounds[2], seed=3))
        incomplete = "its state lacks something that it has learnt: a policy that loads it"
        demand(decided[0] == decided[1], f"{incomplete} decides differently")
        demand(figures[0] == figures[1], f"{incomplete} reports {figures[1]} of its next update, not {figures[0]}")
        demand(
            same_state(saved, written_and_read(returned)), f"modifies a state that it returned as it learns: {COPIES}"
        )


def _with_state_of(policy: Any, make: Maker, space: ActionSpace, step: int) -> Any:
    """Return another policy that has loaded the state; before some steps one that has already played."""
    saved = written_and_read(policy.state_dict())
    heir = _built(make, space)
    if step in USED:
        _actions(heir, _one_episode(space, OTHER_EPISODE)[:-1], seed=step)
    heir.load_state_dict(saved)
    return heir


def _takeover(step: int, *, resumable: bool) -> str:
    if not resumable:
        loses = "it remembers something that a resumed run would lose"
        return f"{_at(step)} when a new policy takes over: {loses}; {ADVICE}"
    if step in USED:
        return f"{_at(step)} when a policy that has played loads its state: load_state_dict must replace what was there"
    advice = "state_dict leaves something out, or load_state_dict ignores it"
    return f"{_at(step)} when a new policy loads its state: {advice}"


def _built(make: Maker, space: ActionSpace) -> Any:
    with seeded(0):
        return make(space)


def _said(policy: Any) -> tuple[list[list[str]], list[str]]:
    """Return what a policy reports as unfinished, and what it concludes."""
    unfinished = [list(notes) for notes in policy.unfinished()] if isinstance(policy, FollowsPlan) else []
    return unfinished, list(policy.conclusions()) if isinstance(policy, Concludes) else []


def _one_episode(space: ActionSpace, seed: int) -> list[Shown]:
    return _side_by_side([episode(space, 1000 * place + seed) for place in range(ENVIRONMENTS)])


def _two_episodes(space: ActionSpace) -> list[Shown]:
    return _one_episode(space, 0) + _one_episode(space, 1)


def _learn(policy: Any, shown: Sequence[Shown], actions: Sequence[Sequence[Action]], number: int) -> dict[str, str]:
    """Update the policy with this episode; return its figures as text, in which NaN equals NaN."""
    draw = random.Random(number)
    episodes = []
    for place in range(ENVIRONMENTS):
        turns = [
            Turn(observations[place], masks[place], chosen[place], RewardBreakdown({"tried": draw.uniform(-1, 1)}))
            for (observations, masks), chosen in zip(shown, actions, strict=True)
        ]
        episodes.append(Trajectory(tuple(turns)))
    with seeded(6):
        figures = policy.update(Rollout("tried", number, tuple(episodes)))
    return {str(name): repr(float(value)) for name, value in figures.items()}


def _at(step: int) -> str:
    return f"in step {step % STEPS} of episode {1 + step // STEPS}"


def written_and_read(state: Any) -> State:
    """Return the state as another process reads it, from JSON and safetensors.

    Raises:
        AssertionError: some of it would be lost.
    """
    kind = type(state).__name__
    demand(isinstance(state, State), f"state_dict() must return an esper_core.leyline.State. Received: {kind}")
    plain, tensors = dict(state.plain), dict(state.tensors)
    with demand_no_error("when its plain state is written as JSON"):
        read = json.loads(json.dumps(plain, allow_nan=False))
    demand(read == plain, f"plain values of its state must be those that JSON returns. Received: {plain}")
    named = all(name and isinstance(value, Tensor) for name, value in tensors.items())
    demand(named, f"tensors of its state must be tensors with non-empty names. Received: {tensors}")
    return State(read, through_safetensors(tensors))


def same_state(first: State, second: State) -> bool:
    """Return whether two states are equal; NaN equals NaN."""
    if dict(first.plain) != dict(second.plain) or list(first.tensors) != list(second.tensors):
        return False
    for tensor, other in zip(first.tensors.values(), second.tensors.values(), strict=True):
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            return False
        if not ((tensor == other) | (tensor.isnan() & other.isnan())).all():
            return False
    return True


EPISODES: Final = 5
OTHER_SEEDS: Final = range(20_011, 20_031)


def maker(factory: Callable[..., Any], settings: PolicySettings | None) -> Maker:
    """Return a function that builds the policy with its settings, which may depend on the action space."""

    def make(space: ActionSpace, **changed: Any) -> Any:
        defaults = settings(space) if callable(settings) else settings
        return factory(space, **{**(defaults or {}), **changed})

    return make


def acts_within_its_mask(make: Maker, slots: int) -> None:
    """Check that there is one action for each observation, which its mask allows."""
    space = space_of(slots)
    for environments in (1, 3, 5):
        _play_as_in_a_run(make(space), [episode(space, seed) for seed in range(environments)])


def batch_equals_single(make: Maker, slots: int) -> None:
    """Check that the actions in an environment are the same alone and beside equal environments.

    A policy that samples with a ``seed`` of its own may sample differently in each of them, but not depending on how
    many there are.
    """
    space = space_of(slots)
    _require_no_sampling(make, space)
    samples = _samples_with_its_seed(make, space)
    for seed in range(EPISODES):
        scenes = episode(space, seed)
        alone = _actions_by_environment(make(space), [scenes])[0]
        of_three = _actions_by_environment(make(space), [scenes] * 3)
        for place in (0,) if samples else (0, 1, 2):
            _demand_same(of_three[place], alone, f"alone, and as number {place} of three equal environments")
        if samples:
            for place, of_two in enumerate(_actions_by_environment(make(space), [scenes] * 2)):
                _demand_same(of_three[place], of_two, f"as number {place} of three environments and of two")


def environments_do_not_mix(make: Maker, slots: int) -> None:
    """Check that the actions in an environment do not depend on what happens in the one beside it."""
    space = space_of(slots)
    _require_no_sampling(make, space)
    for seed in range(EPISODES):
        scenes = episode(space, seed)
        for place in (0, 1):
            decided = []
            for other in (100, 200):
                beside = episode(space, other + seed)
                pair = [scenes, beside] if place == 0 else [beside, scenes]
                decided.append(_actions_by_environment(make(space), pair)[place])
            _demand_same(decided[0], decided[1], f"beside two different environments, as number {place}")


def repeats_itself(make: Maker, slots: int) -> None:
    """Check that two new policies decide alike on equal observations if all generators are seeded alike."""
    space = space_of(slots)
    for seed in range(EPISODES):
        scenes = episode(space, seed)
        first, second = (_actions_by_environment(make(space), [scenes])[0] for _ in range(2))
        _demand_same(first, second, "by two new policies")


def survives_a_blueprint_that_it_never_saw(make: Maker, slots: int) -> None:
    """Check that the policy handles unusual blueprints, and a seed whose blueprint is in no action space."""
    space = space_of(slots, plugin="unheard-of")
    for seed in range(EPISODES):
        _play_as_in_a_run(make(space), [episode(space, seed, stranger=True)])


CHECKS: Final = (
    acts_within_its_mask,
    batch_equals_single,
    environments_do_not_mix,
    repeats_itself,
    survives_a_blueprint_that_it_never_saw,
    goes_on_where_another_left_off,
    writes_down_what_it_remembers,
    keeps_what_it_learnt,
)


def _samples_with_its_seed(make: Maker, space: ActionSpace) -> bool:
    """Return whether the policy takes a ``seed`` and decides differently with some other RNG seeds.

    A policy that samples rarely needs many RNG seeds to show it.
    """
    scenes = [episode(space, seed) for seed in range(EPISODES)]
    default_actions = _actions_by_environment(make(space), scenes)
    for seed in OTHER_SEEDS:
        try:
            other = make(space, seed=seed)
        except Exception:  # the policy has no such setting
            return False
        if _actions_by_environment(other, scenes) != default_actions:
            return True
    return False


def _require_no_sampling(make: Maker, space: ActionSpace) -> None:
    for seed in range(EPISODES):
        scenes = episode(space, seed)
        decided = [_actions_by_environment(make(space), [scenes], draw) for draw in (1, 2)]
        require(decided[0] == decided[1], "it samples its actions, so that two of its decisions need not agree")


def _play_as_in_a_run(policy: Policy, episodes: Sequence[Sequence[Scene]]) -> None:
    """Let the policy act, with the checks that a run makes of its actions."""
    arm = Arm("tried", policy, "the policy")
    for observations, masks in _side_by_side(episodes):
        arm.act(observations, masks)


def _demand_same(actions: Sequence[Action], expected: Sequence[Action], when: str) -> None:
    for step, (first, second) in enumerate(zip(actions, expected, strict=False)):
        demand(first == second, f"step {step} is decided differently {when}: {first}, {second}")
