"""Whatever a plugin raises is its own fault, told at its author's line; the user's Ctrl-C alone is the user's."""

from __future__ import annotations

import os
import signal
from asyncio import CancelledError
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch

from esper_core.growth.garden import attributed_to_seed
from esper_core.growth.seeds import SeedFault, describe_error, remove_folders
from esper_core.leyline import PluginError
from esper_core.plugins.isolation import Label, attempt, attributed_to

ENDS = ["asyncio.CancelledError()", "GeneratorExit()", "SystemExit(0)", "RuntimeError()"]

IN_TORCH = "torch.nn.functional.cross_entropy(torch.zeros(2, 3), torch.zeros(5).long())"
"""What raises on a line of torch's."""

OBSERVER = """
import asyncio
from esper_core import hookimpl

@hookimpl
def {hook}({argument}):
    raise {error}
"""


@pytest.mark.members
@pytest.mark.parametrize("error", ENDS)
@pytest.mark.parametrize(
    ("hook", "argument"),
    [
        ("esper_configured", "config"),
        ("esper_step_finished", "events"),
        ("esper_run_finished", "outcome"),
        ("esper_report_sections", "run"),
    ],
)
def test_no_observer_ends_the_run(hook: str, argument: str, error: str, install, run_small, caplog) -> None:
    path = install("quitter", OBSERVER.format(hook=hook, argument=argument, error=error))
    assert run_small()["manifest"]["status"] == "done"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f'E228 plugin "quitter" (esper-quitter 1.0) failed in {hook}: ')
    assert f"\n  {path}:6\n" in warning


JUDGES = """
import asyncio
import torch
from esper_core import RewardSpec, SinkSpec, hookimpl

class Reward:
    def __init__(self, metric): ...
    def score(self, now, before, twin, twin_before):
        {body}

@hookimpl
def esper_register_rewards(registry):
    registry.add("judge", Reward, RewardSpec())

class Sink:
    def __init__(self, run): ...
    def hear(self, event):
        {body}
    def settle(self): ...
    def close(self): ...

@hookimpl
def esper_register_sinks(registry):
    registry.add("pipe", Sink, SinkSpec())
"""


@pytest.mark.members
@pytest.mark.parametrize("body", [*(f"raise {end}" for end in ENDS), IN_TORCH])
def test_a_component_that_the_run_depends_on_stops_it_at_its_authors_line(body: str, install, run_small) -> None:
    path = install("judges", JUDGES.format(body=body))
    with pytest.raises(PluginError) as refusal:
        run_small("reward: judges/judge\n")
    (problem,) = refusal.value.problems
    assert problem.code == "E231"
    assert problem.message.startswith('reward "judges/judge" (esper-judges 1.0) raised ')
    assert (problem.file, problem.line) == (str(path), 8)


@pytest.mark.members
@pytest.mark.parametrize("body", [*(f"raise {end}" for end in ENDS), IN_TORCH])
def test_a_sink_is_shut_off_and_told_at_its_authors_line(body: str, install, run_small, caplog) -> None:
    path = install("judges", JUDGES.format(body=body))
    assert run_small("sinks: [judges/pipe]\n")["manifest"]["status"] == "done"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith('E228 sink "judges/pipe" (esper-judges 1.0) raised ')
    assert f"\n  {path}:17" in warning


@pytest.mark.members
def test_what_a_sink_prints_goes_to_stderr(install, run_small, capsys) -> None:
    install("judges", JUDGES.format(body="print('from the sink')"))
    assert run_small("sinks: [judges/pipe]\n")["manifest"]["status"] == "done"
    said = capsys.readouterr()
    assert "from the sink" in said.err
    assert "from the sink" not in said.out


@pytest.mark.members
@pytest.mark.parametrize("error", ENDS)
@pytest.mark.parametrize("hook", ["esper_check_health(snapshot)", "esper_run(context)"])
def test_a_guard_and_a_wrapper_stop_it_as_a_fault_of_theirs(hook: str, error: str, install, run_small) -> None:
    wraps = "(wrapper=True)" if "esper_run" in hook else ""
    source = f"import asyncio\nfrom esper_core import hookimpl\n\n@hookimpl{wraps}\ndef {hook}:\n    raise {error}\n"
    path = install("guard", source + ("    yield\n" if wraps else ""))
    with pytest.raises(PluginError) as refusal:
        run_small()
    (problem,) = refusal.value.problems
    assert (problem.code, problem.file, problem.line) == ("E231", str(path), 6)


def test_where_no_line_is_the_authors_the_target_is_told() -> None:
    with pytest.raises(PluginError) as refusal, attributed_to(Label("reward r (p 1)", "their.judges:Judge"), "at work"):
        int("no number")
    (problem,) = refusal.value.problems
    assert (problem.file, problem.line, problem.path) == (None, None, "their.judges:Judge")


def test_a_seed_is_told_at_its_authors_line_or_by_what_built_it() -> None:
    caught = attempt(lambda: torch.nn.functional.cross_entropy(torch.zeros(2, 3), torch.zeros(5).long()))
    assert caught.error is not None
    line = f"({__file__}:{test_a_seed_is_told_at_its_authors_line_or_by_what_built_it.__code__.co_firstlineno + 1})"
    assert describe_error(caught.error).endswith(line)
    assert describe_error(caught.error, Label).endswith(line)  # esper_core only lends its code
    assert describe_error(caught.error, PurePath).endswith(line)
    assert describe_error(caught.error, click.Command).endswith(" (click.core:Command)")


def test_a_seed_that_is_cancelled_is_a_fault_of_the_seed() -> None:
    slot: Any = SimpleNamespace(name="early")
    seed: Any = SimpleNamespace(number=0, blueprint="a/b", block=None)
    with (
        pytest.raises(SeedFault, match='the seed in early of blueprint "a/b" raised Canc'),
        attributed_to_seed(slot, seed),
    ):
        raise CancelledError
    with pytest.raises(KeyboardInterrupt), attributed_to_seed(slot, seed):
        raise KeyboardInterrupt


def test_ctrl_c_in_a_component_is_not_its_fault() -> None:
    with pytest.raises(KeyboardInterrupt), attributed_to("reward r (p 1)", "at work"):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("place", ["/home/me/runs/odd.py:54", "C:\\\\me\\\\odd.py:54", "odd.py:54"])
def test_what_an_event_says_of_a_fault_holds_no_path_of_the_machine(place: str) -> None:
    said = f"raised ValueError: (too large) for /x ({place})"
    assert remove_folders(said) == "raised ValueError: (too large) for /x (odd.py:54)"
