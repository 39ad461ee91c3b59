"""Who mends a file is told at once what is wrong in it, and nothing that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper_core.app.preparing import prepare
from esper_core.leyline import ConfigError

WRONG = """\
task: {task}
host: pointwise-mlp
slots: {slots}
policy: {policy}
environments: {environments}
"""

RIGHT = {
    "task": "stripes",
    "slots": "{early: {blueprints: [conv_light]}}",
    "policy": "heuristic",
    "environments": "2",
}


def told(tmp_path: Path, **wrong: str) -> list[tuple[str, str | None, int | None]]:
    """Code, path and line of what is said against a file with these values."""
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG.format(**{**RIGHT, **wrong}))
    with pytest.raises(ConfigError) as caught:
        prepare(file)
    return [(problem.code, problem.path, problem.line) for problem in caught.value.problems]


@pytest.mark.members
def test_names_are_told_beside_keys_and_values(tmp_path: Path) -> None:
    slots = "{early: {blueprints: [conv_light, conv_lite], colour: red}}"
    assert told(tmp_path, task="stripe", slots=slots, policy="heuristik", environments="one") == [
        ("E110", "slots.early.colour", 3),
        ("E111", "environments", 5),
        ("E205", "task.use", 1),
        ("E201", "slots.early.blueprints[1]", 3),
        ("E203", "policy.use", 4),
    ]


@pytest.mark.members
def test_names_of_sinks_plugins_and_files_are_told_beside_values(tmp_path: Path) -> None:
    more = "one\nsinks: [nope]\nplugins: {disable: [watsh], local: [gone.py]}"
    assert told(tmp_path, environments=more) == [
        ("E111", "environments", 5),
        ("E225", "sinks[0].use", 6),
        ("E208", "plugins.disable[0]", 7),
        ("E227", "plugins.local[0]", 7),
    ]


@pytest.mark.members
def test_settings_are_told_where_nothing_beside_them_is_wrong(tmp_path: Path) -> None:
    policy = "{use: schedule, settings: {plan: 3}}"
    assert told(tmp_path, policy=policy, environments="one") == [
        ("E111", "environments", 5),
        ("E111", "policy.settings.plan", 4),
    ]


@pytest.mark.members
@pytest.mark.parametrize(
    ("wrong", "known"),
    [
        ({"policy": "{use: schedule, setings: {plan: []}}"}, ("E110", "policy.setings", 4)),  # no: the plan is missing
        (
            {"slots": "{mine: {blueprints: [conv_light], att: net.1}}"},
            ("E110", "slots.mine.att", 3),
        ),  # no: not suggested
        ({"slots": "{early: {blueprints: [5, conv_lite]}}"}, ("E111", "slots.early.blueprints[0]", 3)),
        ({"slots": "{early: {blueprints: conv_lite}}"}, ("E111", "slots.early.blueprints", 3)),
        ({"task": "5"}, ("E111", "task", 1)),  # without a task it is no configuration
        ({"environments": "2\nplugins: {disabled: [tasks]}", "task": "stripe"}, ("E110", "plugins.disabled", 6)),
    ],
)
def test_what_follows_from_another_slip_is_not_told(wrong: dict[str, str], known, tmp_path: Path) -> None:
    assert told(tmp_path, **wrong) == [known]


def test_a_file_that_cannot_be_read_says_so_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(tmp_path / "gone.yaml")
    assert len(caught.value.problems) == 1
    (tmp_path / "odd.yaml").write_text("task: [")
    with pytest.raises(ConfigError) as caught:
        prepare(tmp_path / "odd.yaml")
    assert len(caught.value.problems) == 1
