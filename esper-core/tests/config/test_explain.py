"""``explain``: value, type, default, origin and description."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum

import pytest
from pydantic import BaseModel, Field

from esper_core.config import Explanation, explain, parse_config
from esper_core.leyline import ConfigError


@pytest.fixture
def loaded(small):
    text = small.replace("schedule", "{use: schedule, settings: {plan: [{step: 0}], seed: 3}}")
    return parse_config(text.encode(), file="f.yaml", overrides=["episode.steps=3", "arms={}"])


def one(loaded, path):
    (found,) = explain(loaded, path)
    return found


def test_value_of_the_file_is_explained(loaded):
    assert one(loaded, "slots.early.blueprints") == Explanation(
        path="slots.early.blueprints",
        value=["conv_light"],
        type="list, length ≥ 1",
        default=None,
        has_default=False,
        origin="f.yaml:5:17",
        description="What may grow here: names or globs.",
    )


def test_default_and_value_of_the_command_line_are_explained(loaded):
    found = one(loaded, "slots.early.stack")
    assert (found.value, found.default, found.has_default, found.origin) == (1, 1, True, "default")
    assert found.type == "integer, ≥ 1, ≤ 8"
    found = one(loaded, "episode.steps")
    assert (found.value, found.default, found.origin) == (3, 40, "--set episode.steps=3")


@pytest.mark.parametrize(
    ("path", "value", "origin"),
    [
        ("slots.early.blueprints[0]", "conv_light", "f.yaml:5:18"),
        ("policy.settings.plan[0].step", 0, "f.yaml:6:50"),
        ("task.use", "mnist1d", "f.yaml:1:7"),
        ("task.settings", {}, "default"),
        ("optimizer.seed.kind", "adam", "default"),
    ],
)
def test_any_path_can_be_explained(loaded, path, value, origin):
    found = one(loaded, path)
    assert (found.path, found.value, found.origin) == (path, value, origin)


def test_without_a_path_everything_is_explained_once_and_fits_into_json(loaded):
    found = explain(loaded)
    paths = [each.path for each in found]
    assert len(set(paths)) == len(paths)
    assert {"name", "task.use", "arms", "policy.settings.plan", "optimizer.host.clip_norm"} <= set(paths)
    assert all(each.type and each.description and each.origin for each in found)
    assert json.loads(json.dumps([asdict(each) for each in found]))


def test_explained_default_is_the_value_of_a_run_without_the_key(small):
    loaded = parse_config(small.encode(), file="f.yaml")
    for found in explain(loaded):
        if found.origin == "default":
            assert found.has_default, found.path
            assert found.value == found.default, found.path


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("epsode", 'Did you mean "episode"?'),
        ("episode.stps", 'Did you mean "steps"?'),
        ("slots.erly.stack", 'Did you mean "early"?'),
        ("slots.early.blueprints[3]", "Known: 0"),
        ("policy.settings.pln", 'Did you mean "plan"?'),
        ("twin.x", "No names are known here."),
        ("", "Write it as slots.early.blueprints[0]."),
        ("a..b", "Write it as slots.early.blueprints[0]."),
        ("episode.steps=3", "Write it as slots.early.blueprints[0]."),
    ],
)
def test_unknown_path_is_refused_with_a_suggestion(loaded, path, hint):
    with pytest.raises(ConfigError) as caught:
        explain(loaded, path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.hint) == ("E110", hint)


# --- the settings of components


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
        ("policy.settings.seed", 3, "integer", 1, "f.yaml:6:61"),
        ("policy.settings.plan[0].step", 0, "integer, ≥ 0", None, "f.yaml:6:50"),
        ("policy.settings.plan[0].speed", None, "integer, ≥ 1, or null", None, "default"),
        ("policy.settings.kinds", ["a"], "list", ["a"], "default"),
        ("policy.settings.inner.step", 7, "integer, ≥ 0", 7, "default"),
        ("policy.settings.pace", "slow", "slow | fast", "slow", "default"),
        ("reward.settings.speed", None, "integer, ≥ 1, or null", None, "default"),
    ],
)
def test_setting_is_explained_by_the_components_model(loaded, path, value, type_, default, origin):
    (found,) = explain(loaded, path, MODELS)
    assert (found.value, found.type, found.default, found.origin) == (value, type_, default, origin)


def test_unknown_setting_is_refused_with_a_suggestion(loaded):
    with pytest.raises(ConfigError) as caught:
        explain(loaded, "policy.settings.plan[0].sped", MODELS)
    assert caught.value.problems[0].hint == 'Did you mean "speed"?'
