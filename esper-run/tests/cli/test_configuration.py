"""``esper check``: problems and warnings are printed, names suggested."""

import re

import pytest

from tests.support.configurations import STRIPES


@pytest.mark.members
@pytest.mark.parametrize(
    ("fused", "way"), [("true", "together."), ("false", "one after another: compute.fused is false.")]
)
def test_check_says_how_much_a_run_trains_and_whether_networks_train_together(esper, file, fused, way) -> None:
    _, size, groups = esper("check", file, "--set", f"compute.fused={fused}").out.splitlines()
    assert re.fullmatch(r"schedule, twin: \d episodes each, of \d+ steps of \d batches, on a host of [\d,]+ .*", size)
    assert groups.endswith(f" train {way}")


@pytest.mark.members
@pytest.mark.parametrize(
    ("steps", "gates", "warned"), [(16, "strict", True), (17, "strict", False), (14, "off", True), (15, "off", False)]
)
def test_an_episode_without_time_for_the_looks_of_a_gate_is_a_warning(esper, file, steps, gates, warned) -> None:
    changes = [f"episode.steps={steps}", f"growth.gates='{gates}'", "policy=heuristic"]
    answer = esper("check", file, *(word for change in changes for word in ("--set", change)))
    looks = " and 2 more for the gate before keeping" if gates == "strict" else ""
    note = f"which needs 15 steps (a preview of 6 and two ramps of 4){looks}: raise episode.steps"
    assert (f"{steps} steps are too few for any blueprint, {note}" in answer.err) == warned


@pytest.mark.members
def test_broken_plugin_that_is_not_used_is_a_warning_of_one_line(esper, install, file) -> None:
    before = esper("check", file)
    path = install("bad", "print('noise')\n1 / 0\n")
    after = esper("check", file)
    assert (before.status, before.err) == (0, "")
    assert (after.status, after.out) == (0, before.out)
    assert after.err == (
        'noise\nwarning: E210 plugin "bad" (esper-bad 1.0) cannot be imported: ZeroDivisionError: division by zero'
        f"  {path}:2  Tell the author of esper-bad, or leave it out:  plugins.disable: [bad]\n"
    )


@pytest.mark.members
def test_check_in_json_lists_problems_and_warnings(esper, install, file, tmp_path) -> None:
    planned = {"arms": ["schedule", "twin"], "groups": "Networks of one structure train together."}
    assert esper("check", file, "--json").json == {"ok": True, "problems": [], "warnings": []} | planned
    path = install("bad", "1 / 0\n")
    install.damaged("esper-torn")
    answer = esper("check", file, "--json")
    report = answer.json
    assert (answer.status, report["ok"], report["problems"]) == (0, True, [])
    broken, torn = report["warnings"]
    assert (broken["code"], torn["code"]) == ("E210", "E223")
    assert set(broken) == {"code", "message", "file", "line", "column", "path", "hint"}
    assert (broken["file"], broken["line"], broken["column"], broken["path"]) == (str(path), 1, None, None)
    assert answer.err.count("warning: ") == 2
    (tmp_path / "small.yaml").write_text(STRIPES.replace("stripes", "stripse"))
    answer = esper("check", file, "--json")
    report = answer.json
    assert (answer.status, report["ok"], [problem["code"] for problem in report["problems"]]) == (2, False, ["E205"])
    assert [problem["code"] for problem in report["warnings"]] == ["E210", "E223"]
