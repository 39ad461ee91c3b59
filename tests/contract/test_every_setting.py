"""Every setting of every component is set by some test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from pydantic import BaseModel

ROOT = Path(__file__).parents[2]
MODULES = (
    "esper_policies.settings",
    "esper_policies.ppo.settings",
    "esper_rewards.settings",
    "esper_tasks.settings",
    "esper_watch.tensorboard",
)
HERE = Path(__file__).name


def settings() -> Iterator[tuple[str, str]]:
    """Each model of settings, with each of its fields."""
    for module in map(import_module, MODULES):
        for name, model in vars(module).items():
            if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == module.__name__:
                yield from ((name, field) for field in model.model_fields)


def is_set(field: str, source: str) -> bool:
    """Whether it is given a value anywhere, as an argument or in a mapping; also in a list of names to be tried."""
    return re.search(rf'\b{field}\b["\']?\s*[=:,]', source) is not None


def test_a_name_that_is_given_no_value_is_found() -> None:
    assert is_set("width", "Ppo(width=3)")
    assert is_set("width", '{"width": 3}')
    assert is_set("width", 'parametrize(("name", "value"), [("width", 3)])')
    assert not is_set("width", "the width of it; wide = 3; other_width=3")


def test_each_setting_is_set_by_a_test() -> None:
    files = [file for pattern in ("esper-*/tests/**/*.py", "tests/**/*.py") for file in ROOT.glob(pattern)]
    tests = "\n".join(file.read_text(encoding="utf-8") for file in files if file.name != HERE)
    assert [f"{model}.{field}" for model, field in settings() if not is_set(field, tests)] == []
