"""Comparisons of runs: which arms are compared, how, with which warnings; as text, JSON and a page."""

import json
import sys

import pytest

from esper_core.leyline import Metric, RunFolderError
from esper_run import load_run
from esper_run.runs.directory import run_lock
from esper_watch.comparison import compare_runs
from esper_watch.comparison_view import print_comparison
from tests.support.run_folders import BETTER, NOISE

BEST = [value + 0.3 - 0.001 * place for place, value in enumerate(NOISE)]
WEAKLY_BETTER = [value + 0.1 for value in NOISE[:6]] + [NOISE[6] + 0.02, NOISE[7] - 0.03]
OTTER, HERON = "20261121-101512-quiet-otter", "20261121-113002-swift-heron"
CLEAR = "\x1b[2J"


@pytest.fixture
def compared(write_run):
    """Compare runs that are given as (name, arms, more of the manifest)."""

    return lambda *runs: compare_runs([load_run(write_run(name, arms, **more)) for name, arms, more in runs])


def pairs(comparison):
    return [(pair["a"], pair["b"]) for pair in comparison.comparisons]


def test_a_twin_with_the_same_figures_in_both_runs_is_used_once(compared, capsys):
    comparison = compared((OTTER, {"grown": BETTER, "twin": NOISE}, {}), (HERON, {"grown": BEST, "twin": NOISE}, {}))
    assert [arm.sample.name for arm in comparison.arms] == ["quiet-otter/grown", "twin", "swift-heron/grown"]
    assert len(comparison.comparisons) == 3
    assert comparison.identical == ["quiet-otter/twin against swift-heron/twin: identical"]
    print_comparison(comparison)
    assert "\nquiet-otter/twin against swift-heron/twin: identical" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "second", "expected", "left_out"),
    [
        (
            {"heuristic": BETTER, "twin": NOISE},
            {"bandit": BEST, "twin": BETTER},
            ["1/heuristic 1/twin", "1/heuristic 2/bandit", "2/bandit 2/twin"],
            3,
        ),
        (
            {"a": BETTER, "b": NOISE, "twin": NOISE, "capacity-of-a": BEST, "capacity-of-b": BEST},
            {"a": BEST, "c": NOISE},
            ["1/a 1/b", "1/a 1/twin", "1/a 1/capacity-of-a", "1/a 2/a", "1/b 1/twin", "1/b 1/capacity-of-b", "2/a 2/c"],
            14,
        ),
        ({"twin": BETTER}, {"twin": BEST}, ["1/twin 2/twin"], 0),
    ],
    ids=["no name in common", "each with its own control", "nothing but controls"],
)
def test_acting_arms_are_compared_with_each_other_and_their_controls(compared, first, second, expected, left_out):
    comparison = compared((OTTER, first, {}), (HERON, second, {}))
    names = [" ".join(pair).replace("quiet-otter", "1").replace("swift-heron", "2") for pair in pairs(comparison)]
    assert (names, comparison.left_out) == (expected, left_out)


def test_pairs_that_the_summary_leaves_out_are_left_out(write_run):
    path = write_run(OTTER, {"a": BETTER, "b": NOISE, "c": BEST})
    summary = json.loads((path / "summary.json").read_text())
    del summary["results"]["comparisons"][1:]
    (path / "summary.json").write_text(json.dumps(summary))
    run = load_run(path)
    assert pairs(compare_runs([run])) == [("a", "b")]
    assert compare_runs([run]).left_out == 2
    assert len(pairs(compare_runs([run], every=True))) == 3


def test_runs_of_one_name_in_two_folders_are_two_runs(write_run, tmp_path):
    arms = {"a": BETTER, "twin": NOISE}
    path = write_run(OTTER, arms)
    other = write_run(HERON, {"a": BEST, "twin": BETTER}).rename(tmp_path / OTTER)
    comparison = compare_runs([load_run(path), load_run(other)])
    first, second = f"{path}/a", f"{other}/a"
    assert pairs(comparison) == [(first, f"{path}/twin"), (first, second), (second, f"{other}/twin")]


def test_a_run_that_is_given_twice_is_one_run(write_run):
    run = load_run(write_run(OTTER, {"grown": BETTER, "twin": NOISE}))
    comparison = compare_runs([run, run])
    assert [arm.sample.name for arm in comparison.arms] == ["grown", "twin"]
    assert comparison.warnings == []


def test_runs_with_other_seeds_are_refused_with_the_remedy(compared):
    with pytest.raises(RunFolderError) as caught:
        compared((OTTER, {"grown": BETTER}, {}), (HERON, {"grown": BEST}, {"first": 1}))
    (problem,) = caught.value.problems
    assert problem.code == "E431"
    assert problem.message == f"{OTTER} and {HERON} have different RNG seeds: they share 7 of 8 and 8"
    remedy = "Run one of them again with the values of seed, environments and rounds of the other."
    assert str(problem.hint).startswith(remedy)


def test_runs_with_other_settings_of_their_task_are_refused(compared, write_run):
    config = write_run("c").joinpath("config.yaml").read_text().replace("noise: 0.1", "noise: 0.9")
    differ = f"the runs have different tasks: {OTTER} and {HERON} differ in: task.settings.noise \\(0.1, 0.9\\)"
    with pytest.raises(RunFolderError, match=differ):
        compared((OTTER, {"grown": BETTER}, {}), (HERON, {"grown": BEST}, {"config": config}))


def test_a_warning_reports_configuration_differences_outside_of_arms(compared, write_run):
    config = write_run("c").joinpath("config.yaml").read_text()
    changed = (
        config.replace("steps: 40", "steps: 20")
        .replace("use: tasks/pointwise-mlp, settings: {hidden: 32}", "use: tasks/cnn1d, settings: {kernel: 3}")
        .replace("policies/heuristic", "policies/random")
        .replace("name: null", "name: other\nseed: 7\nlanes: 4\ncapacity: false")
    )
    comparison = compared((OTTER, {"grown": BETTER}, {}), (HERON, {"grown": BEST}, {"config": changed}))
    (warning,) = comparison.warnings
    assert warning.endswith("differ in: host (tasks/pointwise-mlp, tasks/cnn1d), episode.steps (40, 20)")


def test_warnings_report_different_code_and_data(compared):
    machine, data = {"torch": "2.6.0", "esper-core": "0.1.0"}, {"train": "0a", "test": "0b"}
    other = {"machine": machine, "plugins": [], "data": data | {"test": "0c"}}
    code, differing = compared((OTTER, {"a": BETTER}, {"data": data}), (HERON, {"b": BEST}, other)).warnings
    assert differing.startswith(f"{OTTER} and {HERON} have different data (test): ")
    assert code.endswith('ran different code: torch ("2.13.0", "2.6.0"), esper-tasks ("0.1.0 (ad55eeb6)", none)')


def test_one_file_plugins_are_compared_by_their_files(compared):
    """All of them have the package "local file"."""

    def local(name: str, sha256: str) -> dict[str, str]:
        details = {"id": name, "package": "local file", "version": sha256[:8], "entry_point": f"{name}.py"}
        return {**details, "sha256": sha256}

    shared, more = local("squeeze", "f6c8d151d60e"), local("counting", "f40b3acc82e3")
    first, second = {"plugins": [shared]}, {"plugins": [shared, more]}
    warning = compared((OTTER, {"a": BETTER}, first), (HERON, {"b": BEST}, second)).warnings[0]
    assert warning.endswith('ran different code: counting.py (none, "(f40b3acc)")')


def test_every_unfinished_run_is_named_with_its_status_and_a_hint(write_run):
    failed = write_run(OTTER, status="failed", reason="E232 x\ny")
    died = write_run(HERON, status="running")
    (died / "latest").write_text("000200")
    runs = write_run("runs-still", status="running")
    with pytest.raises(RunFolderError) as error, run_lock(runs):
        compare_runs([load_run(path) for path in (failed, died, runs)])
    assert [(problem.message, problem.hint) for problem in error.value.problems] == [
        (f"{OTTER} has no summary to compare: its status is failed: E232 x", f"Resume it:  esper resume {failed}"),
        (f"{HERON} has no summary to compare: its status is died", f"Resume it:  esper resume {died}"),
        ("runs-still has no summary to compare: its status is running", "Wait for it to finish."),
    ]


def test_a_configuration_that_cannot_be_read_is_an_error(write_run):
    path = write_run(OTTER, {"a": NOISE})
    (path / "config.yaml").write_text("task: [")
    with pytest.raises(RunFolderError, match="E430 cannot read"):
        compare_runs([load_run(path)])
    (path / "config.yaml").unlink()
    with pytest.raises(RunFolderError, match="there is no such file"):
        compare_runs([load_run(path)])


def test_eight_shared_seeds_are_enough_for_pairs(compared):
    more = [*BEST, 0.7, 0.9]
    comparison = compared((OTTER, {"grown": BETTER}, {}), (HERON, {"grown": more}, {}))
    (pair,) = comparison.comparisons
    assert pair["n"] == 8
    paired = f"the arms of {OTTER} and {HERON} are paired by the 8 RNG seeds that both have; they have 8 and 10"
    assert comparison.warnings == [paired]


def test_b8_drl_13_each_pair_has_test_and_interval_and_may_show_nothing(compared):
    clear, _, none = compared((OTTER, {"a": BETTER, "b": NOISE, "c": NOISE}, {})).comparisons
    assert [(pair["a"], pair["b"]) for pair in (clear, none)] == [("a", "b"), ("b", "c")]
    assert (clear["verdict"], clear["why"], clear["p_holm"]) == ("better", None, 3 * 2 / 2**8)
    assert clear["ci_low"] < clear["difference"] < clear["ci_high"]
    assert (none["verdict"], none["why"], none["p"]) == ("no difference shown", "interval", 1.0)


# --- the command


def test_one_run_is_compared_in_words(esper, write_run):
    write_run(OTTER, {"grown": BETTER, "twin": NOISE})
    answer = esper("compare", OTTER)
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.splitlines()[:6] == [
        "arm    test accuracy  95 % interval     n  parameters  FLOPs    reward",
        "grown  51.0 %         38.8 % to 63.1 %  8  100         unknown  +1.0",
        "twin   30.6 %         18.5 % to 42.7 %  8  100         unknown  +1.0",
        "",
        "grown is better than twin",
        "  +20.4 points, 95 % interval +20.1 to +20.6 points; 8 pairs",
    ]
    assert answer.out.splitlines()[6] == "  p = 0.0078"


@pytest.mark.parametrize(
    ("arms", "why"),
    [
        ({"a": BETTER[:7], "b": NOISE[:7]}, "a against b: no difference shown, because a verdict needs 8 net"),
        ({"a": NOISE, "b": NOISE}, "because the interval does not clear 0\n"),
        (dict.fromkeys("abcd", NOISE) | {"e": BETTER}, "needs 9 networks of each arm among 10 comparisons\n"),
        ({"a": NOISE, "b": WEAKLY_BETTER, "c": NOISE}, "because p, adjusted for 3 comparisons, is above 0.05\n"),
        ({"a": [float("nan"), *NOISE[1:]], "b": NOISE}, "because a figure is not finite\n"),
        ({"a": [0.5], "b": [0.6]}, "a verdict needs 8 networks of each arm\n  \N{MINUS SIGN}10.0 points; 1 pair\n"),
    ],
)
def test_a_missing_verdict_is_explained(esper, write_run, arms, why):
    write_run(OTTER, arms)
    assert why in esper("compare", OTTER).out


def test_json_has_every_figure_and_stderr_the_warnings(esper, write_run):
    path = write_run(OTTER, {"grown": BETTER})
    write_run(HERON, {"grown": [*NOISE, 0.3]})
    answer = esper("compare", path, HERON, "--json")
    output = answer.json
    assert [run["id"] for run in output["runs"]] == [OTTER, HERON]
    assert output["metric"] == {"name": "accuracy", "direction": "up", "unit": "%"}
    assert output["arms"]["quiet-otter/grown"]["runs"] == [OTTER]
    assert output["arms"]["quiet-otter/grown"]["episodes"][0] == {"seed": 0, "test": 0.5, "alone": None}
    (pair,) = output["comparisons"]
    assert list(pair) == ["a", "b", "difference", "ci_low", "ci_high", "p", "p_holm", "n", "verdict", "why", "family"]
    assert answer.err == f"warning: {output['warnings'][0]}\n"


@pytest.fixture
def unlike(write_run):
    """Two runs with other figures: each with a policy, its twin, and a capacity control."""
    arms = {"heuristic": BETTER, "twin": NOISE, "capacity": [value + 0.1 for value in NOISE]}
    write_run(OTTER, arms)
    write_run(HERON, {name: [value + 0.05 for value in values] for name, values in arms.items()})


def test_a_verdict_of_a_run_survives_a_comparison_with_another_run(esper, unlike):
    alone, together = esper("compare", OTTER).out, esper("compare", OTTER, HERON).out
    assert "\nheuristic is better than twin\n" in alone
    assert "\nquiet-otter/heuristic is better than quiet-otter/twin\n" in together
    assert together.endswith("\n10 other pairs of arms were not compared: esper compare --all compares every pair.\n")
    assert "not compared" not in alone


def test_one_question_has_one_adjusted_p_value_in_every_view(esper, unlike):
    """Alone, with another run, with --all and with --arm: that of the three pairs of its run."""
    calls = [[OTTER], [OTTER, HERON], [OTTER, HERON, "--all"], [OTTER, "--arm", "heuristic", "--arm", "twin"]]
    adjusted = [
        comparison["p_holm"]
        for call in calls
        for comparison in esper("compare", *call, "--json").json["comparisons"]
        if (comparison["a"].rpartition("/")[2], comparison["b"].rpartition("/")[2]) == ("heuristic", "twin")
        and comparison["a"].rpartition("/")[0] == comparison["b"].rpartition("/")[0]
    ]
    assert adjusted == [pytest.approx(3 * 2 / 2**8)] * 6
    families = [comparison["family"] for comparison in esper("compare", OTTER, HERON, "--json").json["comparisons"]]
    assert sorted(families) == [1, 3, 3, 3, 3]


def test_all_compares_every_pair_and_arm_those_of_its_names(esper, unlike, tmp_path):
    every = esper("compare", OTTER, HERON, "--all").out
    assert "adjusted for 9 comparisons)" in every
    assert "not compared" not in every
    named = esper("compare", OTTER, HERON, "--arm", "heuristic", "--arm", "twin", "--json").json
    assert len(named["comparisons"]) == 6
    text = esper("compare", OTTER, "--arm", "twin").out
    assert text.endswith("There is one arm, so there is nothing to compare.\n")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nothing"], 1, "E420 there is no run nothing\n"),
        ([OTTER, "other"], 1, "E431 the runs have different metrics"),
        ([OTTER, "--arm", "twn"], 1, 'E431 no run has an arm "twn"\n  Did you mean "twin"?\n'),
        ([], 2, "Missing argument"),
    ],
)
def test_runs_that_cannot_be_compared_are_errors(esper, write_run, arguments, status, message):
    write_run(OTTER, {"grown": BETTER, "twin": NOISE})
    write_run("other", {"grown": NOISE}, metric=Metric("loss", "down"))
    answer = esper("compare", *arguments)
    assert (answer.status, answer.out) == (status, "")
    assert message in answer.err


@pytest.mark.parametrize("width", [30, 80])
def test_the_text_fits_the_terminal_and_its_control_characters_are_escaped(esper, write_run, monkeypatch, width):
    path = write_run(f"a{CLEAR}", {f"grown{CLEAR}": BETTER, "twin": NOISE})
    other = write_run(f"b{CLEAR}", {"grown": NOISE, "twin": BEST})
    monkeypatch.setenv("COLUMNS", str(width))
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(type(stream), "isatty", lambda stream: True, raising=False)
    answer = esper("compare", path, other)
    assert answer.status == 0
    assert CLEAR not in answer.out + answer.err
    assert max(len(line) for line in answer.out.splitlines() if "/" not in line) <= max(width, 34)
