"""Actions as text: parsing, formatting, mistakes, and the list of possible ones."""

import pytest
from hypothesis import given, settings, strategies as st

from esper_core.leyline import Action, ActionMask, ActionSpace, Blend, ConfigError, Curve, Op, Signals
from esper_core.leyline.events import StepFinished
from esper_core.telemetry import decode, encode
from esper_study.actions import format_action, parse_action, possible_actions

SPACE = ActionSpace({"early": ("blueprints/conv_light", "blueprints/mlp", "other/mlp"), "late": ("blueprints/mlp",)})
READ = {
    Op.WAIT: (),
    Op.GERMINATE: ("slot", "blueprint", "blend", "speed", "curve", "target"),
    Op.ADVANCE: ("slot", "blueprint"),
    Op.RETARGET: ("slot", "target", "speed", "curve"),
    Op.PRUNE: ("slot", "blueprint", "speed", "curve"),
    Op.FOSSILISE: ("slot",),
}
"""The arguments of each op, as documented."""


@st.composite
def actions(draw):
    """Any action of the space, with defaults for what its op does not read."""
    op = draw(st.sampled_from(Op))
    slot = draw(st.sampled_from(sorted(SPACE.blueprints)))
    blueprints = st.sampled_from(SPACE.blueprints[slot])
    every = {
        "slot": st.just(slot),
        "blueprint": blueprints if op is Op.GERMINATE else st.none() | blueprints,
        "blend": st.sampled_from(Blend),
        "speed": st.integers(0, 999_999_999),
        "curve": st.sampled_from(Curve),
        "target": st.floats(0, 1, exclude_min=True),
    }
    return Action(op, **{name: draw(every[name]) for name in READ[op]})


def step_with(action: Action) -> StepFinished:
    signals = Signals(0, 1.0, 1.0, 0.5, 9, 9, ())
    return StepFinished(round=0, arm="a", seed=0, step=0, signals=signals, action=action)


@given(actions())
def test_formatted_actions_parse_to_themselves(action):
    assert parse_action(format_action(action), SPACE) == action


@given(actions())
def test_events_record_whole_actions(action):
    event = decode(encode(step_with(action)))
    assert event.action == action
    assert repr(event.action) == repr(action)


def test_options_may_stand_anywhere_and_short_names_are_enough():
    expected = Action(Op.GERMINATE, "early", "blueprints/conv_light", blend=Blend.GATED, speed=8, target=0.5)
    assert parse_action("germinate early conv_light blend=gate speed=8 target=0.5", SPACE) == expected
    assert parse_action("  target=.5 germinate blend=gate early speed=08 blueprints/conv_light ", SPACE) == expected
    assert parse_action("germinate late mlp", SPACE).blueprint == "blueprints/mlp"
    assert parse_action("germinate early other/mlp", SPACE).blueprint == "other/mlp"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "the action is empty", "OP [SLOT [BLUEPRINT]]"),
        ("prun early", 'there is no op "prun"', 'Did you mean "prune"?'),
        ("prune", "prune needs a slot", "Slots: early, late"),
        ("prune erly", 'there is no slot "erly"', 'Did you mean "early"?'),
        ("germinate early", "germinate needs a blueprint", "other/mlp"),
        ("germinate early conv_lite", 'no blueprint "conv_lite" may grow in slot "early"', '"conv_light"'),
        ("germinate early mlp", '2 blueprints are called "mlp"', "blueprints/mlp or other/mlp"),
        ("fossilise early mlp", 'fossilise takes slot, received "early mlp"', "OP"),
        ("wait early", 'wait takes no slot, received "early"', "OP"),
        ("wait speed=3", 'wait takes no "speed"', "wait takes no options."),
        ("retarget early blend=add", 'retarget takes no "blend"', "Known: curve, speed, target"),
        ("prune early speed=3 speed=4", "speed is given twice", "OP"),
        ("prune early speed=-1", 'Received: "-1"', "0 means at once"),
        ("prune early speed=٣", 'Received: "٣"', "0 means at once"),
        (f"prune early speed={'9' * 5000}", "Received:", "0 means at once"),
        ("prune early curve=round", 'there is no curve "round"', "Known: cosine, linear, sigmoid"),
        ("germinate early conv_light blend=gat", 'there is no blend "gat"', 'Did you mean "gate"?'),
        ("retarget early target=0", 'Received: "0"', "only at 1"),
        ("retarget early target=nan", 'Received: "nan"', "only at 1"),
    ],
)
def test_mistakes_are_reported_with_a_hint(text, message, hint):
    with pytest.raises(ConfigError) as refusal:
        parse_action(text, SPACE)
    (problem,) = refusal.value.problems
    assert (problem.code, problem.path) == ("E432", "--action")
    assert message in problem.message
    assert hint in (problem.hint or "")
    assert len(str(problem)) < 500


@settings(max_examples=50)
@given(st.text() | st.lists(st.sampled_from(["wait", "prune", "early", "mlp", "speed=2", "=", "x"])).map(" ".join))
def test_any_text_is_an_action_or_rejected(text):
    try:
        action = parse_action(text, SPACE)
    except ConfigError:
        return
    assert parse_action(format_action(action), SPACE) == action


def test_possible_actions_can_be_parsed():
    mask = ActionMask(
        {"early": frozenset({Op.PRUNE, Op.ADVANCE, Op.GERMINATE}), "late": frozenset({Op.FOSSILISE})},
        {"early": ("other/mlp",), "late": ()},
        {"early": {"blueprints/mlp": {Op.PRUNE}, "blueprints/conv_light": {Op.PRUNE, Op.ADVANCE}}},
    )
    possible = possible_actions(mask)
    assert possible == (
        "wait",
        "germinate early other/mlp",
        "advance early",
        "prune early blueprints/mlp",
        "prune early blueprints/conv_light",
        "fossilise late",
    )
    assert all(mask.allows(parse_action(action, SPACE)) for action in possible)
    assert possible_actions(mask.shut()) == ("wait",)
