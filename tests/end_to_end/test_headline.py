"""The study of growth at equal compute: its records, searches, trainings and comparisons."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.headline.__main__ import RESULTS, main
from benchmarks.headline.analysis import Results, against_asha, exact_interval, from_trained, judged, p_not_below, read
from benchmarks.headline.arms import CellStudy, pooled
from benchmarks.headline.cells import CELLS, QUICK, Setting, Size, compose
from benchmarks.headline.plan import Cost, Planner
from benchmarks.headline.report import write_report
from benchmarks.headline.searches import Curve, Found, asha, random_search
from benchmarks.headline.store import Store
from benchmarks.headline.trainings import EsperSettings, Job, operations_of, train

ESPER = EsperSettings({"policy": "heuristic", "twin": False, "growth": {"incubation": "branch", "nursery": 2}})
JOB = Job("pointwise", "pointwise", "static", "early=conv_light", Setting(0.01, "cosine"), seed=1, scale=1 / 32)


def test_a_killed_study_goes_on_with_what_is_missing(tmp_path):
    jobs, records = [replace(JOB, share=0.2), replace(JOB, share=0.2, seed=2)], []
    store = Store(tmp_path)
    assert store.train(jobs[:1], lambda job: ESPER) == 1
    file = tmp_path / "pointwise.jsonl"
    with file.open("a") as log:
        log.write('{"cell": "pointwise", "arm"')  # the process was killed while it wrote
    again = Store(tmp_path)
    assert again.train(jobs, lambda job: ESPER, on_record=records.append) == 1
    assert [record["seed"] for record in records] == [2]
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
    result = asha(CURVES, seed=seed)
    assert result.architecture in ("c", "d"), "the top half of the first rung"
    digits = f"{result.flops:04d}"
    assert all(digit in "124" for digit in digits), "each was trained at least to the first rung, and paid once"
    assert digits.count("4") == 1, "only one was trained to the end"
    if digits[2:] == "11":  # nothing was promoted before the better ones had started
        assert result == Found("c", 2411)


def test_random_search_stays_within_the_operations():
    half = {name: Curve(curve.accuracy, [flops // 2 for flops in curve.flops]) for name, curve in CURVES.items()}
    assert random_search([half, CURVES], seed=0, flops=3000, trials=4) == (0, Found("a", 2222))
    assert random_search([half, CURVES], seed=0, flops=5000, trials=4) == (1, Found("a", 4444))


def test_a_plain_loop_equals_the_static_control_of_esper_to_the_bit(tmp_path):
    """The control of a run whose schedule germinates, blends in at once and keeps a block."""
    from esper_core.leyline.events import EpisodeFinished
    from esper_run import read_events, run

    cell, part = CELLS["pointwise"], CELLS["pointwise"].parts[0]
    ops = "germinate", "advance", "fossilise"
    plan = [{"step": step, "op": op, "slot": "early"} for step, op in enumerate(ops)]
    plan[0] |= {"blueprint": "conv_light", "speed": 0}
    optimizer = {"learning_rate": 0.01, "schedule": {"use": "cosine", "settings": {"warmup": 1, "floor": 0.02}}}
    config = {
        "policy": {"use": "schedule", "settings": {"plan": plan}},
        "capacity": True,
        "growth": {"gates": "off"},
        "optimizer": {"host": optimizer, "seed": optimizer},
        "episode": {"steps": 5, "batches": 1, "batch_size": 100},
    }
    ran = run(compose(cell, part, 1, config), runs_dir=tmp_path, on_warning=lambda warning: None)
    ended = [event for event in read_events(ran.path / "events.jsonl") if isinstance(event, EpisodeFinished)]
    (control,) = [event for event in ended if event.arm == "capacity"]
    plain = train(replace(JOB, share=5 / 40), ESPER, tmp_path)
    assert len(control.grown) == 1
    assert plain["test_loss"] == round(control.test_loss, 5)
    assert (plain["test_accuracy"], plain["parameters"]) == (round(control.test_metric, 5), control.parameters)


@pytest.mark.install  # CI runs it for every change
def test_growth_pays_for_its_previews_and_starts_from_the_trained_host(tmp_path):
    cell, part = CELLS["pointwise"], CELLS["pointwise"].parts[0]
    esper = train(replace(JOB, arm="esper", architecture=""), ESPER, tmp_path)
    recipe = compose(cell, part, 1, {}).recipe
    alone = 3 * 40 * 100 * operations_of(recipe, "host") + 40 * 800 * operations_of(recipe, "host")
    assert esper["flops"] > alone
    late = replace(JOB, arm="continue", architecture="", start=JOB.setting, reference="host", share=0.0)
    host = train(replace(JOB, architecture="host"), ESPER, tmp_path)
    assert train(late, ESPER, tmp_path)["test_loss"] == host["test_loss"], "no budget, so the host as it was"


def test_a_training_that_diverges_is_a_record_like_any_other(tmp_path):
    store = Store(tmp_path)
    store.train([replace(JOB, setting=Setting(1e30, "constant"), share=0.1)], lambda job: ESPER)
    (record,) = Store(tmp_path)
    assert record["test_loss"] is None
    assert pooled([record]).loss == 10.0


def test_curves_are_read_at_equal_operations_and_start_at_the_host():
    curve = [(100, 20.0), (1, 10.0)]
    assert read(curve, 10) == pytest.approx(15.0)
    assert (read(curve, 1000), read(curve, 0.5), read(curve, 0.5, before=7.0)) == (20.0, 10.0, 7.0)


def test_exact_intervals_and_tests_against_a_margin_agree_with_tables():
    assert exact_interval(20, 20) == pytest.approx((0.8316, 1.0), abs=1e-4)
    assert exact_interval(190, 200) == pytest.approx((0.9101, 0.9758), abs=2e-3)
    few = [judged("", [True] * kept + [False] * 5, lambda share: 0.95 - share, 200) for kept in (15, 95)]
    verdicts = [criterion.verdict for criterion in few]
    assert verdicts == ["missed by 20", "not measured"], "its whole interval has to miss"
    # mean -1.5 + 3, s = 0.5774, n = 4: t = 5.196 with 3 degrees of freedom
    assert p_not_below([-1.0, -2.0, -1.0, -2.0], 3.0) == pytest.approx(1 - 0.00692, abs=1e-3)


class Invented:
    """A cell whose arms have these curves of operations and points, shifted by the RNG seed."""

    def __init__(self, name, deficit, curves):
        self.study, self.deficit, self.seeds = SimpleNamespace(cell=SimpleNamespace(name=name)), deficit, [1, 2, 3]
        self.curves, self.train_on = curves, "continue"

    def points(self, arm, seed):
        return [SimpleNamespace(flops=flops) for flops, _ in self.curves[arm]]

    def unit(self, seed):
        return 100

    def at(self, arm, seed, flops, quantity="accuracy", trained=False):
        return read(self.curves[arm], flops, 50.0 if trained and arm != "retrain" else None) + seed * (arm == "esper")


def test_comparisons_are_means_over_cells_paired_by_seed():
    deficient = Invented("one", 6.0, {"esper": [(100, 80.0)], "asha": [(100, 80.0), (200, 84.0)]})
    control = Invented("other", 0.0, {"esper": [(400, 90.0)], "asha": [(400, 85.0)]})
    results = Results([deficient, control])
    assert [against_asha(deficient, seed) for seed in (1, 2, 3)] == [-3.0, -2.0, -1.0]
    interval = results.pooled(against_asha, results.cells)
    # per seed: (-3 + 6) / 2, (-2 + 7) / 2, (-1 + 8) / 2; s = 1, t(0.975, 2) = 4.303
    assert (interval.mean, interval.low) == pytest.approx((2.5, 2.5 - 4.3027 / 3**0.5), abs=1e-3)
    assert results.deficient == [deficient]
    assert results.controls == [control]


def test_a_trained_network_without_enough_operations_to_grow_is_the_host():
    cell = Invented("one", 6.0, {"grow": [(20, 70.0)], "retrain": [(10, 30.0), (50, 60.0)], "continue": [(5, 52.0)]})
    assert from_trained(cell, 1, 0.1, "retrain") == 50.0 - 30.0
    assert from_trained(cell, 1, 0.2, "continue") == 70.0 - 52.0
    assert from_trained(cell, 1, 0.5, "retrain", "loss") == -(70.0 - 60.0)


def test_a_grid_is_extended_while_the_best_rate_lies_at_its_edge(tmp_path):
    """In the invented records a rate of 0.01 is best."""
    planner = Planner(Store(tmp_path), {"wide": Cost(batch=1e-3, operation=1e-10, grow=2.0)})
    study = CellStudy(CELLS["wide"], replace(QUICK, rates=(0.03,), extensions=2), planner.store)
    study.tune(planner.run)
    for late in (False, True):
        assert sorted({setting.rate for setting in study.settings(late=late)}) == [0.0033, 0.01, 0.03, 0.09]
    assert study.chosen("esper") == Setting(0.01, "constant")
    trainings = planner.trainings
    CellStudy(study.cell, study.size, planner.store).tune(planner.run)
    assert planner.trainings == trainings, "a command that goes on does not extend it further"


def test_the_report_is_made_from_records_alone(tmp_path):
    """The plan invents a record of every training, so no data set and no network is needed for the report."""
    planner = Planner(Store(tmp_path), {"pointwise": Cost(batch=1e-3, operation=1e-10, grow=2.0)})
    for name in QUICK.cells:
        study = CellStudy(CELLS[name], QUICK, planner.store)
        study.tune(planner.run)
        study.fresh(planner.run)
    trainings = planner.trainings
    study.fresh(planner.run)
    assert planner.trainings == trainings, "the same jobs are not trained again"
    text = write_report(QUICK, planner.store, quick=True).read_text()
    assert "| MNIST-1D × pointwise-mlp | 40.0 | 90.0 | late=mlp | deficit, +50.0 |" in text
    row = "from a trained network better than retraining at 25 %, on deficit cells | +0.0 (+0.0 to +0.0) points "
    assert f"{row}| +0.0 (+0.0 to +0.0) | missed by 0 |" in text
    for part in ("quick form", "## From scratch", "points of accuracy", "nats of log-loss", "## The data change"):
        assert part in text
    assert (tmp_path / "trained.svg").read_text().startswith("<svg")


@pytest.mark.slow
def test_the_quick_form_trains_resumes_and_reports(tmp_path, capsys):
    folder = tmp_path / "quick"
    assert main(["--quick", "--into", str(folder)]) == 0
    trained = len(Store(folder))
    assert "quick form" in (folder / "report.md").read_text()
    capsys.readouterr()
    assert main(["--quick", "--into", str(folder)]) == 0
    assert "min  " not in capsys.readouterr().err, "nothing is trained again"
    assert len(Store(folder)) == trained


@pytest.mark.slow
def test_the_published_report_follows_from_the_records(tmp_path):
    shutil.copytree(RESULTS, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("states", "*.svg", "*.md"))
    write_report(Size(), Store(tmp_path), quick=False)
    for name in ("report.md", "from-scratch.svg", "trained.svg"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text(), "--phase report writes it"
