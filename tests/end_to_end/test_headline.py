"""The study of growth at equal compute: its records, searches, trainings and comparisons."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.headline.cells import CELLS, Setting, compose
from benchmarks.headline.searches import Curve, Found, asha, random_search
from benchmarks.headline.store import Store
from benchmarks.headline.trainings import EsperSettings, Job, operations_of, train

ESPER = EsperSettings({"policy": "heuristic", "twin": False, "growth": {"incubation": "branch", "nursery": 2}})
JOB = Job("pointwise", "pointwise", "static", "early=conv_light", Setting(0.01, "cosine"), seed=1, scale=1 / 32)


def test_a_killed_study_goes_on_with_what_is_missing(tmp_path):
    jobs, told = [replace(JOB, share=0.2), replace(JOB, share=0.2, seed=2)], []
    store = Store(tmp_path)
    assert store.train(jobs[:1], lambda job: ESPER) == 1
    file = tmp_path / "pointwise.jsonl"
    with file.open("a") as log:
        log.write('{"cell": "pointwise", "arm"')  # the process was killed while it wrote
    again = Store(tmp_path)
    assert again.train(jobs, lambda job: ESPER, on_record=told.append) == 1
    assert [one["seed"] for one in told] == [2]
    assert [json.loads(line)["seed"] for line in file.read_text().splitlines()] == [1, 2]
    assert again.get(replace(jobs[0], version="other")) is None


CURVES = {
    "a": Curve([0.1, 0.2, 0.9], [1, 2, 4]),
    "b": Curve([0.2, 0.3, 0.4], [10, 20, 40]),
    "c": Curve([0.3, 0.5, 0.5], [100, 200, 400]),
    "d": Curve([0.4, 0.4, 0.8], [1000, 2000, 4000]),
}


@pytest.mark.parametrize("seed", range(8))
def test_asha_promotes_the_top_half_and_pays_for_what_it_discards(seed):
    found = asha(CURVES, seed=seed)
    assert found.architecture in ("c", "d"), "the top half of the first rung"
    digits = f"{found.flops:04d}"
    assert all(digit in "124" for digit in digits), "each was trained at least to the first rung, and paid once"
    assert digits.count("4") == 1, "only one was trained to the end"
    if digits[2:] == "11":  # nothing was promoted before the better ones had started
        assert found == Found("c", 2411)


def test_random_search_stays_within_the_operations():
    half = {name: Curve(curve.accuracy, [one // 2 for one in curve.flops]) for name, curve in CURVES.items()}
    assert random_search([half, CURVES], seed=0, flops=3000, trials=4) == (0, Found("a", 2222))
    assert random_search([half, CURVES], seed=0, flops=5000, trials=4) == (1, Found("a", 4444))


def test_a_plain_loop_equals_the_static_control_of_esper_to_the_bit(tmp_path):
    """The control of a run whose schedule germinates, blends in at once and keeps a block."""
    from esper_core import run

    cell, part = CELLS["pointwise"], CELLS["pointwise"].parts[0]
    plan = [
        {"step": step, "op": op, "slot": "early"} for step, op in ((0, "germinate"), (1, "advance"), (2, "fossilise"))
    ]
    plan[0] |= {"blueprint": "conv_light", "speed": 0}
    optimizer = {"learning_rate": 0.01, "schedule": {"use": "cosine", "settings": {"warmup": 1, "floor": 0.02}}}
    config = {
        "policy": {"use": "schedule", "settings": {"plan": plan}},
        "capacity": True,
        "optimizer": {"host": optimizer, "seed": optimizer},
        "episode": {"steps": 5, "batches": 1, "batch_size": 100},
    }
    ended = {}

    class Listener:
        def hear(self, event):
            if event.type == "episode-finished":
                ended[event.arm] = event

        def settle(self):
            pass

    run(compose(cell, part, 1, config), runs_dir=tmp_path, listeners=[Listener()], on_warning=lambda warning: None)
    plain = train(replace(JOB, share=5 / 40), ESPER, tmp_path)
    control = ended["capacity"]
    assert len(control.grown) == 1
    assert plain["test_loss"] == round(control.test_loss, 5)
    assert (plain["test_accuracy"], plain["parameters"]) == (round(control.test_metric, 5), control.parameters)


def test_growth_pays_for_its_previews_and_starts_from_the_trained_host(tmp_path):
    cell, part = CELLS["pointwise"], CELLS["pointwise"].parts[0]
    esper = train(replace(JOB, arm="esper", architecture=""), ESPER, tmp_path)
    recipe = compose(cell, part, 1, {}).recipe
    alone = 3 * 40 * 100 * operations_of(recipe, "host") + 40 * 800 * operations_of(recipe, "host")
    assert esper["flops"] > alone
    late = replace(JOB, arm="continue", architecture="", start=JOB.setting, unit=10**8, share=0.0)
    host = train(replace(JOB, architecture="host"), ESPER, tmp_path)
    assert train(late, ESPER, tmp_path)["test_loss"] == host["test_loss"], "no budget, so the host as it was"
