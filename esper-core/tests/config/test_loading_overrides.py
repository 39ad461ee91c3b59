"""``--set``: it changes what it names, under the same checks as the file."""

from __future__ import annotations

import pytest

from esper_core.config import parse_config
from esper_core.config.values import MAX_DEPTH


def load(text, *overrides):
    return parse_config(text.encode(), file="f.yaml", overrides=overrides)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("episode.steps=3", ("episode", "steps"), 3),
        ("episode.steps = 3", ("episode", "steps"), 3),
        ("seed=0x10", ("seed",), 16),
        ("margin=1e-3", ("margin",), 0.001),
        ("name=no", ("name",), "no"),
        ("name='no'", ("name",), "no"),
        ("name=", ("name",), None),
        ("name=null", ("name",), None),
        ("twin=false", ("twin",), False),
        ("slots.early.blueprints=[a, b]", ("slots", "early", "blueprints"), ("a", "b")),
        ("slots.early.blueprints[0]=x", ("slots", "early", "blueprints", 0), "x"),
        ("slots.late={blueprints: [z]}", ("slots", "late", "blueprints"), ("z",)),
        ("slots.late.blueprints=[z]", ("slots", "late", "blueprints"), ("z",)),
        ("device=cuda:0", ("device",), "cuda:0"),
        ("task.settings.x=[1, {a: ~}]", ("task", "settings", "x"), [1, {"a": None}]),
        ('task.settings["a.b=c"]=1', ("task", "settings", "a.b=c"), 1),
        ("task.settings.x=a=b", ("task", "settings", "x"), "a=b"),
        ("task.settings.x=é", ("task", "settings", "x"), "é"),
    ],
)
def test_override_changes_what_it_names(small, override, path, value):
    loaded = load(small, override)
    found = loaded.config
    for step in path:
        found = found[step] if isinstance(found, dict | list | tuple) else getattr(found, step)
    assert found == value
    assert type(found) is type(value)
    assert loaded.overrides == (override,)


def test_last_override_of_a_value_wins_and_nothing_else_changes(small):
    plain, changed = load(small).config, load(small, "seed=1", "seed=2").config
    assert changed.seed == 2
    assert changed.model_copy(update={"seed": plain.seed}) == plain


# --- components in their short form


def test_settings_of_a_component_in_its_short_form_can_be_set(small):
    policy = load(small, "policy.settings.x=1").config.policy
    assert (policy.use, policy.settings) == ("schedule", {"x": 1})
    policy = load(small, "policy.settings.x=1", "policy=static").config.policy
    assert (policy.use, policy.settings) == ("static", {})
    text = small.replace("policy: schedule", "arms: {a: {policy: x}}")
    assert load(text, "arms.a.policy.settings.y=1").config.arms["a"].policy.settings == {"y": 1}


def test_name_of_a_short_form_keeps_its_place(small):
    loaded = load(small, "policy.settings.x=1")
    assert loaded.origin(("policy", "use")) == "f.yaml:6:9"
    assert loaded.origin(("policy", "settings", "x")) == "--set policy.settings.x=1"


def test_only_a_component_has_a_short_form(problems, small):
    (problem,) = problems(small + "device: cpu", "device.settings.x=1")
    assert problem.code == "E115"
    assert problem.message == "there is no device.settings"


def test_override_replaces_a_component_as_a_whole(small):
    text = small.replace("schedule", "{use: schedule, settings: {plan: []}}")
    loaded = load(text, "policy=static")
    assert loaded.origin(("policy", "use")) == "--set policy=static"
    assert loaded.problem("E201", ("policy", "settings", "plan"), "x").file == "--set policy=static"


# --- what is refused


@pytest.mark.parametrize("override", ["", "seed", "=", "=3", ".seed=3", "a..b=3", "[0]=3", "a[=3", "a b=3", "a[-1]=3"])
def test_override_without_path_and_value_is_refused(problems, small, override):
    (problem,) = problems(small, override)
    assert (problem.code, problem.line, problem.column) == ("E115", None, None)
    assert problem.file == f"--set {override}"
    assert "--set episode.steps=20" in problem.hint


@pytest.mark.parametrize(
    ("override", "code", "path"),
    [
        ("episode.steps=many", "E111", "episode.steps"),
        ("episode.steps=0", "E112", "episode.steps"),
        ("episode.stps=1", "E110", "episode.stps"),
        ("seed=[1", "E104", None),
        ("seed=!!int 3", "E107", None),
        ("seed=*x", "E104", None),
        ("seed=" + "9" * 5000, "E112", None),
        ("task.settings={a: 1, a: 2}", "E105", None),
        ("task.settings={1: 2}", "E106", None),
        ("task.settings.x=&a [*a]", "E108", None),
        ("task.settings.x=" + "[" * 60 + "]" * 60, "E108", None),
        ("name=\u2028", "E103", None),
        ("task.settings.x='\x00'", "E103", None),
        ("name=\udcff", "E103", None),
        ("slots.early.blueprints[0]=3", "E111", "slots.early.blueprints[0]"),
        ("slots[0]=3", "E115", "slots[0]"),
        ("slots.early.blueprints[1]=x", "E115", "slots.early.blueprints[1]"),
        ("slots.early.blueprints.x=x", "E115", "slots.early.blueprints.x"),
        ("task.settings.x=1" + "0" * 4400, "E112", None),
        (".".join("a" * (MAX_DEPTH + 1)) + "=1", "E115", None),
    ],
)
def test_wrong_override_is_reported_as_it_was_given(problems, small, override, code, path):
    problem = problems(small, override)[0]
    assert (problem.code, problem.path, problem.line, problem.column) == (code, path, None, None)
    assert problem.file.startswith("--set ")
    assert len(problem.file) < 120
    str(problem).encode()


def test_missing_keys_of_a_mapping_made_by_an_override_are_located_there(problems, small):
    (problem,) = problems(small, "slots.late.stack=2")
    assert (problem.code, problem.file, problem.path) == ("E113", "--set slots.late.stack=2", "slots.late.blueprints")


def test_override_of_an_aliased_value_changes_one_occurrence(small):
    text = small.replace("early:\n", "early: &x\n").replace("policy:", "  late: *x\npolicy:")
    slots = load(text, "slots.late.blueprints[0]=norm").config.slots
    assert (slots["early"].blueprints, slots["late"].blueprints) == (("conv_light",), ("norm",))
