"""Dispatch: each plugin is called on its own, and a fault in one hook of a run is attributed to it."""

import sys
from pathlib import Path

import pytest
import torch

from esper_core.leyline import PluginError
from esper_core.leyline.protocols import RunInfo
from esper_core.leyline.signals import HealthSnapshot, Signals
from esper_run.app.dispatch import Observers, health_check

RUN = RunInfo("otter", Path("runs/otter"), ("grown",), 1, 1, 4, "cpu")
SIGNALS = Signals(0, 1.0, 1.0, 0.5, 9, 9, ())
SNAPSHOT = HealthSnapshot(0, "grown", 0, SIGNALS)


HEALTH = """
from esper_core import hookimpl
from esper_core.leyline import Level, Verdict
@hookimpl
def esper_check_health(snapshot):
    return {verdict}
"""
NO_VERDICTS = ["5", "'fine'", "Verdict('hot')", "Verdict(None)", "[Verdict(Level.CALM)]", "False"]


@pytest.mark.parametrize(
    ("verdict", "code", "fault"),
    [
        ("1 / 0", "E231", "raised ZeroDivisionError in esper_check_health: division"),
        ("exit(0)", "E231", "raised SystemExit in esper_check_health: 0"),
        *((value, "E229", "gives no verdict") for value in NO_VERDICTS),
    ],
)
def test_a_health_check_that_raises_or_gives_no_verdict_is_an_error(load, workshop, verdict, code, fault) -> None:
    check = health_check(load(workshop.package(HEALTH.format(verdict=verdict))))
    with pytest.raises(PluginError, match=rf'^{code} plugin "extra" \(esper-extra 0.2.0\) {fault}') as refused:
        check(SNAPSHOT)
    (problem,) = refused.value.problems
    assert problem.file == str(workshop.folder / "esper_extra.py")


OBSERVER = """
import torch
from esper_core import hookimpl
@hookimpl
def esper_run_started(run):
    torch.set_grad_enabled(False)
    raise SystemExit(0)
"""
OTHER = """
from esper_core import hookimpl
runs = []
@hookimpl
def esper_run_started(run): runs.append(run.id)
"""


def test_an_observer_that_raises_is_reported_once_not_called_again_and_what_it_set_put_back(load, workshop, caplog):
    observers = Observers(load(workshop.package(OBSERVER), workshop.package(OTHER, plugin="other")))
    for _ in range(2):
        observers.run_started(RUN)
    assert torch.is_grad_enabled()
    assert sys.modules["esper_other"].runs == ["otter", "otter"], "others are still called"
    messages = [record.getMessage().replace(f"{workshop.folder}/", "") for record in caplog.records]
    put_back, line = sorted(messages, key=lambda line: line.startswith("E228"))
    assert "changed torch's gradient mode from True to False" in put_back
    assert line.startswith('E228 plugin "extra" (esper-extra 0.2.0) failed in esper_run_started: SystemExit: 0')
    assert "its observers are not called again in this run\n  esper_extra.py:6\n" in line
