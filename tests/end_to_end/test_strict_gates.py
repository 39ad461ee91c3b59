"""Strict gates with default thresholds over ten RNG seeds that nothing was tuned on."""

import json
import re
from pathlib import Path

import pytest

DECISION = Path(__file__).parents[2] / "docs" / "decisions" / "0011-default-incubation.md"
TOLD = re.compile(r"^(\S+) points over the twin \((\S+) to (\S+)\)", re.MULTILINE)
"""The gain of a convolution in points, with its interval."""

SEEDS = 10
FILE = """\
task: {task}
host: {host}
slots: {slots}
arms: {{{arms}}}
growth: {{gates: strict}}
seed: 1000
environments: 10
capacity: false
episode: {{batches: {batches}}}
"""
ARM = """\
{name}: {{policy: {{use: schedule, settings: {{plan: [
  {{step: 5, op: germinate, slot: {slot}, blueprint: {name}}}, {{step: 10, op: fossilise, slot: {slot}}}]}}}}}}"""
POINTWISE = {"conv_light": "early", "mlp": "late"}
NO_DEFICIT = {"conv_light": "early", "pointwise": "early"}


@pytest.fixture
def accepted(esper, tmp_path):
    """Run a plan with gates for each blueprint; return how many seeds were kept, and the gains."""

    def run(task: str, host: str, places: dict[str, str], batches: int) -> tuple[dict[str, int], dict[str, float]]:
        by_slot = {slot: [name for name, at in places.items() if at == slot] for slot in places.values()}
        slots = {slot: {"blueprints": names} for slot, names in by_slot.items()}
        arms = ", ".join(ARM.format(name=name, slot=slot) for name, slot in places.items())
        file = tmp_path / "strict.yaml"
        file.write_text(FILE.format(task=task, host=host, slots=json.dumps(slots), arms=arms, batches=batches))
        answer = esper("run", file, "--runs-dir", tmp_path / "runs", "--json", "--quiet")
        assert answer.status == 0, answer.err
        episodes = json.loads((Path(answer.json["run"]) / "growth.json").read_text())["episodes"]
        kept = {name: sum(len(episode["grown"]) for episode in episodes if episode["arm"] == name) for name in places}
        with_twin = [
            pair for pair in answer.json["results"]["comparisons"] if (pair["b"], pair["n"]) == ("twin", SEEDS)
        ]
        return kept, {pair["a"]: pair["difference"] for pair in with_twin}

    return run


@pytest.mark.slow
def test_a_useful_seed_always_passes_and_a_useless_one_never(accepted):
    kept, gained = accepted("mnist1d", "pointwise-mlp", POINTWISE, 32)
    assert kept["conv_light"] == SEEDS
    assert gained["conv_light"] >= 0.20
    ((mean, low, high),) = [map(float, numbers) for numbers in TOLD.findall(DECISION.read_text(encoding="utf-8"))]
    assert 100 * gained["conv_light"] == pytest.approx(mean, abs=high - low)
    assert kept["mlp"] <= SEEDS - 8


@pytest.mark.slow
def test_where_neighbours_mean_nothing_what_does_not_pay_is_refused(accepted):
    kept, gained = accepted("mnist1d-shuffled", "pointwise-mlp", POINTWISE, 32)
    assert kept["conv_light"] <= SEEDS - 8
    assert kept["mlp"] <= SEEDS - 8
    assert max(gained.values()) < 0.05


@pytest.mark.slow
def test_in_a_host_that_lacks_nothing_next_to_nothing_is_kept(accepted):
    kept, _ = accepted("mnist1d", "{use: cnn1d, settings: {channels: 25}}", NO_DEFICIT, 12)
    assert max(kept.values()) <= 1
