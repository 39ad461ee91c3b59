"""Composition: refused settings get their line in the file, and the data of a task must fit the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper_core.app.compose import prepare
from esper_core.leyline import ConfigError, PluginError

PICKY = """
from esper_core import HostSpec, RewardSpec, TaskSpec, hookimpl
from esper_core.leyline import SettingError
from pydantic import BaseModel

class Size(BaseModel):
    size: int = 1

def picky(*arguments, size=1, **more):
    raise SettingError("size", "it is too small", f"Received: {size}")

@hookimpl
def esper_register_tasks(registry):
    registry.add("picky", picky, TaskSpec("", Size))
    registry.add("doubled", Doubled, TaskSpec("In float64."))

@hookimpl
def esper_register_hosts(registry):
    registry.add("picky", picky, HostSpec("", {}, Size))

@hookimpl
def esper_register_rewards(registry):
    registry.add("picky", picky, RewardSpec("", Size))

class Doubled:
    def __init__(self):
        from esper_tasks.stripes import stripes
        self.inner = stripes()
        self.metric, self.shape = self.inner.metric, self.inner.shape

    def split(self, name):
        split = self.inner.split(name)
        return type(split)(split.inputs.double(), split.targets)

    def losses(self, outputs, targets):
        return self.inner.losses(outputs, targets)

    def scores(self, outputs, targets):
        return self.inner.scores(outputs, targets)
"""


HOST = "host: pointwise-mlp\nslots:\n  early: {"


def rewritten(file: Path, before: str, after: str) -> Path:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    return file


@pytest.mark.members
@pytest.mark.parametrize(
    ("before", "after", "path", "line"),
    [
        ("task: stripes", "task: {use: picky, settings: {size: 3}}", "task.settings.size", 1),
        (HOST, HOST.replace("pointwise-mlp", "{use: picky, settings: {size: 3}}") + "at: a, ", "host.settings.size", 2),
        ("environments: 2", "reward: {use: picky, settings: {size: 3}}\nenvironments: 2", "reward.settings.size", 10),
    ],
)
def test_a_setting_that_a_component_refuses_is_told_with_its_line(
    before: str, after: str, path: str, line: int, install, configured
) -> None:
    install("picky", PICKY)
    with pytest.raises(ConfigError) as told:
        prepare(rewritten(configured(), before, after))
    (problem,) = told.value.problems
    assert (problem.code, problem.path, problem.line, problem.message) == ("E120", path, line, "it is too small")


@pytest.mark.members
def test_a_task_in_other_numbers_than_hosts_compute_in_is_named(install, configured) -> None:
    install("picky", PICKY)
    with pytest.raises(
        PluginError, match=r'E234 task "picky/doubled" \(esper-picky 1.0\) gives inputs of torch.float64'
    ):
        prepare(rewritten(configured(), "task: stripes", "task: doubled"))
