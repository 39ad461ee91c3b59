"""Plans are carried out as written, and invalid plans are refused with their place."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from esper_core import leyline
from esper_core.leyline import WAIT, Action, ActionMask, ActionSpace, Blend, ConfigError, Observation, Op, SettingError
from esper_policies.schedule import Schedule
from esper_policies.settings import ScheduleSettings

SPACE = ActionSpace(
    {"early": ("blueprints/conv_light", "blueprints/pointwise", "extra/pointwise"), "late": ("blueprints/mlp",)}
)
GERMINATE = {"step": 0, "op": "germinate", "slot": "early", "blueprint": "conv_light", "speed": 2}
ADVANCE = {"step": 5, "op": "advance", "slot": "early"}
FOSSILISE = {"step": 9, "op": "fossilise", "slot": "early"}
LATE = {"step": 0, "op": "germinate", "slot": "late", "blueprint": "mlp"}
OTHER = {"blueprint": None, "speed": None}
"""Fields that are dropped for other ops than germinate."""

EVERYTHING = ActionMask({slot: frozenset(Op) for slot in SPACE.slots}, SPACE.blueprints)
NOTHING = ActionMask()


def seen(step):
    return Observation(step, 40, leyline.Signals(step, 1.0, 1.0, 0.5, parameters=10, host_parameters=10, slots=()))


def played(policy, masks):
    """Return the actions in one environment, whose mask at step i is ``masks[i]``."""
    return [policy.act([seen(step)], [mask])[0] for step, mask in enumerate(masks)]


def test_each_entry_is_carried_out_at_its_step_with_names_looked_up():
    actions = played(Schedule(SPACE, plan=[GERMINATE, ADVANCE, FOSSILISE]), [EVERYTHING] * 12)
    assert {step: action for step, action in enumerate(actions) if action is not WAIT} == {
        0: Action(Op.GERMINATE, "early", "blueprints/conv_light", speed=2),
        5: Action(Op.ADVANCE, "early"),
        9: Action(Op.FOSSILISE, "early"),
    }
    settings = ScheduleSettings.model_validate({"plan": [GERMINATE, ADVANCE]})
    assert Schedule(SPACE, plan=settings.plan).moves == Schedule(SPACE, plan=[GERMINATE, ADVANCE]).moves
    for name in ("conv_light", "blueprints/conv_light", "extra/pointwise"):
        (move,) = Schedule(SPACE, plan=[{**GERMINATE, "blueprint": name}]).moves
        assert move.action.blueprint == (name if "/" in name else f"blueprints/{name}")


def test_each_environment_has_its_own_position_in_the_plan_and_starts_afresh_in_a_new_round():
    policy = Schedule(SPACE, plan=[GERMINATE])
    for _ in range(2):
        assert [action.op for action in played(policy, [EVERYTHING] * 3)] == [Op.GERMINATE, Op.WAIT, Op.WAIT]
    policy = Schedule(SPACE, plan=[GERMINATE])
    policy.act([seen(0), seen(0)], [EVERYTHING] * 2)
    first, second = policy.act([seen(1), seen(0)], [EVERYTHING] * 2)
    assert (first.op, second.op) == (Op.WAIT, Op.GERMINATE)


def test_unfinished_entries_are_reported_for_each_environment_that_is_still_there():
    policy = Schedule(SPACE, plan=[GERMINATE, ADVANCE, LATE])
    assert policy.unfinished() == []
    assert (policy.impossible(6), policy.impossible(5)) == ([], ["plan[1]: advance in early, from step 5"])
    germination = ActionMask({"early": frozenset({Op.GERMINATE})}, SPACE.blueprints)
    for step in range(10):
        policy.act([seen(step)] * 2, [EVERYTHING, germination])
    assert policy.unfinished() == [
        (),
        ("plan[1]: advance in early, from step 5", "plan[2]: germinate blueprints/mlp in late, from step 0"),
    ]
    policy = Schedule(SPACE, plan=[GERMINATE])
    policy.act([seen(0)] * 3, [NOTHING] * 3)
    policy.act([seen(0)], [NOTHING])
    assert len(policy.unfinished()) == 1


ops = st.sampled_from([op for op in Op if op is not Op.WAIT])
entries = st.builds(
    lambda step, op, slot: (
        {"step": step, "op": op.value, "slot": slot}
        | ({"blueprint": {"early": "conv_light", "late": "mlp"}[slot]} if op is Op.GERMINATE else {})
    ),
    st.integers(0, 12),
    ops,
    st.sampled_from(SPACE.slots),
)
plans = st.lists(entries, max_size=8).map(lambda plan: sorted(plan, key=lambda entry: entry["step"]))
masks = st.builds(
    lambda early, late, can_germinate: ActionMask(
        {"early": early, "late": late}, SPACE.blueprints if can_germinate else {}
    ),
    st.frozensets(ops),
    st.frozensets(ops),
    st.booleans(),
)


@settings(max_examples=25)
@given(plans, st.lists(st.lists(masks, min_size=3, max_size=3), min_size=1, max_size=16))
def test_it_equals_a_slow_reference(plan, masks_by_step):
    policy = Schedule(SPACE, plan=plan)
    done = [set() for _ in range(3)]
    for step, step_masks in enumerate(masks_by_step):
        for place, action in enumerate(policy.act([seen(step)] * 3, step_masks)):
            expected = WAIT
            for index, entry in enumerate(plan):
                earlier = [i for i in range(index) if plan[i]["slot"] == entry["slot"] and i not in done[place]]
                move = policy.moves[index].action
                if index in done[place] or earlier or entry["step"] > step or not step_masks[place].allows(move):
                    continue
                expected = move
                done[place].add(index)
                break
            assert action == expected
            assert step_masks[place].allows(action)
    assert [len(left) for left in policy.unfinished()] == [len(plan) - len(finished) for finished in done]


@pytest.mark.parametrize(
    ("entry", "path", "message", "hint"),
    [
        ({"slot": "erly"}, "plan[1].slot", 'there is no slot "erly"', 'Did you mean "early"?'),
        ({"slot": None}, "plan[1].slot", "germinate needs a slot", "Slots of this run: early, late"),
        (
            {"blueprint": "conv-ligth"},
            "plan[1].blueprint",
            'no blueprint "conv-ligth" may grow in slot "early"',
            'Did you mean "conv_light"?',
        ),
        ({"blueprint": "mlp"}, "plan[1].blueprint", 'no blueprint "mlp" may grow in slot "early"', "Known: conv_light"),
        ({"blueprint": None}, "plan[1].blueprint", "germinate needs a blueprint", 'In slot "early": blueprints/'),
        (
            {"blueprint": "pointwise"},
            "plan[1].blueprint",
            '"pointwise" is the name of several blueprints',
            "Write one of: blueprints/pointwise or extra/pointwise",
        ),
        *(
            (
                {**OTHER, "op": op, name: value},
                f"plan[1].{name}",
                f"{op} takes no {name}",
                f"Received: {json.dumps(value)}",
            )
            for op, name, value in [("advance", "speed", 3), ("prune", "blend", "gate"), ("fossilise", "speed", 1)]
        ),
        ({"step": 2}, "plan[1].step", 'in slot "early" step 2 follows step 3', "Sort the entries of a slot by step"),
    ],
)
def test_entries_that_do_not_fit_the_run_are_refused_with_their_path(entry, path, message, hint):
    with pytest.raises(SettingError) as caught:
        Schedule(SPACE, plan=[{**ADVANCE, "step": 3}, {**GERMINATE, "step": 4, **entry}])
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("E120", path)
    assert message in problem.message
    assert hint in problem.hint


def test_all_problems_of_a_plan_are_reported_at_once():
    plan = [{**GERMINATE, "slot": "erly"}, {**ADVANCE, "speed": 3}, {**FOSSILISE, "step": 1, "blueprint": "mlp"}]
    with pytest.raises(ConfigError) as caught:
        Schedule(SPACE, plan=plan)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["plan[0].slot", "plan[1].speed", "plan[2].blueprint", "plan[2].step"]


def test_entries_may_set_blend_and_speed():
    prune = {"step": 6, "op": "prune", "slot": "early", "speed": 2}
    plan = [{**GERMINATE, "blend": "gate", "speed": 0}, prune]
    assert [move.action for move in Schedule(SPACE, plan=plan).moves] == [
        Action(Op.GERMINATE, "early", "blueprints/conv_light", blend=Blend.GATED, speed=0),
        Action(Op.PRUNE, "early", speed=2),
    ]
