"""Loading: every problem is reported with its place, what was received, and a hint."""

from typing import NamedTuple

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from esper_run.config import model_problems
from esper_run.config.errors import MAX_PROBLEMS
from esper_run.config.values import path_text
from tests.support.configurations import SMALL, parse, problem_in, problems_in


def place(problem):
    return problem.code, problem.line, problem.column, problem.path


INTEGER = "Input should be a valid integer; received"
BOOLEAN = "Input should be a valid boolean; received"
USE = "the name of a component or a mapping with the keys use, settings; received 3"
FUSED = "Input should be true, false or 'gpu'; received \"on\""
OTHER_MODE = "'shadow' or 'branch'; received \"live\""


@pytest.mark.parametrize(
    ("line", "code", "column", "message", "hint"),
    [
        ("seed: many", "E111", 7, f'{INTEGER} "many"', None),
        ("seed: -1", "E112", 7, "Input should be greater than or equal to 0; received -1", None),
        ("rounds:", "E111", 8, f"{INTEGER} nothing", "it has a default"),
        ("grace: .inf", "E112", 8, "Input should be a finite number; received Infinity", None),
        ("growth: {price: 1e308}", "E112", 17, "less than or equal to 1000000; received 1e+308", None),
        ("twin: no", "E111", 7, f'{BOOLEAN} "no"', "Write true or false"),
        ("name: 3", "E111", 7, "received 3", 'Put it in quotes: "3"'),
        ("name: a b", "E112", 7, 'at most 49 letters, digits, - and _; received "a b"', None),
        ("device: gpu", "E112", 9, 'Input should be auto, cpu, cuda or cuda:N; received "gpu"', None),
        ("lanes: 5000", "E112", 8, "Input should be auto, or an integer from 1 to 1024; received 5000", None),
        ("growth: {incubation: live}", "E112", 22, OTHER_MODE, "Known: branch, shadow"),
        ("compute: {fused: on}", "E112", 18, FUSED, "Known: false, gpu, true"),
        ("reward: {use: ''}", "E112", 15, 'Input should be a name of 1 to 100 characters; received ""', None),
        ("reward: 3", "E111", 9, USE, None),
        ("episode: 40", "E111", 10, "a mapping with the keys steps, batches, batch_size; received 40", None),
        ("plugins: {disable: 'a, b'}", "E111", 20, 'Input should be a valid list; received "a, b"', "disable: [a, b]"),
        ("plugins: {disable: [3]}", "E111", 21, "Input should be a valid string; received 3", '"3"'),
        ("optimizer: {host: {kind: adm}}", "E112", 26, "'adam', 'adamw' or 'sgd'; received \"adm\"", "Did you mean"),
        ("reward: {use: x, settings: 3}", "E111", 28, "Input should be a valid mapping; received 3", None),
    ],
)
def test_wrong_value_is_reported_with_place_and_hint(line, code, column, message, hint):
    problem = problem_in(SMALL + line)
    assert (problem.code, problem.line, problem.column) == (code, 7, column)
    assert message in problem.message
    assert (hint is None) == (problem.hint is None)
    assert hint is None or hint in problem.hint


@pytest.mark.parametrize(
    ("was", "now", "line", "column", "path", "says"),
    [
        ("[conv_light]", "[conv_light, 3, norm]", 5, 30, "slots.early.blueprints[1]", "received 3"),
        ("[conv_light]", "[]", 5, 17, "slots.early.blueprints", "received []"),
        ("early:", "1st slot:", 4, 3, 'slots["1st slot"]', '49 letters, digits, - and _; received "1st slot"'),
        ("slots:\n  early:\n    blueprints: [conv_light]", "slots: {}", 3, 8, "slots", "received {}"),
    ],
)
def test_wrong_name_or_item_is_located(was, now, line, column, path, says):
    problem = problem_in(SMALL.replace(was, now))
    assert (problem.line, problem.column, problem.path) == (line, column, path)
    assert says in problem.message


def test_received_value_is_shortened_and_escaped():
    problem = problem_in(SMALL + f"reward: {'x' * 500}")
    assert "a name of 1 to 100 characters; received " in problem.message
    assert len(problem.message) < 200
    problem = problem_in(SMALL + f"seed: [{'[x, y], ' * 500}]")
    assert len(problem.message.split("received ")[1]) <= 60
    assert "\\u001b[31mred\\u202e" in problem_in(SMALL + 'name: "\\e[31mred\\u202e"').message


ONE_LEVEL_LOWER = "Settings of a component are one level lower: reward.settings.decay"


@pytest.mark.parametrize(
    ("line", "column", "path", "hint"),
    [
        ("episode: {stps: 3}", 11, "episode.stps", 'Did you mean "steps"?'),
        ("episode: {zzz: 3}", 11, "episode.zzz", "Known: batch_size, batches, steps"),
        ("steps: 3", 1, "steps", "The key belongs at: episode.steps"),
        ("momentum: 3", 1, "momentum", "The key belongs at: optimizer.host.momentum or optimizer.seed.momentum"),
        ("reward: {use: x, decay: 3}", 18, "reward.decay", ONE_LEVEL_LOWER),
        ("reward: {use: x, setings: 3}", 18, "reward.setings", 'Did you mean "settings"?'),
        ("rounds:8:", 1, '["rounds:8"]', 'Did you mean "rounds"?'),
    ],
)
def test_unknown_key_is_reported_with_a_suggestion(line, column, path, hint):
    problem = problem_in(SMALL + line)
    assert (problem.code, problem.line, problem.column, problem.path) == ("E110", 7, column, path)
    assert problem.message.startswith("unknown key ")
    assert problem.hint == hint


def test_all_missing_keys_are_reported():
    problems = problems_in("# nothing yet\nseed: 1\n")
    assert [place(problem) for problem in problems] == [("E113", 2, 1, key) for key in ("task", "host", "slots")]


EVERYTHING = """\
task: 3
slots:
  early: {blueprints: conv_light, stack: 9}
arms: {twin: {policy: schedule, polcy: x}}
host: pointwise-mlp
seed: nobody
"""


def test_all_problems_are_reported_in_the_order_of_the_file():
    assert [place(p) for p in problems_in(EVERYTHING, "episode.steps=many", "grace=no")] == [
        ("E111", 1, 7, "task"),
        ("E111", 3, 23, "slots.early.blueprints"),
        ("E112", 3, 42, "slots.early.stack"),
        ("E110", 4, 33, "arms.twin.polcy"),
        ("E111", 6, 7, "seed"),
        ("E111", None, None, "episode.steps"),
        ("E111", None, None, "grace"),
    ]


def test_the_first_hundred_problems_are_listed_and_the_others_counted():
    problems = problems_in(SMALL + "".join(f"x{i}: 1\n" for i in range(1000)))
    assert len(problems) == MAX_PROBLEMS + 1
    assert [p.line for p in problems[:3]] == [7, 8, 9]
    assert problems[-1].code == "E100"
    assert problems[-1].message == "900 more problems are not shown"


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        (("slots", "early", "blueprints", 0), 5, 18),
        (("task", "use"), 1, 7),  # the short form
        (("policy", "settings", "plan", 0), 6, 9),
        (("reward", "use"), 1, 1),  # a default
        ((), 1, 1),
    ],
)
def test_problem_is_located_at_the_nearest_value_of_the_file(path, line, column):
    loaded = parse(SMALL)
    problem = loaded.problem("E201", path, "unknown", "hint")
    assert (problem.code, problem.line, problem.column) == ("E201", line, column)
    assert (problem.file, problem.path, problem.hint) == ("f.yaml", path_text(path) or None, "hint")


class Span(NamedTuple):
    low: int


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    depth: int = Field(ge=1, multiple_of=2, description="How deep.")
    rate: float | list[float] = 0.5
    names: list[str] = []
    kind: str = "a"
    span: Span | None = None

    @field_validator("kind")
    @classmethod
    def _known(cls, kind):
        if kind not in "abc":
            raise ValueError(f"kind is a, b or c.\nReceived: {kind}")
        return kind


def objections(loaded):
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(loaded.config.policy.settings)
    return model_problems(caught.value, Settings, loaded.root, ("policy", "settings"))


def test_errors_of_settings_are_reported_like_those_of_the_file():
    settings = "{depth: 3, rate: x, names: a, dept: 1, kind: z}"
    loaded = parse(SMALL.replace("schedule", f"{{use: x, settings: {settings}}}"))
    problems = objections(loaded)
    assert [(p.code, p.column, p.path, p.message) for p in problems] == [
        ("E112", 36, "policy.settings.depth", "Input should be a multiple of 2; received 3"),
        ("E111", 45, "policy.settings.rate", 'Input should be a valid number or a valid list; received "x"'),
        ("E111", 55, "policy.settings.names", 'Input should be a valid list; received "a"'),
        ("E120", 73, "policy.settings.kind", "kind is a, b or c. Received: z"),
        ("E110", 58, "policy.settings.dept", 'unknown key "dept"'),
    ]
    assert problems[-1].hint == 'Did you mean "depth"?'


def test_wrong_value_below_a_type_without_a_model_is_located_without_a_hint():
    settings = "{depth: 2, span: {low: x}}"
    loaded = parse(SMALL.replace("schedule", f"{{use: x, settings: {settings}}}"))
    (problem,) = objections(loaded)
    assert place(problem) == ("E111", 6, 51, "policy.settings.span.low")
    assert (problem.message, problem.hint) == ('Input should be a valid integer; received "x"', None)
