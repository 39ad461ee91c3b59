"""Every study has its controls: the twin, the random policy and the static control."""

from pathlib import Path

import pytest

from esper_core.app.compose import prepare
from esper_core.app.run import resume
from esper_core.leyline import RunFolderError
from esper_core.runs.records import read_run
from tests.end_to_end.conftest import SMALL

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "arms"),
    [
        ("plugins.yaml", ["heuristic", "twin", "capacity"]),
        ("examples/study.yaml", ["heuristic", "random", "twin", "capacity-of-heuristic", "capacity-of-random"]),
    ],
)
def test_run_15_the_default_run_and_a_study_include_their_controls(file, arms, esper):
    assert esper("run", ROOT / file, "--dry-run", "--json").json["arms"] == arms


def test_run_15_results_include_their_controls(run):
    ran = run("capacity=true")
    rows = [line.split()[0] for line in ran.answer.out.splitlines() if line.strip()]
    assert rows[1:4] == ["schedule", "twin", "capacity"]
    results = ran.json("summary.json")["results"]
    arms = results["arms"]
    assert arms["capacity"]["params"] == arms["schedule"]["params"] > arms["twin"]["params"]
    assert arms["capacity"]["reward"] is None, "nobody was beside it to be better than"
    assert run(file=ran.path, runs="again").json("summary.json")["results"] == results


def test_without_growth_there_is_no_static_control(run, small):
    small.write_text(SMALL.split("policy:\n")[0] + "policy: static\n" + SMALL[SMALL.index("environments:") :])
    assert list(run("capacity=true").json("summary.json")["results"]["arms"]) == ["static", "twin"]


def test_resuming_a_run_that_another_process_just_finished_changes_nothing(run):
    path = run().path
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file() and file.name != ".lock"}
    with pytest.raises(RunFolderError, match="just finished by another process"):
        resume(prepare(path / "config.yaml"), read_run(path))
    assert {name: (path / name).read_bytes() for name in before} == before
