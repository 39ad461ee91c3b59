"""Settings of the process that plugin code changes are put back, and reported once with the component's name."""

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
import torch

from esper_core.plugins.isolation import Label
from esper_core.plugins.process_state import Guard, Scope, restore_defaults

KEPT = []
BATCH, PROCESS, RUN = Scope
PRECISION = torch.get_float32_matmul_precision


def entered(context: AbstractContextManager[Any]) -> None:
    """Enter a context, and never leave it."""
    KEPT.append(context)
    context.__enter__()


def flushes_denormal() -> bool:
    tiny = torch.tensor(sys.float_info.min, dtype=torch.float64)
    return (tiny * 0.5).item() == 0.0


def backend(path: str, value: Any) -> tuple[Any, Any]:
    """Return how ``torch.backends.PATH`` is read, and how it is set to a value."""
    *parts, name = path.split(".")
    module = reduce(getattr, parts, torch.backends)
    return partial(getattr, module, name), partial(setattr, module, name, value)


def shortened() -> list[float]:
    """Return products by a weight of 1 and then of 2, each under autocast, and whether that is on outside of it."""
    weight, products = torch.ones(1, 1, requires_grad=True), []
    for value in (1.0, 2.0):
        weight.data.fill_(value)
        with torch.autocast("cpu"):
            products.append((torch.ones(1, 1) @ weight).item())
    return [*products, torch.is_autocast_enabled("cpu")]


SETTINGS = [
    ("torch's inference mode", BATCH, torch.is_inference_mode_enabled, lambda: entered(torch.inference_mode())),
    ("torch's gradient mode", BATCH, torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    ("torch's default dtype", BATCH, torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    ("torch's thread count", BATCH, torch.get_num_threads, lambda: torch.set_num_threads(2)),
    ("torch's flushing of denormal numbers", BATCH, flushes_denormal, lambda: torch.set_flush_denormal(True)),
    ("torch's autocast", BATCH, shortened, lambda: entered(torch.autocast("cpu"))),
    ("torch's precision of products", BATCH, PRECISION, lambda: torch.set_float32_matmul_precision("medium")),
    ("torch's precision of products", BATCH, PRECISION, backend("mkldnn.matmul.fp32_precision", "bf16")[1]),
    ("torch.backends.cudnn.benchmark", BATCH, *backend("cudnn.benchmark", True)),
    ("torch.backends.cudnn.deterministic", BATCH, *backend("cudnn.deterministic", True)),
    ("Python's recursion limit", BATCH, sys.getrecursionlimit, lambda: sys.setrecursionlimit(999)),
    ("os.replace", BATCH, lambda: os.replace, lambda: setattr(os, "replace", print)),
    ("Python's random generator", PROCESS, random.getstate, random.random),
    ("NumPy's random generator", PROCESS, lambda: str(np.random.get_state()), lambda: np.random.seed(3)),
    ("torch's default generator", RUN, lambda: torch.get_rng_state().tolist(), lambda: torch.rand(1)),
    ("torch's default device", BATCH, torch.get_default_device, lambda: torch.set_default_device("meta")),
]
"""Name in messages, the smallest scope that compares it, how it is read, and how a component changes it."""

DETERMINISTIC = (
    "torch's deterministic mode",
    BATCH,
    torch.get_deterministic_debug_mode,
    lambda: torch.use_deterministic_algorithms(True, warn_only=True),
)


def state() -> list[object]:
    """Return everything that SETTINGS change."""
    return [read() for _, _, read, _ in SETTINGS]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def messages(caplog):
    """``messages()``: the messages that were logged, without their hints."""
    return lambda: [record.getMessage().partition("\n")[0] for record in caplog.records]


@pytest.mark.parametrize(
    ("name", "scope", "read", "meddle"),
    [*SETTINGS, pytest.param(*DETERMINISTIC, marks=pytest.mark.slow)],  # torch imports its compiler for it
)
def test_a_change_is_put_back_and_reported_once_for_the_component(name, scope, read, meddle, messages):
    component = Label('policy "odd/policy" (esper-odd 1.0)', "esper_odd:Policy")
    for _ in range(2):
        before, value = state(), read()
        with contextlib.suppress(ZeroDivisionError), Guard(component, scope):
            meddle()
            raise ZeroDivisionError
        assert (state(), read()) == (before, value)
    assert messages()[0].startswith((f"E237 {component} changed {name} from", f"E237 {component} uses {name};"))
    assert len(messages()) == 1


def test_the_generator_of_torch_is_put_back_where_numpy_is_not_installed(monkeypatch):
    def unavailable(tensor):
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", unavailable)
    before = torch.get_rng_state()
    with Guard("x", RUN):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_everything_at_once_is_put_back(messages):
    before = state()
    with Guard("x", RUN):
        for _, _, _, meddle in SETTINGS:
            meddle()
    assert state() == before
    # Inference mode turns gradients off, too, and both changes of the precision of products are one.
    assert len(messages()) == len(SETTINGS) - 2


def test_a_component_keeps_its_own_state_of_a_random_generator(messages):
    policy, sink = Label("policy", "odd:Policy"), Label("sink", "odd:Sink")
    random.seed(5)
    alone = [random.random() for _ in range(4)]
    random.seed(7)
    ambient = random.getstate()
    with Guard(policy, PROCESS):
        random.seed(5)
    drawn = []
    for _ in range(4):
        with Guard(sink, PROCESS):
            random.random()
        with Guard(policy, PROCESS):
            drawn.append(random.random())
    assert (drawn, random.getstate()) == (alone, ambient)
    assert len(messages()) == 2


def open_on_another_thread(component: str) -> Callable[[], None]:
    """Open a guard on another thread, and return a function that closes it."""
    opened, end = threading.Event(), threading.Event()

    def call() -> None:
        with Guard(component, PROCESS):
            opened.set()
            end.wait(60)

    def close() -> None:
        end.set()
        thread.join()

    thread = threading.Thread(target=call)
    thread.start()
    assert opened.wait(60)
    return close


def test_a_change_on_another_thread_is_not_taken_for_the_value_to_keep(messages):
    """A sink's guard opens while a policy has changed a setting, and closes after it was put back."""
    with Guard("policy"):
        torch.set_default_dtype(torch.float64)
        close = open_on_another_thread("sink")
    close()
    assert torch.get_default_dtype() == torch.float32
    assert [message for message in messages() if "E237 sink" in message] == []


def test_what_a_program_sets_while_a_component_hangs_on_another_thread_is_left_alone(messages, monkeypatch):
    close = open_on_another_thread("sink")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with Guard("policy"):
        pass
    assert messages() == []
    assert torch.backends.cudnn.benchmark
    close()


def test_faults_of_a_seed_are_collected_and_other_changes_reported(messages):
    faults: list[str] = []
    with torch.no_grad(), Guard("seed", faults=faults):
        torch.set_grad_enabled(True)
        torch.set_num_threads(2)
        torch.set_default_dtype(torch.float64)
    assert faults == [
        "changed torch's gradient mode from False to True",
        "changed torch's default dtype from torch.float32 to torch.float64",
    ]
    assert (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()) == (True, torch.float32, 1)
    (line,) = messages()
    assert line == "E237 seed changed torch's thread count from 1 to 2; it was put back"


def test_defaults_without_which_nothing_trains_are_restored():
    assert restore_defaults() is None
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    assert restore_defaults() == (
        "changed torch's gradient mode from True to False "
        "and changed torch's default dtype from torch.float32 to torch.float64"
    )
    assert restore_defaults() is None


@pytest.mark.slow
def test_a_component_that_imports_torch_leaves_it_at_its_defaults():
    code = """
from esper_core.plugins.process_state import Guard
with Guard("plugin"):
    import torch
    torch.set_default_dtype(torch.float64)
print(torch.get_default_dtype())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "torch.float32\n"
    assert ended.stderr.startswith("E237 plugin changed torch's default dtype from torch.float32 to torch.float64")
