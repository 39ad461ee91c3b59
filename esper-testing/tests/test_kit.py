"""Results of checks in scripts, in pytest and on the command line; what the kit imports, and tests of every check."""

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from esper_core.leyline import ConfigError, PluginError
from esper_run import read_events
from esper_testing import (
    Check,
    CheckResult,
    FakeDistribution,
    NotApplicable,
    blueprint_trials,
    blueprints,
    check_component,
    check_plugin,
    components_of,
    hosts,
    parametrize_with_checks,
    policies,
    rewards,
    run_checks,
    sinks,
    tasks,
)
from esper_testing.__main__ import main as standalone
from esper_testing.commands import check as command

GOOD_REWARD = """
from esper_core import RewardSpec, hookimpl
from esper_core.leyline import RewardBreakdown

class Gain:
    def __init__(self, *, metric):
        self.metric = metric
    def value(self, own, twin):
        added = own.parameters / own.host_parameters - 1
        return 100 * self.metric.gain(own.validation_metric, twin.validation_metric) - 20 * added
    def score(self, now, before, twin, twin_before):
        earlier = 0.0 if before is None else self.value(before, twin_before)
        return RewardBreakdown({"gain": self.value(now, twin) - earlier})

@hookimpl
def esper_register_rewards(registry):
    registry.add("gain", Gain, RewardSpec())
"""
BAD_REWARD = GOOD_REWARD.replace('RewardBreakdown({"gain"', 'RewardBreakdown({""')


@pytest.fixture
def module(site):
    """``module("name", source)``: write a module, and import it."""

    def write(name, source):
        (site / f"{name}.py").write_text(source)
        return import_module(name)

    return write


def raising(error):
    """Return a check that raises this."""
    return Mock(side_effect=error)


fails, raises = raising(AssertionError("it is broken")), raising(KeyError("missing"))


def test_results_of_checks_have_a_status_and_a_message():
    skips, ends = raising(NotApplicable("not claimed")), raising(SystemExit(0))
    runs = {"a": lambda: None, "b": fails, "c": raises, "d": skips, "e": ends}
    checks = [Check("mine", name, run, "image" if name == "a" else None) for name, run in runs.items()]
    assert run_checks(checks) == [
        CheckResult("mine", "a[image]", "passed"),
        CheckResult("mine", "b", "failed", "it is broken"),
        CheckResult("mine", "c", "failed", "raised KeyError: 'missing'"),
        CheckResult("mine", "d", "skipped", "not claimed"),
        CheckResult("mine", "e", "failed", "raised SystemExit: 0"),
    ]
    assert [result.ok for result in run_checks(checks)] == [True, False, False, True, False]


def test_checks_after_a_decisive_failure_are_skipped_in_the_same_case():
    checks = [Check("mine", "b", fails, "image", is_decisive=True)]
    checks += [Check("mine", "c", raises, case) for case in ("image", "vector")]
    assert run_checks(checks)[1:] == [
        CheckResult("mine", "c[image]", "skipped", "b failed"),
        CheckResult("mine", "c[vector]", "failed", "raised KeyError: 'missing'"),
    ]


def test_an_installed_plugin_is_checked_by_its_id_and_by_its_package():
    assert {result.status for result in check_plugin("rewards/team")} == {"passed"}
    assert components_of("rewards") == components_of("esper-rewards") == components_of("esper_rewards")
    assert components_of(["rewards", "tasks"]) == components_of("rewards") + components_of("tasks")


def test_a_component_that_requires_settings_is_skipped_without_them():
    (schedule,) = [component for component in components_of("policies") if component.short == "schedule"]
    (skipped,) = check_component(schedule)
    assert (skipped.check, skipped.status) == ("has_its_settings", "skipped")
    assert skipped.message == 'it requires settings (plan): pass them in Python, settings={"schedule": …}'


def test_settings_for_an_unknown_component_are_an_error():
    with pytest.raises(ValueError, match="Received: shedule"):
        check_plugin("policies", settings={"shedule": {}})


def test_a_host_is_checked_with_its_own_slots_and_built_with_its_settings():
    (host,) = [component for component in components_of("tasks") if component.short == "pointwise-mlp"]
    results = {result.check: result.status for result in check_component(host, settings={"channels": 3})}
    assert set(results.values()) == {"passed"}
    assert {"grafting_changes_no_number[sequence]", "is_well_declared"} <= set(results)
    assert "grafting_changes_no_number[image]" not in results
    assert not all(result.ok for result in check_component(host, settings={"channels": "3"}))


def test_unknown_and_broken_plugins_are_reported(module):
    with pytest.raises(ConfigError, match='E208 unknown plugin "reward"\n  Did you mean "rewards"'):
        check_plugin("reward")
    with pytest.raises(ConfigError, match="unknown plugin"):
        components_of(ModuleType("kit_empty"))
    broken = module("kit_broken", GOOD_REWARD.replace('"gain", Gain', '"Not A Name", Gain'))
    with pytest.raises(PluginError, match="E216"):
        check_plugin(broken)


def test_the_command_prints_a_table_or_json(install):
    install("kitgood", GOOD_REWARD)
    install("kitbad", BAD_REWARD)
    answer = CliRunner().invoke(command, ["kitgood"])
    assert answer.exit_code == 0
    table = "component  passed  failed  skipped\ngain       18      0       0\n"
    assert answer.stdout == f"{table}\n18 checks, none failed.\n"
    assert answer.stderr == "checking kitgood/gain …\n"
    answer = CliRunner().invoke(command, ["kitbad"])
    assert answer.exit_code == 3
    assert "failed  gain  terms_add_up[up]" in answer.stdout
    answer = CliRunner().invoke(command, ["kitbad", "--json"])
    results = json.loads(answer.stdout)
    assert answer.exit_code == 3
    assert {result["status"] for result in results} == {"passed", "failed"}
    assert set(results[0]) == {"component", "check", "status", "message"}


def test_one_component_can_be_checked_and_an_unknown_one_is_reported(esper_cli):
    alone = esper_cli("plugins", "check", "policies/warmup")
    assert (alone.status, alone.err) == (0, "checking policies/warmup …\n")
    answer = esper_cli("plugins", "check", "policies/warmups")
    assert answer.status == 2
    assert 'E200 unknown component "warmups" in plugin "policies"\n  Did you mean "warmup"?' in answer.err


@pytest.mark.parametrize(
    ("key", "expected"),
    [("terms_add_up", 2), ("gain-terms_add_up", 2), ("terms_add_up[up]", 1), ("gain-terms_add_up[up]", 1)],
)
def test_the_decorator_gives_readable_ids_and_marks_expected_failures(module, key, expected):
    bad = module("kit_bad", BAD_REWARD)
    mark = parametrize_with_checks(bad, expected_failures={key: "nameless"}).mark
    name, parameters = mark.args
    assert name == "check"
    ids = [parameter.id for parameter in parameters]
    assert ids[:3] == ["gain-is_pure[up]", "gain-is_pure[down]", "gain-terms_add_up[up]"]
    marked = {parameter.id: parameter.marks[0].kwargs for parameter in parameters if parameter.marks}
    assert marked["gain-terms_add_up[up]"] == {"reason": "nameless", "strict": True}
    assert len(marked) == expected
    with pytest.raises(ValueError, match="Received: aa"):
        parametrize_with_checks(bad, expected_failures={"aa": "a slip"})


def test_a_check_that_does_not_apply_is_skipped_in_pytest():
    mark = parametrize_with_checks("policies/schedule").mark
    (schedule,) = (parameter.values[0] for parameter in mark.args[1])
    with pytest.raises(pytest.skip.Exception, match="it requires settings"):
        schedule.run()


def test_the_fixture_loads_only_the_given_plugins(esper_plugins, module):
    assert esper_plugins().records == ()
    plugins = esper_plugins(module("kit_good", GOOD_REWARD))
    assert [component.id for component in plugins.registry.components()] == ["kit-good/gain"]
    entry = EntryPoint("named", "kit_good", "esper.plugins")
    (record,) = esper_plugins(FakeDistribution("mine", entry_points=[entry])).records
    assert (record.id, record.package) == ("named", "mine")


def test_the_fixtures_give_a_host_events_a_run_and_a_command(esper_tiny_host, esper_events, esper_run, esper_cli):
    import torch

    host = esper_tiny_host("image")
    assert host(torch.randn(4, *host.site.example_shape)).shape == (4, 3)
    assert esper_events[0].type == "run-started"
    assert json.loads((esper_run / "manifest.json").read_text())["status"] == "done"
    assert list(read_events(esper_run / "events.jsonl")) == esper_events
    answer = esper_cli("--version")
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.startswith("esper ")
    assert esper_cli("no-such-command").status == 2


UNMARKED_REWARD = GOOD_REWARD.replace("@hookimpl", "")


@pytest.mark.parametrize(
    ("source", "status", "says"),
    [
        (GOOD_REWARD, 0, '"passed"'),
        (BAD_REWARD, 3, "terms_add_up"),
        (UNMARKED_REWARD, 3, "E222"),
        ("raise KeyError('\\x1b[31m')", 3, "E210"),
        (None, 2, "E227 there is no plugin file"),
    ],
    ids=["conforming", "not conforming", "without hookimpl", "broken", "missing"],
)
def test_the_commands_without_esper_run_act_as_those_of_esper(tmp_path, monkeypatch, esper_cli, source, status, says):
    file = tmp_path / "lone_probe.py"
    if source is not None:
        file.write_text(source)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    result = CliRunner().invoke(standalone, ["check", str(file), "--json"])
    answer = esper_cli("plugins", "check", str(file), "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (answer.status, answer.out, answer.err)
    assert answer.status == status
    assert says in answer.out + answer.err


BLUEPRINT_CHECKS = (*blueprints.CHECKS, *blueprint_trials.CHECKS)
CHECKS = {
    "blueprint": (blueprints.is_well_declared, *BLUEPRINT_CHECKS),
    "host": (hosts.is_well_declared, hosts.accepts_some_data, hosts.builds_or_says_why_not, *hosts.CHECKS),
    "policy": policies.CHECKS,
    "reward": rewards.CHECKS,
    "sink": sinks.CHECKS,
    "task": (*tasks.TASK_CHECKS, *tasks.SCHEDULE_CHECKS),
}


@pytest.mark.parametrize("kind", CHECKS)
def test_every_check_is_named_by_a_test_that_fails_it(kind):
    source = Path(__file__).with_name(f"test_{kind}_checks.py").read_text()
    names = [check.__name__ for check in CHECKS[kind]]
    assert [name for name in names if f'"{name}"' not in source and f'"{name}[' not in source] == []


HEAVY = "{'torch', 'esper_core', 'numpy', 'pydantic', 'click'}"


def test_a_test_suite_of_another_project_imports_neither_torch_nor_the_core(tmp_path):
    test = f"import sys, esper_testing\ndef test_it():\n    assert not {HEAVY} & set(sys.modules)\n"
    tmp_path.joinpath("test_it.py").write_text(test)
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "esper_testing.pytest_plugin"]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
    run = subprocess.run([*pytest_, tmp_path], check=False, capture_output=True, cwd=tmp_path, env=environment)
    assert run.returncode == 0, run.stdout.decode()
