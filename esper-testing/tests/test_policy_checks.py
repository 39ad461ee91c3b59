"""Each check of policies fails for its own fault, and passes for a correct policy."""

import math
import random
from statistics import fmean

import pytest
import torch

from esper_core.leyline import WAIT, Action, Op, State
from esper_testing import check_policy, policy_checks, run_checks


class Right:
    """Takes the first possible action, and waits in every third step."""

    def __init__(self, space):
        self.space = space

    def act(self, observations, masks):
        return [self.decide(seen, mask) for seen, mask in zip(observations, masks, strict=True)]

    def decide(self, seen, mask):
        if seen.step % 3 == 2:
            return WAIT
        return next(iter(self.possible(mask)), WAIT)

    def possible(self, mask):
        for slot in self.space.slots:
            for op in sorted(mask.ops.get(slot, ())):
                blueprints = mask.blueprints.get(slot, ()) if op is Op.GERMINATE else [None]
                yield from (Action(op, slot, blueprint) for blueprint in blueprints)


def deciding(decide):
    """Return a policy that decides by ``decide(policy, observation, mask)``."""
    return type("Changed", (Right,), {"decide": decide})


def acting(act):
    """Return a policy whose actions are ``act(observations, actions)``, where ``actions`` are those of ``Right``."""

    class Changed(Right):
        def act(self, observations, masks):
            return act(observations, super().act(observations, masks))

    return Changed


IgnoresItsMask = deciding(lambda policy, *_: Action(Op.GERMINATE, "slot-0", policy.space.blueprints["slot-0"][0]))
DrawsFromTheSystem = deciding(lambda policy, seen, mask: random.SystemRandom().choice([WAIT, *policy.possible(mask)]))

ActsOnceTooOften = acting(lambda observations, actions: [*actions, WAIT])
GivesNames = acting(lambda observations, actions: [WAIT if len(actions) < 5 else "wait" for _ in actions])
LooksAfterTheFirstOnly = acting(lambda observations, actions: [actions[0], *(WAIT for _ in actions[1:])])


@acting
def goes_by_the_mean(observations, actions):
    """Wait if the mean over environments is bad, which mixes them."""
    mean = fmean(seen.signals.validation_metric for seen in observations)
    return actions if mean > 0.5 else [WAIT for _ in actions]


class KnowsItsBlueprints(Right):
    def decide(self, seen, mask):
        places = {id_: place for place, ids in enumerate(self.space.blueprints.values()) for id_ in ids}
        for seed in seen.signals.seeds:
            places[seed.blueprint]
        return super().decide(seen, mask)


class DrawsByPlace(Right):
    """Correct: it has a seed, and draws differently in each environment."""

    def __init__(self, space, *, seed=0):
        super().__init__(space)
        self.seed = seed

    def act(self, observations, masks):
        draws = [random.Random(f"{self.seed} {place} {seen.step}") for place, seen in enumerate(observations)]
        return [draw.choice([WAIT, *self.possible(mask)]) for draw, mask in zip(draws, masks, strict=True)]


class LooksAroundAsItDraws(DrawsByPlace):
    def act(self, observations, masks):
        self.seed += len(observations)
        return super().act(observations, masks)


class Counts(Right):
    """Acts in every third possible step of each environment, and saves its count."""

    def __init__(self, space):
        super().__init__(space)
        self.counts = []

    def act(self, observations, masks):
        self.counts += [0] * (len(observations) - len(self.counts))
        return [self.counted(place, mask) for place, mask in enumerate(masks)]

    def counted(self, place, mask):
        action = next(iter(self.possible(mask)), WAIT)
        self.counts[place] += action is not WAIT
        return action if self.counts[place] % 3 else WAIT

    def state_dict(self):
        return State({"counts": list(self.counts)})

    def load_state_dict(self, state):
        self.counts = list(state.plain["counts"])


def counting(base=Counts, **methods):
    """Return a policy that counts, or learns if ``base`` does, with other methods."""
    return type("Changed", (base,), methods)


CountsInVain = counting(load_state_dict=None)  # so it is not Resumable
ForgetsTheLast = counting(state_dict=lambda policy: State({"counts": [*policy.counts[:-1], 0][: len(policy.counts)]}))
GivesItselfAway = counting(state_dict=lambda policy: State({"counts": policy.counts}))
GivesAMapping = counting(state_dict=lambda policy: {"counts": list(policy.counts)})
TakesTheStateAsItsOwn = counting(load_state_dict=lambda policy, state: setattr(policy, "counts", state.plain["counts"]))


def writing(plain, tensors=None):
    """Return a policy that counts, and adds this to its state."""
    return counting(state_dict=lambda policy: State({"counts": list(policy.counts), "more": plain}, tensors or {}))


class BeginsAtStep0(Right):
    """Its memory exists only after it has seen step 0."""

    def decide(self, seen, mask):
        if seen.step == 0:
            self.first = seen
        return super().decide(self.first if seen.step == 1 else seen, mask) if self.first else WAIT


class AddsUp(Counts):
    def load_state_dict(self, state):
        counts = state.plain["counts"]
        self.counts = [count + more for count, more in zip(self.counts or [0] * len(counts), counts, strict=False)]


class CountsForTheEnd(Right):
    """Decides without memory, but remembers what it reports as unfinished."""

    steps = 0

    def act(self, observations, masks):
        self.steps += 1
        return super().act(observations, masks)

    def unfinished(self):
        return [[f"{self.steps} steps"]]


class TellsOtherwiseWhatIsUnfinished(CountsForTheEnd, Counts):
    """Its state lacks what it reports as unfinished."""


class GivesItsTensorsAway(Counts):
    def act(self, observations, masks):
        self.numbers = getattr(self, "numbers", torch.zeros(2))
        self.numbers += 1
        return super().act(observations, masks)

    def state_dict(self):
        return State({"counts": list(self.counts)}, {"numbers": getattr(self, "numbers", torch.zeros(2))})


class CountsQuestions(Counts):
    def state_dict(self):
        self.counts = [count + 1 for count in self.counts]
        return super().state_dict()


class ActsOtherwiseWhenAsked(Counts):
    state_was_read = False

    def state_dict(self):
        self.state_was_read = True
        return super().state_dict()

    def counted(self, place, mask):
        return WAIT if self.state_was_read else super().counted(place, mask)


class Learns(Counts):
    """Learns a weight, which falls with every reward at a growing rate; it acts while the weight is above 0."""

    def __init__(self, space):
        super().__init__(space)
        self.weight, self.pace = torch.tensor(0.5), 0.1

    def counted(self, place, mask):
        return super().counted(place, mask) if self.weight > 0 else WAIT

    def update(self, rollout):
        gained = [sum(turn.reward.total for turn in played.turns) for played in rollout.trajectories]
        self.weight -= self.pace * sum(map(abs, gained))
        self.pace *= 1.5
        return {"weight": float(self.weight), "loss": math.nan}

    def state_dict(self):
        return State({"counts": list(self.counts), "pace": self.pace}, {"weight": self.weight.clone()})

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.weight, self.pace = state.tensors["weight"].clone(), state.plain["pace"]


LearnsForNothing = counting(Learns, load_state_dict=None)
ForgetsItsWeight = counting(
    Learns,
    load_state_dict=lambda policy, state: Learns.load_state_dict(policy, State(state.plain, {"weight": policy.weight})),
)
ForgetsItsPace = counting(
    Learns,
    load_state_dict=lambda policy, state: Learns.load_state_dict(
        policy, State({**state.plain, "pace": 0.1}, state.tensors)
    ),
)
GivesItsWeightAway = counting(
    Learns, state_dict=lambda policy: State(Learns.state_dict(policy).plain, {"weight": policy.weight})
)


def result_of(factory, name):
    (result,) = run_checks(check for check in policy_checks(factory) if (check.name, check.case) == (name, "2 slots"))
    return result


def test_a_policy_without_a_fault_passes_every_check_with_every_number_of_slots():
    results = check_policy(Learns)
    assert {result.status for result in results} == {"passed"}
    cases = [f"acts_within_its_mask[{n}]" for n in ("1 slot", "2 slots", "3 slots", "7 slots")]
    assert [result.check for result in results][:4] == cases


FOLLOWS = {
    LooksAfterTheFirstOnly: {"environments_do_not_mix"},
    DrawsFromTheSystem: {"goes_on_where_another_left_off"},
    **{policy: {"survives_a_blueprint_that_it_never_saw"} for policy in (IgnoresItsMask, ActsOnceTooOften)},
}
"""Other checks that may fail."""


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (IgnoresItsMask, "acts_within_its_mask", "chose an action that its mask forbids: germinate"),
        (ActsOnceTooOften, "acts_within_its_mask", "returned 2 actions for 1 environments"),
        (GivesNames, "acts_within_its_mask", "returned ['wait'"),
        (LooksAfterTheFirstOnly, "batch_equals_single", "as number 1 of three equal environments"),
        (goes_by_the_mean, "environments_do_not_mix", "beside two different environments, as number 0"),
        (DrawsFromTheSystem, "repeats_itself", "by two new policies"),
        (KnowsItsBlueprints, "survives_a_blueprint_that_it_never_saw", "KeyError"),
    ],
)
def test_a_fault_fails_its_own_check(factory, check, says):
    results = run_checks(check for check in policy_checks(factory) if check.case == "2 slots")
    messages = {result.check.partition("[")[0]: result.message for result in results if not result.ok}
    assert says in messages.pop(check)
    assert set(messages) <= FOLLOWS.get(factory, set())


def test_a_policy_with_a_seed_may_sample_differently_in_each_environment():
    assert result_of(DrawsByPlace, "batch_equals_single").status == "passed"
    assert "as number 0" in result_of(LooksAroundAsItDraws, "batch_equals_single").message


# By the check that a state fails.
LOST = {
    "goes_on_where_another_left_off": [
        (CountsInVain, "of episode 1 when a new policy takes over: it remembers something"),
        (BeginsAtStep0, "raises AttributeError in step 1 of episode 1 when a new policy takes over"),
        (CountsForTheEnd, "in step 11 of episode 1 when a new policy takes over: it remembers something"),
        (ForgetsTheLast, "when a new policy loads its state: state_dict leaves something out"),
        (AddsUp, "when a policy that has played loads its state: load_state_dict must replace what was there"),
        (TellsOtherwiseWhatIsUnfinished, "reports something else in step 1 of episode 1"),
    ],
    "writes_down_what_it_remembers": [
        (GivesItselfAway, "modifies a state that it returned, in step 0 of episode 1: return and keep copies"),
        (GivesItsTensorsAway, "modifies a state that it returned, in step 1 of episode 1: return and keep copies"),
        (TakesTheStateAsItsOwn, "modifies the state that was loaded, in step "),
        (CountsQuestions, "returns two different states in a row in step 1 of episode 1"),
        (ActsOtherwiseWhenAsked, "decides differently in step 0 of episode 1 after state_dict() was called"),
        (writing([1.0, math.nan]), "raises ValueError when its plain state is written as JSON: Out of range"),
        (writing(-math.inf), "raises ValueError when its plain state is written as JSON: Out of range"),
        (writing({2: "two"}), "must be those that JSON returns. Received: {'counts': [], 'more': {2: 'two'}}"),
        (writing([("a", "b")]), "must be those that JSON returns. Received: {'counts': [], 'more': [('a', 'b')]}"),
        (writing(None, {"numbers": [1.0]}), "must be tensors with non-empty names. Received: {'numbers': [1.0]}"),
        (writing(None, {"": torch.ones(1)}), "must be tensors with non-empty names. Received: {'': tensor([1.])}"),
        (GivesAMapping, "esper_core.leyline.State. Received: dict"),
    ],
    "keeps_what_it_learnt": [
        (LearnsForNothing, "a resumed run would lose what it has learnt: give the policy state_dict() and load_state"),
        (ForgetsItsWeight, "a policy that loads it decides differently"),
        (ForgetsItsPace, "of its next update, not {'weight'"),
        (GivesItsWeightAway, "modifies a state that it returned as it learns: return and keep copies"),
    ],
}


@pytest.mark.parametrize(("check", "factory", "says"), [(check, *row) for check, rows in LOST.items() for row in rows])
def test_a_state_that_loses_something_or_cannot_be_saved_is_reported(check, factory, says):
    assert says in result_of(factory, check).message
