"""A price for operations: they are counted, cost what the formula says, and are free without a price."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper_core import read_events
from esper_core.app.compose import prepare
from esper_core.app.run import run
from esper_core.leyline import ConfigError
from esper_core.leyline.events import EpisodeFinished, StepFinished

pytestmark = pytest.mark.members

PRICED = "reward: {use: team, settings: {price: 0.0, price_of_flops: 30.0}}\n"
KEEPS = """\
      - {step: 1, op: advance, slot: early}
      - {step: 3, op: fossilise, slot: early}
"""

UNCOUNTABLE = """
from torch import nn
from esper_core import BlueprintSpec, hookimpl

class Whole(nn.Module):
    def __init__(self, site):
        super().__init__()
        self.own = nn.Conv1d(site.channels, site.channels, 1)
        for parameter in self.own.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs):
        assert len(inputs) > 1, "it takes no single example"
        return inputs + self.own(inputs)

@hookimpl
def esper_register_blueprints(registry):
    registry.add("whole", Whole, BlueprintSpec("sequence", "c*c + c", starts_as_identity=True))
"""


@pytest.fixture
def told(configured, tmp_path):
    """``told(lines)``: the steps of the arm that grows, how its episodes ended, and what was counted of the places."""

    def go(more: str):
        file = configured(more)
        text = file.read_text().replace("speed: 2}\n", "speed: 1}\n" + KEEPS).replace("steps: 3", "steps: 6")
        file.write_text(text)
        prepared = prepare(file)
        events = list(read_events(run(prepared, runs_dir=tmp_path / "runs").path / "events.jsonl"))
        steps = [one for one in events if isinstance(one, StepFinished) and one.arm == "schedule"]
        ends = [one for one in events if isinstance(one, EpisodeFinished) and one.arm == "schedule"]
        return steps, ends, prepared.space.places["early"]

    return go


def test_operations_are_those_of_host_and_of_what_acts_in_it(told):
    steps, _, place = told(PRICED)
    seed = place.candidate("blueprints/conv_light").flops
    counted = {one.signals.step: one.signals.flops for one in steps}
    assert {one.signals.host_flops for one in steps} == {place.host_flops}
    assert counted[0] == place.host_flops  # it learns in the shadow: the host is not slower by it
    assert counted[5] == place.host_flops + seed > counted[0]  # it was kept


def test_an_episode_pays_for_the_operations_that_it_ends_with(told):
    _, paid, place = told(PRICED)
    _, free, _ = told("reward: {use: team, settings: {price: 0.0}}\n")
    share = place.candidate("blueprints/conv_light").flops / place.host_flops
    assert [end.fossils for end in paid] == [end.fossils for end in free] == [1, 1]
    assert [end.reward for end in paid] == [pytest.approx(end.reward - 30.0 * share, abs=1e-9) for end in free]


def test_what_has_no_price_is_not_counted(told):
    steps, _, _ = told("")
    assert {one.signals.flops for one in steps} == {one.signals.host_flops for one in steps} == {None}


def test_a_block_that_cannot_be_counted_is_told_before_anything_runs(configured, install):
    install("heavy", UNCOUNTABLE)
    file = configured(PRICED)
    file.write_text(Path(file).read_text().replace("[conv_light]", "[conv_light, whole]"))
    with pytest.raises(ConfigError) as raised:
        prepare(file)
    (problem,) = raised.value.problems
    assert problem.code == "E125"
    assert "heavy/whole in early" in problem.message
    assert "conv_light" not in problem.message
    assert "price_of_flops" in str(problem.path)
