"""Are the arms of several runs put side by side as what they are, and is all that differs told?"""

from __future__ import annotations

import json
import math

import pytest

from esper_core.leyline import Metric, RunFolderError
from esper_core.runs.comparing import Sample, compare_all, shared_seeds
from esper_core.runs.directory import run_lock
from esper_core.runs.joining import join
from esper_core.runs.records import read_run

NOISE = [0.30, 0.10, 0.50, 0.20, 0.40, 0.35, 0.15, 0.45]
BETTER = [value + 0.2 + 0.001 * place for place, value in enumerate(NOISE)]
BEST = [value + 0.3 - 0.001 * place for place, value in enumerate(NOISE)]
OTTER, HERON = "20261121-101512-quiet-otter", "20261121-113002-swift-heron"


@pytest.fixture
def joined(write_run):
    """Joins runs that are given as (name, arms, what else is said of them)."""

    def make(*runs, only=(), every=False):
        return join([read_run(write_run(name, arms, **said)) for name, arms, said in runs], only, every=every)

    return make


def pairs(found):
    return [(one["a"], one["b"]) for one in found.comparisons()]


def by_names(found):
    return {(one["a"], one["b"]): one for one in found}


def test_the_arms_of_one_run_are_compared_as_its_own_summary_has_it(write_run):
    run = read_run(write_run(OTTER, {"grown": BETTER, "static": NOISE, "twin": NOISE}))
    found = join([run])
    assert found.comparisons() == run.results["comparisons"]
    assert (found.warnings, found.margin) == ([], 0.0)
    assert len(found.comparisons()) == 3


def test_arms_of_two_runs_are_paired_by_their_seeds(joined):
    found = joined((OTTER, {"grown": BETTER}, {}), (HERON, {"grown": BEST}, {}))
    (one,) = found.comparisons()
    assert (one["a"], one["b"]) == ("quiet-otter/grown", "swift-heron/grown")
    assert (one["paired"], one["n"], one["verdict"]) == (True, 8, "worse")
    assert found.warnings == []


def test_a_twin_that_is_the_same_in_both_is_taken_once(joined):
    found = joined((OTTER, {"grown": BETTER, "twin": NOISE}, {}), (HERON, {"grown": BEST, "twin": NOISE}, {}))
    assert [one.sample.name for one in found.arms] == ["quiet-otter/grown", "twin", "swift-heron/grown"]
    assert len(found.comparisons()) == 3
    assert found.warnings == [f"twin has the same figures in {OTTER} and {HERON}: it is taken once"]


def test_arms_without_a_namesake_are_compared_with_those_of_the_other_run_and_controls_are_not(joined):
    """Who names a run of one policy and a run of another asks about the policies."""
    found = joined(
        (OTTER, {"heuristic": BETTER, "twin": NOISE}, {}), (HERON, {"bandit": BEST, "twin": BETTER}, {"first": 100})
    )
    assert pairs(found) == [
        ("quiet-otter/heuristic", "quiet-otter/twin"),
        ("quiet-otter/heuristic", "swift-heron/bandit"),
        ("swift-heron/bandit", "swift-heron/twin"),
    ]
    assert found.left_out == 3


def test_of_several_policies_those_of_one_name_are_compared_across_runs_and_each_has_its_own_control(joined):
    arms = {"a": BETTER, "b": NOISE, "twin": NOISE, "capacity-of-a": BEST, "capacity-of-b": BEST}
    found = joined((OTTER, arms, {}), (HERON, {"a": BEST, "c": NOISE}, {"first": 100}))
    one, other = "quiet-otter", "swift-heron"
    assert pairs(found) == [
        (f"{one}/a", f"{one}/b"),
        (f"{one}/a", f"{one}/twin"),
        (f"{one}/a", f"{one}/capacity-of-a"),
        (f"{one}/a", f"{other}/a"),
        (f"{one}/b", f"{one}/twin"),
        (f"{one}/b", f"{one}/capacity-of-b"),
        (f"{other}/a", f"{other}/c"),
    ]


def test_a_run_is_compared_as_its_summary_does_and_no_further(write_run):
    path = write_run(OTTER, {"a": BETTER, "b": NOISE, "c": BEST})
    summary = json.loads((path / "summary.json").read_text())
    del summary["results"]["comparisons"][1:]
    (path / "summary.json").write_text(json.dumps(summary))
    run = read_run(path)
    assert pairs(join([run])) == [("a", "b")]
    assert join([run]).left_out == 2
    assert len(pairs(join([run], every=True))) == 3


def test_runs_of_one_name_in_two_folders_are_two_runs(write_run, tmp_path):
    arms = {"a": BETTER, "twin": NOISE}
    path = write_run(OTTER, arms)
    other = write_run(HERON, {"a": BEST, "twin": BETTER}, first=100).rename(tmp_path / OTTER)
    found = join([read_run(path), read_run(other)])
    assert pairs(found) == [
        (f"{path}/a", f"{path}/twin"),
        (f"{path}/a", f"{other}/a"),
        (f"{other}/a", f"{other}/twin"),
    ]


def test_of_runs_that_hold_nothing_but_controls_these_are_compared(joined):
    found = joined((OTTER, {"twin": BETTER}, {}), (HERON, {"twin": BEST}, {"first": 100}))
    assert pairs(found) == [("quiet-otter/twin", "swift-heron/twin")]


def test_a_run_that_is_named_twice_is_one_run(write_run):
    run = read_run(write_run(OTTER, {"grown": BETTER, "twin": NOISE}))
    found = join([run, run])
    assert [one.sample.name for one in found.arms] == ["grown", "twin"]
    assert found.warnings == []


def test_other_seeds_are_not_paired_and_it_says_so(joined):
    found = joined((OTTER, {"grown": BETTER}, {}), (HERON, {"grown": BEST}, {"first": 100}))
    (one,) = found.comparisons()
    assert (one["paired"], one["boot_low"], one["p"]) == (False, None, one["u_p"])
    (warning,) = found.warnings
    assert "are not paired, as they share 0 seeds of 8 and 8: Mann-Whitney test and Welch's interval" in warning


def test_seeds_in_common_are_enough_from_eight_on(joined):
    more = [*BEST, 0.7, 0.9]
    found = joined((OTTER, {"grown": BETTER}, {}), (HERON, {"grown": more}, {}))
    (one,) = found.comparisons()
    assert (one["paired"], one["n"]) == (True, 8)
    assert found.warnings == [
        f"the arms of {OTTER} and {HERON} are paired by the 8 seeds that both have; they have 8 and 10"
    ]
    few, fewer = Sample("a", dict.fromkeys(range(8), 0.5)), Sample("b", dict.fromkeys(range(1, 9), 0.5))
    assert shared_seeds(few, fewer) == []
    assert shared_seeds(Sample("a", {0: 0.1}), Sample("b", {0: 0.3})) == [0]


def test_seeds_of_another_task_are_other_seeds(joined, write_run):
    config = write_run("c").joinpath("config.yaml").read_text().replace("noise: 0.1", "noise: 0.9")
    found = joined((OTTER, {"grown": BETTER}, {}), (HERON, {"grown": BEST}, {"config": config}))
    assert found.comparisons()[0]["paired"] is False
    assert f"{OTTER} and {HERON} differ in more than their arms: task.settings.noise (0.1, 0.9)" in found.warnings
    assert any("as their tasks differ" in warning for warning in found.warnings)


def test_what_differs_beside_the_arms_is_told_and_what_belongs_to_them_is_not(joined, write_run):
    config = write_run("c").joinpath("config.yaml").read_text()
    changed = (
        config.replace("steps: 40", "steps: 20")
        .replace("use: tasks/pointwise-mlp, settings: {hidden: 32}", "use: tasks/cnn1d, settings: {kernel: 3}")
        .replace("policies/heuristic", "policies/random")
        .replace("name: null", "name: other\nseed: 7\nlanes: 4\ncapacity: false")
    )
    found = joined((OTTER, {"grown": BETTER}, {}), (HERON, {"grown": BEST}, {"config": changed}))
    (warning,) = found.warnings
    assert warning.endswith(
        "differ in more than their arms: host (tasks/pointwise-mlp, tasks/cnn1d), episode.steps (40, 20)"
    )


def test_other_code_and_other_margins_are_told(joined):
    machine = {"torch": "2.6.0", "esper-core": "0.1.0"}
    found = joined((OTTER, {"a": BETTER}, {"margin": 0.4}), (HERON, {"b": BEST}, {"machine": machine, "plugins": []}))
    assert found.margin == 0.4
    assert found.comparisons()[0]["verdict"] == "no difference shown"
    code, margins = found.warnings
    assert code.endswith('ran other code: torch ("2.13.0", "2.6.0"), esper-tasks ("0.1.0 (ad55eeb6)", null)')
    assert margins == f"the runs declared other margins ({OTTER} 0.4, {HERON} 0); the largest counts"


def test_many_differences_are_counted_rather_than_told(joined, write_run):
    config = write_run("c").joinpath("config.yaml").read_text()
    extra = "".join(f"part{place}: 1\n" for place in range(20))
    found = joined((OTTER, {"a": BETTER}, {}), (HERON, {"b": BEST}, {"config": config + extra}))
    assert found.warnings[0].endswith("part7 (null, 1), and 12 more")


def test_runs_that_measured_something_else_are_refused(joined):
    for other in (Metric("accuracy", "down", "%"), Metric("error", "up", "%"), Metric("accuracy", "up", "")):
        with pytest.raises(RunFolderError, match=r"E431 runs that measured something else: .* has accuracy in %, more"):
            joined((OTTER + other.name + other.direction + other.unit, {"a": NOISE}, {}), (
                HERON + other.name + other.direction + other.unit, {"a": NOISE}, {"metric": other},
            ))  # fmt: skip


def test_every_run_without_an_end_is_named_with_its_status_and_the_way_on(write_run):
    failed = write_run(OTTER, status="failed", reason="E232 x\ny")
    died = write_run(HERON, status="running")
    (died / "latest").write_text("000200")
    runs = write_run("runs-still", status="running")
    with pytest.raises(RunFolderError) as error, run_lock(runs):
        join([read_run(path) for path in (failed, died, runs)])
    assert [(problem.message, problem.hint) for problem in error.value.problems] == [
        (f"{OTTER} has no summary to compare: its status is failed: E232 x", f"Run it again:  esper run {failed}"),
        (f"{HERON} has no summary to compare: its status is died", f"Resume it:  esper resume {died}"),
        ("runs-still has no summary to compare: its status is running", "Wait for it to finish."),
    ]


def test_a_run_that_was_killed_before_its_first_checkpoint_goes_on_too(write_run, esper):
    """There is nothing to go on from, and it is begun again where it is: ``esper resume`` does that."""
    killed = write_run(OTTER, status="running")
    with pytest.raises(RunFolderError) as error:
        join([read_run(killed)])
    assert [problem.hint for problem in error.value.problems] == [f"Resume it:  esper resume {killed}"]
    assert esper("runs", "show", OTTER).out.endswith(f"\nResume it:  esper resume {killed}\n")


def test_a_configuration_that_cannot_be_read_is_told(write_run):
    path = write_run(OTTER, {"a": NOISE})
    (path / "config.yaml").write_text("task: [")
    with pytest.raises(RunFolderError, match="E430 cannot read"):
        join([read_run(path)])
    (path / "config.yaml").unlink()
    with pytest.raises(RunFolderError, match="there is no such file"):
        join([read_run(path)])


def test_names_that_would_be_the_same_are_told_apart(joined):
    later = "20261122-090000-quiet-otter"
    found = joined((OTTER, {"a": BETTER}, {}), (later, {"a": BEST}, {}))
    assert [one.sample.name for one in found.arms] == [f"{OTTER}/a", f"{later}/a"]


def test_only_the_arms_that_were_asked_for_are_compared(joined):
    arms = {"grown": BETTER, "random": NOISE}
    found = joined((OTTER, arms, {}), (HERON, {"grown": BEST}, {}), only=["grown"])
    assert [one.sample.name for one in found.arms] == ["quiet-otter/grown", "swift-heron/grown"]
    (one,) = found.comparisons()
    assert one["p_holm"] == one["p"]
    with pytest.raises(RunFolderError, match='no run has an arm "grwn"'):
        joined(("x", arms, {}), only=["grwn"])


def test_a_figure_that_is_no_number_leaves_its_comparison_unknown(joined):
    found = joined((OTTER, {"a": [math.inf, *NOISE[1:]], "b": BETTER, "c": BEST}, {}))
    comparisons = by_names(found.comparisons())
    assert comparisons["a", "b"]["why"] == "not finite"
    assert comparisons["a", "b"]["difference"] is None
    assert (comparisons["a", "b"]["n"], comparisons["a", "b"]["paired"]) == (8, True)
    assert comparisons["a", "b"].keys() == comparisons["b", "c"].keys()
    assert comparisons["b", "c"]["p_holm"] == 3 * comparisons["b", "c"]["p"]


def test_b8_drl_13_each_pair_has_test_interval_and_effect_size_and_may_show_nothing():
    """Mann-Whitney U, a paired bootstrap interval and effect sizes stand beside a verdict."""
    samples = [
        Sample("a", dict(enumerate(BETTER))),
        Sample("b", dict(enumerate(NOISE))),
        Sample("c", dict(enumerate(NOISE))),
    ]
    found = by_names(compare_all(samples, direction="up", margin=0.0))
    clear, none = found["a", "b"], found["b", "c"]
    assert (clear["verdict"], clear["why"], clear["p_holm"]) == ("better", None, 3 * 2 / 2**8)
    assert clear["ci_low"] < clear["boot_low"] < clear["difference"] < clear["boot_high"] < clear["ci_high"]
    ahead = sum(a > b for a in BETTER for b in NOISE) + sum(a == b for a in BETTER for b in NOISE) / 2
    assert (clear["u"], clear["cliffs_delta"]) == (ahead, 2 * ahead / 64 - 1)
    assert clear["effect_size"] > 50
    assert 0 < clear["u_p"] < 0.05
    assert (none["verdict"], none["why"], none["p"], none["u_p"]) == ("no difference shown", "interval", 1.0, 1.0)
