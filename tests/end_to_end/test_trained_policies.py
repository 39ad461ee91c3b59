"""The trained policy that ships with esper-policies works, also on hosts that it has not seen."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from esper_core.leyline import WAIT
from esper_policies.ppo.policy import Ppo
from esper_run.app.episode import Episode
from tests.docs.test_blocks import announced

ROOT = Path(__file__).parents[2]
HOME = ROOT / "esper-policies" / "src" / "esper_policies" / "trained" / "growbench"
LOADED = {
    "load": "growbench",
    "learn": False,
    "decide_every": 4,
    "last": 0.6,
    "speeds": [2],
    "auto_fossilise": True,
    "one_at_a_time": True,
}

pytestmark = pytest.mark.skipif(not HOME.is_dir(), reason="no trained policy is shipped")

RUN = """
task: stripes
host: {host}
slots:
{slots}
policy: static
reward: {{use: team, settings: {{price: 5}}}}
growth: {{auto_advance: false}}
episode: {{steps: 12, batches: 2, batch_size: 20}}
lanes: 1
"""
MANY_SLOTS = """\
  early: {blueprints: [pointwise]}
  middle: {blueprints: [pointwise, conv_light]}
  late: {blueprints: [dilated]}
"""
NEW_BLUEPRINTS = '  early: {blueprints: ["blueprints-extra/*"]}\n'


def played(file: Path, seeds: range, **settings: object) -> list[list[str]]:
    """Return the policy's actions in the episodes of some RNG seeds, without WAIT."""
    done = []
    for seed in seeds:
        play = Episode.of(file)
        policy = Ppo(play.space, **LOADED, **settings)
        moment, actions = play.begin(seed), []
        while not moment.over:
            (action,) = policy.act([moment.observation], [moment.mask])
            assert moment.mask.allows(action)
            actions += [] if action == WAIT else [f"{action.op.value} {action.slot} {action.blueprint}"]
            moment = play.act(action)
        done.append(actions)
    return done


def test_a_trained_policy_is_safetensors_and_json_and_describes_its_training():
    assert {path.name for path in HOME.iterdir()} == {"gardener.safetensors", "gardener.json"}
    words = json.loads((HOME / "gardener.json").read_text(encoding="utf-8"))
    assert set(words["names"]) == {
        f"blueprints/{blueprint}" for blueprint in ("pointwise", "depthwise_separable", "dilated", "mlp")
    }
    assert "load" not in words["settings"]


def test_it_decides_on_a_host_with_more_slots_than_in_training(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(RUN.format(host="cnn1d", slots=MANY_SLOTS))
    assert len(played(file, range(1))) == 1


def test_it_decides_on_blueprints_of_another_package_and_tries_them_if_set(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(RUN.format(host="pointwise-mlp", slots=NEW_BLUEPRINTS))
    with announced(ROOT / "examples" / "esper-blueprints-extra", tmp_path):
        assert len(played(file, range(1))) == 1
        for done in played(file, range(1), look_at_new=True):
            assert done[0].startswith("germinate early blueprints-extra/")


@pytest.mark.slow
def test_its_example_runs_and_pays_where_growing_does_and_not_where_it_does_not(tmp_path):
    rewards = {}
    for kind in ("far", "easy"):
        command = [sys.executable, "-m", "esper_run", "run", "examples/learned-policy.yaml", "--json", "--quiet"]
        more = ["--set", f"task.settings.kind={kind}", "--set", "capacity=false", "--runs-dir", str(tmp_path)]
        finished = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, check=True)
        rewards[kind] = json.loads(finished.stdout)["results"]["arms"]["ppo"]["reward"]
    assert rewards["far"] > 5.0
    assert rewards["easy"] > -5.0
