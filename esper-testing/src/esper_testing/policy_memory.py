"""Does a policy lose its memory with the process? Another one that is built alike has to go on in its place.

A policy that remembers something from step to step, or learns, is ``Resumable``. Of one that is not it is believed that
it has no memory, and that is tried: a fresh one takes over in the middle, and nobody may notice.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import FollowsPlan, Learner, Played, Resumable, RewardBreakdown, Rollout, Turn
from esper_testing.checks import NotApplicable
from esper_testing.policy_playing import Maker, actions_in
from esper_testing.policy_scenes import STEPS, episode, side_by_side, space_of
from esper_testing.sites import seeded
from esper_testing.written_states import same_state, written_and_read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from esper_core.leyline import Action, ActionSpace
    from esper_testing.policy_playing import Shown

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


PROMISES: Final[tuple[Callable[[Maker, int], None], ...]] = (
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
