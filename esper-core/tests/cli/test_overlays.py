"""``--overlay`` of ``esper explain``, ``check`` and ``run``."""

from __future__ import annotations

import pytest

BELOW = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: static
episode: {steps: 3, batches: 1, batch_size: 20}
"""


@pytest.fixture
def files(tmp_path, monkeypatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "below.yaml").write_text(BELOW)
    (tmp_path / "top.yaml").write_text("episode: {steps: 2}\n")
    (tmp_path / "wrong.yaml").write_text("# overlay\nepisode: {stps: 2}\n")
    return "shared/below.yaml", "--overlay", "top.yaml"


def test_explain_says_which_file_a_value_is_from(esper, files) -> None:
    out = esper("explain", *files, "--", "episode").out
    assert "from top.yaml:1:18\n" in out
    assert "from shared/below.yaml:5:30\n" in out


@pytest.mark.members
def test_check_names_the_overlay_that_is_wrong(esper, files) -> None:
    assert esper("check", *files).status == 0
    answer = esper("check", *files, "--overlay", "wrong.yaml")
    assert answer.status == 2
    assert "wrong.yaml:2:11   episode.stps" in answer.out + answer.err


@pytest.mark.members
def test_run_takes_overlays(esper, files) -> None:
    plans = [esper("run", *files[:count], "--set", "environments=1", "--dry-run").out for count in (1, 3)]
    assert ["3 steps" in plan for plan in plans] == [True, False]
    assert ["2 steps" in plan for plan in plans] == [False, True]
