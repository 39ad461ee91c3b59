"""Does a policy decide as it must? Within its masks, once for each environment, and for each by itself.

Each check takes what builds the policy for an action space, and a number of slots; AssertionError where a promise is
broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from esper_core.leyline import Action, ActionSpace
from esper_testing import policy_memory
from esper_testing.checks import NotApplicable
from esper_testing.policy_playing import Maker, actions_by_environment
from esper_testing.policy_scenes import Scene, episode, side_by_side, space_of

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


PROMISES: Final[tuple[Callable[[Maker, int], None], ...]] = (
    acts_within_its_mask,
    acts_once_for_each_environment,
    batch_equals_single,
    environments_do_not_mix,
    repeats_itself,
    survives_a_blueprint_that_it_never_saw,
    *policy_memory.PROMISES,
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
