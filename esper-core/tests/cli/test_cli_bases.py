"""What does the command line say of a file that is built on another, and of a value that nothing reads?"""

from __future__ import annotations

import json

import pytest

BELOW = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: static
episode: {steps: 3, batches: 1, batch_size: 20}
optimizer: {seed: {momentum: 0.5}}
"""


@pytest.fixture
def top(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "below.yaml").write_text(BELOW)
    (tmp_path / "top.yaml").write_text("base: shared/below.yaml\nepisode: {steps: 2}\n")
    return "top.yaml"


def test_explain_says_which_file_a_value_is_from(esper, top) -> None:
    answer = esper("explain", top, "episode")
    assert "from top.yaml:2:18\n" in answer.out
    assert "from shared/below.yaml:5:30\n" in answer.out
    assert "default 100; from shared/below.yaml:5:45\n" in answer.out


def test_explain_tells_of_the_base_first(esper, top) -> None:
    (base,) = json.loads(esper("explain", top, "base", "--json").out)
    assert (base["value"], base["origin"]) == ("shared/below.yaml", "top.yaml:1:7")
    assert esper("explain", top).out.startswith("base: shared/below.yaml\n")


@pytest.mark.members
def test_check_warns_of_a_value_that_nothing_reads(esper, top) -> None:
    answer = esper("check", top, "--json")
    told = json.loads(answer.out)
    assert (answer.status, told["ok"], told["problems"]) == (0, True, [])
    (warning,) = told["warnings"]
    assert (warning["code"], warning["file"], warning["line"]) == ("E114", "shared/below.yaml", 6)
    assert answer.err.startswith("warning: E114 momentum has no effect: ")
    assert "warning: E114 momentum" in esper("run", top, "--dry-run").err
