"""Records of runs: run directories are read, listed and found, and other folders are refused."""

import json
from functools import partial

import pytest

from esper_core.leyline import RunFolderError
from esper_core.plugins import Extension
from esper_run.runs.directory import run_lock
from esper_run.runs.records import list_runs, load_run, read_growth, read_run
from tests.support.configurations import STRIPES, problem_of

NAME = "20261121-101512-quiet-otter"
ARMS = {"grown": [0.8, 0.9], "twin": [0.5, 0.6]}


def refused(code, function, *arguments, **more):
    """Return the message of the refusal with this code."""
    problem = problem_of(partial(function, **more), *arguments)
    assert problem.code == code
    return str(problem)


def test_a_finished_run_is_found_by_its_folder_its_id_and_its_words(write_run, tmp_path):
    path = write_run(NAME, {"grown": [0.8] * 8, "twin": [0.5] * 8})
    for name in (path, str(path), NAME, "quiet-otter"):
        run = load_run(name, runs_dir=tmp_path / "runs")
        assert (run.path, run.id, run.name, run.status, run.seconds) == (path, NAME, NAME, "done", 10.0)
        assert (run.reason, run.events) == ("", run.path / "events.jsonl")
    assert load_run(path, runs_dir=tmp_path / "elsewhere").path == path
    assert run.results["arms"]["grown"]["test"]["mean"] == pytest.approx(0.8)
    assert run.results["comparisons"][0]["difference"] == pytest.approx(0.3)
    assert run.config()["episode"] == {"steps": 40, "batches": 32}
    assert repr(run) == f"<Run {NAME}: done>"


def test_a_run_that_did_not_end_has_no_results(write_run):
    run = read_run(write_run("a", status="failed", reason="E232 it raised\nred\x1b[31m"))
    assert (run.summary, run.results, run.seconds, run.status) == (None, None, 120.0, "failed")
    assert repr(run) == "<Run a: failed; E232 it raised red\\x1b[31m>"
    assert read_run(write_run("b", status="stopped", finished=None)).seconds is None


def test_a_running_run_whose_lock_is_free_has_died(write_run):
    path = write_run("a", status="running", finished=None)
    assert read_run(path).status == "died"
    assert not (path / ".lock").exists(), "reading leaves no lock"
    with run_lock(path):
        assert read_run(path).status == "running"
    assert read_run(path).status == "died"


SIDEWAYS = b'{"results": {"metric": {"name": "x", "direction": "sideways"}}}'


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("manifest.json", b"{", "it is not JSON"),
        ("manifest.json", b"[]", "the whole: "),
        ("manifest.json", b'{"manifest_version": 3, "name": "of a browser"}', "format: Field required"),
        ("summary.json", SIDEWAYS, "results.metric.direction"),
        ("summary.json", b"\xff\xfe{}", "it is not JSON"),
    ],
)
def test_an_invalid_file_is_named_with_what_is_wrong(write_run, file, content, message):
    path = write_run("a", ARMS)
    (path / file).write_bytes(content)
    refusal = refused("E430", read_run, path)
    assert str(path) in refusal
    assert message in refusal


@pytest.mark.parametrize("name", ["manifest.json", "summary.json", "growth.json"])
def test_a_huge_file_is_refused_without_reading_it_and_hides_no_other_run(write_run, name):
    path, other = write_run("a", ARMS), write_run("b", ARMS)
    with (path / name).open("wb") as file:
        file.truncate(1 << 40)
    reading = (read_growth, read_run(path)) if name == "growth.json" else (read_run, path)
    assert "it has more than 67,108,864 bytes; ESPER_MAX_FILE_MIB allows more" in refused("E430", *reading)
    if name != "growth.json":
        assert {run.path: run.status for run in list_runs(path.parent)} == {other: "done", path: "unreadable"}


def test_the_limit_of_a_file_is_a_setting(write_run, monkeypatch):
    path = write_run("a", ARMS)
    (path / "summary.json").write_bytes((path / "summary.json").read_bytes() + b" " * (2 << 20))
    monkeypatch.setenv("ESPER_MAX_FILE_MIB", "1")
    assert "more than 1,048,576 bytes" in refused("E430", read_run, path)
    monkeypatch.setenv("ESPER_MAX_FILE_MIB", "3")
    assert read_run(path).status == "done"


def test_a_link_in_a_run_is_not_followed(write_run):
    path = write_run("a", ARMS)
    (path / "summary.json").rename(path.parent / "moved.json")
    (path / "summary.json").symlink_to(path.parent / "moved.json")
    assert "received a link" in refused("E430", read_run, path)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        *(({name: value}, name) for name, value in (("plugins", [{"id": "a"}]), ("machine", []), ("status", "melted"))),
        ({"format": 2}, "of format 2; this Esper reads format 1"),
    ],
)
def test_a_manifest_with_other_records_or_another_format_is_refused(write_run, odd, message):
    assert message in refused("E430", read_run, write_run("a", ARMS, **odd))


FIGURES = [
    *(("results.arms.grown.test.mean", value) for value in ("NaN", True, 10**400)),
    ("results.arms.grown.params", "Infinity"),
    ("timing.total", float("nan")),
    ("results.arms.grown.test.n", "2"),
    ("results.arms.twin.episodes.0.test", "NaN"),
    ("results.comparisons.0.p", "NaN"),
]


def put(path, place, value):
    """Change a figure in the summary of a run."""
    summary = inner = json.loads((path / "summary.json").read_text())
    *above, last = (int(key) if key.isdigit() else key for key in place.split("."))
    for key in above:
        inner = inner[key]
    inner[last] = value
    (path / "summary.json").write_text(json.dumps(summary))


@pytest.mark.parametrize(("place", "value"), FIGURES)
def test_an_invalid_figure_makes_only_its_own_summary_unreadable(write_run, place, value):
    path, other = write_run("a", ARMS), write_run("b", ARMS)
    put(path, place, value)
    assert f"{place}: " in refused("E430", read_run, path)
    assert [(run.path, run.status) for run in list_runs(path.parent)] == [(other, "done"), (path, "unreadable")]


def test_figures_may_be_integers_or_unknown(write_run):
    path = write_run("a", ARMS)
    put(path, "results.arms.grown.test.mean", 1)
    put(path, "results.arms.grown.test.ci_low", None)
    assert read_run(path).results["arms"]["grown"]["test"]["mean"] == 1


def test_grown_blueprints_are_read_by_arm_and_episode(write_run):
    path = write_run("a", ARMS)
    assert read_growth(read_run(path)) == {}
    grown = [{"blueprint": "conv_light", "slot": "early", "version": 1}]
    episodes = [{"arm": "grown", "seed": 0, "grown": grown}, {"arm": "grown", "seed": 1, "grown": []}]
    (path / "growth.json").write_text(json.dumps({"format": 1, "episodes": episodes}))
    assert read_growth(read_run(path)) == {"grown": [["conv_light in early"], []]}
    (path / "growth.json").write_text('{"episodes": [{"arm": 1}]}')
    refused("E430", read_growth, read_run(path))


def test_a_name_or_folder_that_is_no_run_is_refused_with_a_hint(write_run, tmp_path):
    path = write_run(NAME)
    runs, nowhere = path.parent, tmp_path / "nowhere"
    for wrong, message in {
        runs: "it has no manifest.json",
        path / "config.yaml": f"there is no run {path}/config.yaml",
        runs / "20261121-101512-quiet-oter": f"Did you mean {path}?",
        "20261121-101512-quiet-oter": f"Did you mean {path}?",
        "quiet-oter": "there is no run quiet-oter",
        "otter": "there is no run otter",
        "xyz": f"esper runs list --runs-dir {runs}",
        "a\0b": "there is no run",
    }.items():
        assert message in refused("E420", load_run, wrong, runs_dir=runs)
    write_run("20261122-101512-quiet-otter")
    ambiguity = refused("E420", load_run, "quiet-otter", runs_dir=runs)
    assert f"2 runs in {runs} are called quiet-otter" in ambiguity
    assert "Give the whole id: 20261121-101512-quiet-otter, 20261122-101512-quiet-otter" in ambiguity
    refused("E420", read_run, nowhere)
    refused("E420", load_run, "xyz", runs_dir=nowhere)
    refused("E420", list_runs, nowhere)
    (runs / "file").touch()
    refused("E430", list_runs, runs / "file")


def test_without_a_package_that_has_stores_the_error_names_one(monkeypatch, esper, tmp_path) -> None:
    find = Extension.find
    monkeypatch.setattr(Extension, "find", lambda group, kind: {} if kind == "store" else find(group, kind))
    message = r"E434 the store s3://bucket cannot be used(?s:.*)pip install esper-scale"
    with pytest.raises(RunFolderError, match=message):
        load_run("s3://bucket/some-run")
    (tmp_path / "run.yaml").write_text(f"{STRIPES}store: s3://bucket/prefix\n")
    answer = esper("check", tmp_path / "run.yaml")
    assert answer.status == 1
    assert "pip install esper-scale" in answer.out + answer.err
