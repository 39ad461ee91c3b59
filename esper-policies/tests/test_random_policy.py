"""The random policy: uniform legal actions, independent between environments."""

from collections import Counter
from itertools import pairwise

from esper_core.leyline import WAIT, Action, ActionMask, ActionSpace, Observation, Op, Signals
from esper_policies.random_policy import Random

SPACE = ActionSpace({"early": ("a/conv", "a/mlp", "a/norm"), "late": ("a/mlp",)})
FREE = ActionMask({"early": frozenset({Op.GERMINATE}), "late": frozenset()}, {"early": ("a/conv", "a/mlp")})
NURSERY = ActionMask(
    {"early": frozenset({Op.GERMINATE, Op.ADVANCE, Op.PRUNE}), "late": frozenset({Op.PRUNE, Op.FOSSILISE})},
    {"early": ("a/norm",)},
    {
        "early": {"a/mlp": frozenset({Op.PRUNE}), "a/conv": frozenset({Op.ADVANCE, Op.PRUNE})},
        "late": {"a/mlp": frozenset({Op.PRUNE, Op.FOSSILISE})},
    },
)
IN_NURSERY = [
    WAIT,
    Action(Op.GERMINATE, "early", "a/norm"),
    Action(Op.ADVANCE, "early", "a/conv"),
    Action(Op.PRUNE, "early", "a/conv"),
    Action(Op.PRUNE, "early", "a/mlp"),
    Action(Op.PRUNE, "late", "a/mlp"),
    Action(Op.FOSSILISE, "late"),
]
FREE_CHOICES = Random(SPACE).choices(FREE)


def seen(step):
    return Observation(step, 40, Signals(step, 1.0, 1.0, 0.5, parameters=10, host_parameters=10, slots=()))


def played(policy, mask, *, environments=1, steps=400, first=0):
    """Return its actions in one episode for each environment, from step ``first`` on."""
    actions = [policy.act([seen(step)] * environments, [mask] * environments) for step in range(first, steps)]
    return list(zip(*actions, strict=True))


def test_choices_are_all_possible_actions_and_waiting_and_one_for_an_op_on_a_whole_slot():
    assert Random(SPACE).choices(ActionMask()) == [WAIT]
    assert Random(SPACE).choices(FREE.shut()) == [WAIT]
    assert Random(SPACE).choices(NURSERY) == IN_NURSERY
    whole = ActionMask({"early": frozenset({Op.ADVANCE, Op.PRUNE})})
    assert Random(SPACE).choices(whole) == [WAIT, Action(Op.ADVANCE, "early"), Action(Op.PRUNE, "early")]


def test_choices_are_equally_likely():
    actions = [action for actions in played(Random(SPACE), NURSERY, environments=10, steps=700) for action in actions]
    expected = len(actions) / len(IN_NURSERY)
    counts = Counter(actions)
    assert set(counts) == set(IN_NURSERY)
    surprise = sum((count - expected) ** 2 / expected for count in counts.values())
    assert surprise < 22.5  # 1 in 1000, of chi-square with 6 degrees of freedom


def test_draws_differ_between_seeds_episodes_environments_and_steps():
    def ops(policy, **more):
        return ["".join(str(FREE_CHOICES.index(action)) for action in place) for place in played(policy, FREE, **more)]

    policy = Random(SPACE)
    draws = [*ops(policy, environments=4), *ops(policy, environments=4), *ops(Random(SPACE, seed=1), environments=4)]
    assert len(set(draws)) == 12
    for first, second in pairwise(draws):
        alike = sum(a == b for a, b in zip(first, second, strict=True)) / len(first)
        assert 0.23 < alike < 0.44  # a third, by chance
    assert len({draw[:20] for draw in draws} | {draws[0][at : at + 20] for at in range(1, 300)}) == 12 + 299
