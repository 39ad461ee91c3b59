"""Warnings of a run, and results that cannot be written."""

import re

import pytest

from esper_core.config import parse_config
from esper_core.leyline import ConfigError
from tests.end_to_end.conftest import add_plugin


def test_a_run_that_fails_while_results_are_written_says_so(run, monkeypatch):
    def full(value: object) -> str:
        raise MemoryError("no room")

    monkeypatch.setattr("esper_core.app.run.dump_config", full)
    told = run(options=(), code=1).json("manifest.json")
    assert (told["status"], told["exit"], told["reason"]) == ("failed", 1, "MemoryError: no room")


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--json"]])
def test_a_warning_is_passed_on_once_and_is_in_the_summary(options, run):
    ran = run("policy.settings.plan[2].step=99", "rounds=2", options=options)
    said = "arm schedule: not carried out in 2 of 2 episodes: plan[2]: fossilise in early, from step 99"
    assert ran.answer.err.count(f"warning: {said}") == 1
    (warning,) = ran.json("summary.json")["warnings"]
    assert warning.startswith(said)
    assert said in ran.text("log.txt")
    if "--json" in options:
        assert ran.answer.json["warnings"] == [warning]


@pytest.mark.parametrize("name", ["..", "a/b", "x" * 300, "", "1st", "a\nb"])
def test_an_invalid_name_is_refused_before_anything_is_loaded(name, run, tmp_path):
    ran = run(file=tmp_path / "missing.yaml", options=("--name", name), code=2)
    assert "--name" in ran.answer.err
    assert "expected a letter, then at most 49 letters, digits, - and _; received" in ran.answer.err
    assert "missing.yaml" not in ran.answer.err
    assert not ran.runs.exists()


def test_the_configuration_in_the_hint_for_a_missing_policy_is_valid(esper, small):
    text = small.read_text()
    without = text[: text.index("policy:")] + text[text.index("environments:") :]
    with pytest.raises(ConfigError) as caught:
        parse_config(without.encode(), file="f.yaml")
    (problem,) = caught.value.problems
    offered = [one for one in re.findall(r'"([^"]+)"', problem.hint or "") if one.startswith("policy:")]
    assert len(offered) == 2
    for one in offered:
        small.write_text(f"{without}\n{one}\n")
        answer = esper("check", small)
        assert answer.status == 0, answer.err


@pytest.mark.parametrize("as_json", [True, False])
def test_results_are_printed_even_if_they_cannot_be_written(as_json, run, small):
    in_the_way = "def esper_run_started(run): (run.path / 'summary.json').mkdir()"
    add_plugin(small, f"from esper_core import hookimpl\n@hookimpl\n{in_the_way}\n")
    ran = run(options=("--json", "--quiet") if as_json else ("--quiet",), code=1)
    assert "E410 cannot write" in ran.answer.err
    if as_json:
        assert set(ran.answer.json["results"]["arms"]) == {"schedule", "twin"}
    else:
        assert "no difference shown" in ran.answer.out
    assert ran.json("manifest.json")["status"] == "failed"
