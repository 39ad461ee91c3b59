"""Every study has its controls: the twin, the random policy and the static control."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from esper_core.app.compose import prepare
from esper_core.app.run import resume
from esper_core.leyline import RunFolderError
from esper_core.runs.records import read_run
from tests.end_to_end.conftest import SMALL, Answer

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "arms"),
    [
        ("plugins.yaml", ["heuristic", "twin", "capacity"]),
        (
            "examples/study.yaml",
            ["heuristic", "random", "twin", "capacity-of-heuristic", "capacity-of-random"],
        ),
    ],
)
def test_run_15_the_default_run_and_a_study_carry_their_controls(
    file: str, arms: list[str], esper: Callable[..., Answer]
) -> None:
    assert esper("run", ROOT / file, "--dry-run", "--json").json["arms"] == arms


def test_run_15_controls_stand_beside_the_result(esper: Callable[..., Answer], tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("capacity: false", "capacity: true"))
    answer = esper("run", file, "--runs-dir", tmp_path / "runs", "--quiet")
    assert answer.code == 0, answer.err
    rows = [line.split()[0] for line in answer.out.splitlines() if line.strip()]
    assert rows[1:4] == ["schedule", "twin", "capacity"]

    run = next((tmp_path / "runs").iterdir())
    arms = json.loads((run / "summary.json").read_text())["results"]["arms"]
    assert arms["capacity"]["params"] == arms["schedule"]["params"] > arms["twin"]["params"]
    assert arms["capacity"]["reward"] is None, "nobody was beside it to be better than"
    again = esper("run", run, "--runs-dir", tmp_path / "again", "--quiet", "--json")
    assert again.json["results"] == json.loads((run / "summary.json").read_text())["results"]


def test_where_nothing_was_grown_there_is_nothing_to_be_had_from_the_start(
    esper: Callable[..., Answer], tmp_path: Path
) -> None:
    file = tmp_path / "small.yaml"
    head, tail = SMALL.split("policy:\n")[0], SMALL[SMALL.index("environments:") :]
    file.write_text(head + "policy: static\n" + tail.replace("capacity: false", "capacity: true"))
    answer = esper("run", file, "--runs-dir", tmp_path / "runs", "--quiet", "--json")
    assert list(answer.json["results"]["arms"]) == ["static", "twin"]


def test_who_comes_too_late_to_resume_a_run_that_was_just_finished_changes_nothing(
    esper: Callable[..., Answer], small: Path, tmp_path: Path
) -> None:
    assert esper("run", small, "--runs-dir", tmp_path / "runs", "--quiet").code == 0
    (run,) = (tmp_path / "runs").iterdir()
    before = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file() and file.name != ".lock"}
    with pytest.raises(RunFolderError, match="just finished by another process"):
        resume(prepare(run / "config.yaml"), read_run(run))
    assert {name: (run / name).read_bytes() for name in before} == before


CHATTY = """
from torch import nn

from esper_core import BlueprintSpec, hookimpl


class Chatty(nn.Module):
    def __init__(self, site):
        super().__init__()
        self.mix = nn.Conv1d(site.channels, site.channels, 1)

    def forward(self, hidden):
        print("hello from the block")
        return hidden + self.mix(hidden)


@hookimpl
def esper_register_blueprints(registry):
    registry.add("chatty", Chatty, BlueprintSpec("sequence", "c*c + c"))
"""


def test_what_a_block_prints_never_stands_before_the_json(esper: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "chatty_blocks.py").write_text(CHATTY)
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("conv_light", "chatty") + "plugins: {local: [chatty_blocks.py]}\nlanes: 2\n")
    answer = esper("run", file, "--runs-dir", tmp_path / "runs", "--quiet", "--json")
    assert answer.json["status"] == "done"
    assert "hello from the block" in answer.err
