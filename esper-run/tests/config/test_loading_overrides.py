"""``--set``: it changes what it names, under the same checks as the file."""

import pytest

from esper_run.config.values import MAX_DEPTH
from tests.support.configurations import SMALL, parse, problem_in, problems_in


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("episode.steps=3", ("episode", "steps"), 3),
        ("episode.steps = 3", ("episode", "steps"), 3),
        ("seed=0x10", ("seed",), 16),
        ("grace=1e-3", ("grace",), 0.001),
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
def test_override_changes_what_it_names(override, path, value):
    loaded = parse(SMALL, override)
    current = loaded.config
    for step in path:
        current = current[step] if isinstance(current, dict | list | tuple) else getattr(current, step)
    assert current == value
    assert type(current) is type(value)
    assert loaded.overrides == (override,)


def test_settings_of_a_component_in_its_short_form_can_be_set():
    loaded = parse(SMALL, "policy.settings.x=1")
    assert (loaded.config.policy.use, loaded.config.policy.settings) == ("schedule", {"x": 1})
    text = SMALL.replace("policy: schedule", "arms: {a: {policy: x}}")
    assert parse(text, "arms.a.policy.settings.y=1").config.arms["a"].policy.settings == {"y": 1}


def test_override_replaces_a_component_as_a_whole():
    for text in (SMALL, SMALL.replace("schedule", "{use: schedule, settings: {plan: []}}")):
        loaded = parse(text, "policy.settings.x=1", "policy=static")
        assert (loaded.config.policy.use, loaded.config.policy.settings) == ("static", {})
        assert loaded.problem("E201", ("policy", "settings", "plan"), "x").file == "--set policy=static"


def test_override_without_path_and_value_is_refused():
    for override in ("", "seed", "=", "=3", ".seed=3", "a..b=3", "[0]=3", "a[=3", "a b=3", "a[-1]=3"):
        problem = problem_in(SMALL, override)
        assert (problem.code, problem.file, problem.line, problem.column) == ("E115", f"--set {override}", None, None)
        assert "--set episode.steps=20" in problem.hint


@pytest.mark.parametrize(
    ("override", "code", "path"),
    [
        ("episode.steps=many", "E111", "episode.steps"),
        ("episode.steps=0", "E112", "episode.steps"),
        ("episode.stps=1", "E110", "episode.stps"),
        ("seed=[1", "E104", None),
        ("seed=!!int 3", "E107", None),
        ("task.settings={a: 1, a: 2}", "E105", None),
        ("task.settings.x=" + "[" * 60 + "]" * 60, "E108", None),
        ("name=\u2028", "E103", None),
        ("slots.early.blueprints[0]=3", "E111", "slots.early.blueprints[0]"),
        ("slots[0]=3", "E115", "slots[0]"),
        ("slots.early.blueprints[1]=x", "E115", "slots.early.blueprints[1]"),
        ("slots.early.blueprints.x=x", "E115", "slots.early.blueprints.x"),
        ("task.settings.x=1" + "0" * 4400, "E112", None),
        (".".join("a" * (MAX_DEPTH + 1)) + "=1", "E115", None),
    ],
)
def test_wrong_override_is_reported_as_it_was_given(override, code, path):
    problem = problems_in(SMALL, override)[0]
    assert (problem.code, problem.path, problem.line, problem.column) == (code, path, None, None)
    assert problem.file.startswith("--set ")
    assert len(problem.file) < 120
    str(problem).encode()


def test_override_of_an_aliased_value_changes_one_occurrence():
    text = SMALL.replace("early:\n", "early: &x\n").replace("policy:", "  late: *x\npolicy:")
    slots = parse(text, "slots.late.blueprints[0]=norm").config.slots
    assert (slots["early"].blueprints, slots["late"].blueprints) == (("conv_light",), ("norm",))
