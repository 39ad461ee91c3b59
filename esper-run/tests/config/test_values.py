"""``explain``: value, type, default, origin and description of each key path."""

import json
from dataclasses import asdict
from enum import StrEnum

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, Field

from esper_run.config import explain, parse_path
from esper_run.config.values import MAX_DEPTH, MAX_SHOWN, path_text
from tests.support.configurations import SMALL, parse, problem_of


@pytest.fixture
def loaded():
    text = SMALL.replace("schedule", "{use: schedule, settings: {plan: [{step: 0}], seed: 3}}")
    return parse(text, "episode.steps=3", "arms={}")


NAME = "a name of 1 to 100 characters"


def test_without_a_path_everything_is_explained_once_and_fits_into_json(loaded):
    explanations = explain(loaded)
    paths = [explanation.path for explanation in explanations]
    assert len(set(paths)) == len(paths)
    assert {"name", "task.use", "arms", "policy.settings.plan", "optimizer.host.clip_norm"} <= set(paths)
    assert all(explanation.type and explanation.description and explanation.origin for explanation in explanations)
    assert json.loads(json.dumps([asdict(explanation) for explanation in explanations]))
    assert [
        explanation
        for explanation in explanations
        if explanation.origin == "default" and (not explanation.has_default or explanation.value != explanation.default)
    ] == []


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("epsode", 'Did you mean "episode"?'),
        ("episode.stps", 'Did you mean "steps"?'),
        ("slots.erly.stack", 'Did you mean "early"?'),
        ("slots.early.blueprints[3]", "Known: 0"),
        ("policy.settings.pln", 'Did you mean "plan"?'),
        ("policy.settings.plan[0].sped", 'Did you mean "speed"?'),
        ("twin.x", "No names are known here."),
        ("", "Write it as slots.early.blueprints[0]."),
        ("a..b", "Write it as slots.early.blueprints[0]."),
        ("episode.steps=3", "Write it as slots.early.blueprints[0]."),
    ],
)
def test_unknown_path_is_refused_with_a_suggestion(loaded, path, hint):
    problem = problem_of(explain, loaded, path, MODELS if "sped" in path else {})
    assert (problem.code, problem.hint) == ("E110", hint)


class Part(BaseModel):
    step: int = Field(ge=0, description="When.")
    speed: int | None = Field(default=None, ge=1, description="How fast.")


class Pace(StrEnum):
    SLOW = "slow"
    FAST = "fast"


class Plan(BaseModel):
    plan: tuple[Part, ...] = Field(description="What and when.")
    seed: int = Field(default=1, description="Where it begins.")
    kinds: frozenset[str] = frozenset({"a"})
    inner: Part = Part(step=7)
    pace: Pace = Pace.SLOW


MODELS = {("policy", "settings"): Plan, ("reward", "settings"): Part}


@pytest.mark.parametrize(
    ("path", "value", "type_", "default", "origin"),
    [
        ("slots.early.blueprints", ["conv_light"], "list, length ≥ 1", None, "f.yaml:5:17"),
        ("slots.early.blueprints[0]", "conv_light", NAME, None, "f.yaml:5:18"),
        ("slots.early.stack", 1, "integer, ≥ 1, ≤ 8", 1, "default"),
        ("episode.steps", 3, "integer, ≥ 1, ≤ 100,000", 40, "--set episode.steps=3"),
        ("task.use", "mnist1d", NAME, None, "f.yaml:1:7"),
        ("task.settings", {}, "mapping", {}, "default"),
        ("optimizer.seed.kind", "adam", "adam | adamw | sgd", "adam", "default"),
        ("policy.settings.seed", 3, "integer", 1, "f.yaml:6:61"),
        ("policy.settings.plan[0].step", 0, "integer, ≥ 0", None, "f.yaml:6:50"),
        ("policy.settings.plan[0].speed", None, "integer, ≥ 1, or null", None, "default"),
        ("policy.settings.kinds", ["a"], "list", ["a"], "default"),
        ("policy.settings.inner.step", 7, "integer, ≥ 0", 7, "default"),
        ("policy.settings.pace", "slow", "slow | fast", "slow", "default"),
        ("reward.settings.speed", None, "integer, ≥ 1, or null", None, "default"),
    ],
)
def test_any_path_is_explained_and_a_setting_by_the_components_model(loaded, path, value, type_, default, origin):
    (explanation,) = explain(loaded, path, MODELS)
    assert (explanation.path, explanation.value, explanation.type, explanation.default, explanation.origin) == (
        path,
        value,
        type_,
        default,
        origin,
    )


KEYS = st.text(max_size=MAX_SHOWN)
STEPS = st.lists(KEYS | st.integers(0, 99_999), max_size=4)


@settings(max_examples=50)
@given(KEYS, STEPS)
def test_written_path_is_parsed_to_the_same_path(first, steps):
    path = (first, *steps)
    assert parse_path(path_text(path)) == path


def test_path_deeper_than_any_file_is_refused_and_control_characters_are_escaped():
    assert len(parse_path(".".join("a" * MAX_DEPTH))) == MAX_DEPTH
    with pytest.raises(ValueError, match="deep"):
        parse_path(".".join("a" * (MAX_DEPTH + 1)))
    assert path_text(("\x1b[31m",)) == '["\\u001b[31m"]'
