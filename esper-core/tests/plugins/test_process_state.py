"""Settings of the process that plugin code changes are put back, and reported once with the component's name."""

import contextlib
import os
import random
import signal
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from esper_core.plugins.isolation import Label
from esper_core.plugins.process_state import Guard, Scope, restore_defaults

KEPT = []


def entered(context: AbstractContextManager[Any]) -> None:
    """Enter a context, and never leave it."""
    KEPT.append(context)
    context.__enter__()


FLAGS = {
    "made torch.float64 torch's default": lambda: torch.set_default_dtype(torch.float64),
    "turned gradients off": lambda: torch.set_grad_enabled(False),
    "left torch in inference mode": lambda: entered(torch.inference_mode()),
    "changed torch's thread count from 1 to 2": lambda: torch.set_num_threads(2),
    "changed torch's default device from cpu to meta": lambda: torch.set_default_device("meta"),
    "changed torch's flushing of denormal numbers from False to True": lambda: torch.set_flush_denormal(True),
    "changed torch's autocast": lambda: entered(torch.autocast("cpu")),
    "changed torch's precision of products from highest to medium": lambda: torch.set_float32_matmul_precision(
        "medium"
    ),
    "changed torch's precision of products from highest to mixed": lambda: setattr(
        torch.backends.mkldnn.matmul, "fp32_precision", "bf16"
    ),
    "changed torch.backends.mkldnn.enabled from True to False": lambda: setattr(
        torch.backends.mkldnn, "enabled", False
    ),
}
"""What a guard says, and the meddling; compared around every call."""

DETERMINISTIC = (
    "changed torch's deterministic mode from 0 to 1",
    lambda: torch.use_deterministic_algorithms(True, warn_only=True),
)
REST = {
    "changed torch.backends.cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "changed torch.backends.cudnn.deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "changed torch.backends.cudnn.allow_tf32": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "changed torch.backends.mkldnn.conv.fp32_precision": lambda: setattr(
        torch.backends.mkldnn.conv, "fp32_precision", "bf16"
    ),
    "uses Python's random generator": random.random,
    "uses NumPy's random generator": lambda: np.random.seed(3),
    "changed the current folder": lambda: os.chdir("/"),
    "changed signal handlers": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
}
"""The same for what is compared less often."""


def state() -> list[object]:
    """Return everything that FLAGS and REST change."""
    backends = torch.backends
    return [
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_num_threads(),
        torch.get_default_device(),
        sys.float_info.min * torch.tensor(0.5, dtype=torch.float64).item(),
        torch.get_deterministic_debug_mode(),
        torch.is_autocast_enabled("cpu"),
        torch.get_float32_matmul_precision(),
        *(one.fp32_precision for one in (backends, backends.mkldnn.matmul, backends.mkldnn.conv, backends.cuda.matmul)),
        (backends.mkldnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic, backends.cudnn.allow_tf32),
        torch.get_rng_state().tolist(),
        random.getstate(),
        str(np.random.get_state()),
        Path.cwd(),
        signal.getsignal(signal.SIGTERM),
    ]


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    """One thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def told(caplog):
    """``told()``: the messages that were logged, without their hints."""
    return lambda: [record.getMessage().partition("\n")[0] for record in caplog.records]


@pytest.mark.parametrize(
    ("what", "meddle", "scope"),
    [(*one, Scope.SETTINGS) for one in FLAGS.items()]
    + [(*one, Scope.PROCESS) for one in REST.items()]
    + [("uses torch's default generator", lambda: torch.rand(1), Scope.RUN)]
    + [pytest.param(*DETERMINISTIC, Scope.SETTINGS, marks=pytest.mark.slow)],  # torch imports its compiler for it
)
def test_a_change_is_put_back_and_reported_once_for_the_component(what, meddle, scope, told):
    component = Label('policy "odd/policy" (esper-odd 1.0)', "esper_odd:Policy")
    for _ in range(2):
        before = state()
        with contextlib.suppress(ZeroDivisionError), Guard(component, scope):
            meddle()
            raise ZeroDivisionError
        assert state() == before or what == DETERMINISTIC[0]
    assert told()[0].startswith(f"E237 {component} {what}")
    assert len(told()) == (2 if "inference" in what else 1)


def test_another_thread_may_be_importing_numpy(monkeypatch, told):
    monkeypatch.setitem(sys.modules, "numpy.random", ModuleType("numpy.random"))
    with Guard("x", Scope.PROCESS):
        pass
    assert told() == []


def test_everything_at_once_is_put_back(told):
    before = state()
    with Guard("x", Scope.RUN):
        for meddle in (*FLAGS.values(), *REST.values()):
            meddle()
    assert state() == before
    assert len(told()) > len(REST) + 8


def test_a_component_keeps_its_own_state_of_a_random_generator(told):
    own, other = Label("policy", "odd:Policy"), Label("sink", "odd:Sink")
    random.seed(5)
    alone = [random.random() for _ in range(4)]
    random.seed(7)
    ambient = random.getstate()
    with Guard(own, Scope.PROCESS):
        random.seed(5)
    drawn = []
    for _ in range(4):
        with Guard(other, Scope.PROCESS):
            random.random()
        with Guard(own, Scope.PROCESS):
            drawn.append(random.random())
    assert (drawn, random.getstate()) == (alone, ambient)
    assert len(told()) == 2


def test_a_change_on_another_thread_is_not_taken_for_the_value_to_keep(told, tmp_path):
    """A sink's guard opens while a policy has changed settings, and closes after they were put back."""
    opened, put_back, folder = threading.Event(), threading.Event(), Path.cwd()

    def sink() -> None:
        with Guard("sink", Scope.PROCESS):
            opened.set()
            put_back.wait(60)

    thread = threading.Thread(target=sink)
    with Guard("policy", Scope.PROCESS):
        torch.set_default_dtype(torch.float64)
        os.chdir(tmp_path)
        thread.start()
        assert opened.wait(60)
    put_back.set()
    thread.join()
    assert (torch.get_default_dtype(), Path.cwd()) == (torch.float32, folder)
    assert [message for message in told() if "E237 sink" in message] == []


def test_what_a_program_sets_while_a_component_hangs_on_another_thread_is_left_alone(told, monkeypatch, tmp_path):
    opened, end = threading.Event(), threading.Event()

    def hang() -> None:
        with Guard("sink", Scope.PROCESS):
            opened.set()
            end.wait(60)

    thread = threading.Thread(target=hang)
    thread.start()
    assert opened.wait(60)
    monkeypatch.chdir(tmp_path)
    with Guard("policy", Scope.PROCESS):
        pass
    assert Path.cwd() == tmp_path
    assert told() == []
    end.set()
    thread.join()


def test_faults_of_a_seed_are_collected_and_other_changes_reported(told):
    faults: list[str] = []
    with torch.no_grad(), Guard("seed", faults=faults):
        torch.set_grad_enabled(True)
        torch.set_num_threads(2)
        torch.set_default_dtype(torch.float64)
    assert faults == ["turned gradients on", "made torch.float64 torch's default"]
    assert (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()) == (True, torch.float32, 1)
    (line,) = told()
    assert line == "E237 seed changed torch's thread count from 1 to 2; it was put back"


def test_defaults_without_which_nothing_trains_are_restored():
    assert restore_defaults() is None
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    assert restore_defaults() == "turned gradients off and made torch.float64 torch's default"
    assert restore_defaults() is None
