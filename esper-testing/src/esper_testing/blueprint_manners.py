"""Does a block behave among others? It draws only where it may, works where its input is, reads nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from esper_testing.checks import NotApplicable
from esper_testing.sites import BATCH, USUAL, Factory, built, examples, expect, seeded, sites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from esper_core import BlueprintSpec
    from esper_core.leyline import SiteKind

READS: Final = frozenset(
    {"item", "tolist", "numpy", "cpu", "__array__", "__bool__", "__float__", "__int__", "__index__", "__complex__"}
    | {"nonzero", "masked_select", "unique", "equal", "allclose"}
)
"""Functions whose result the host can only have by waiting for the device."""

IMPORT_PROBE: Final = """
import hashlib, json, random, sys
sys.path[:] = json.loads(sys.argv[2])
import numpy, torch
def digest(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()
def world():
    return {
        "torch's default generator": digest(torch.get_rng_state().tolist()),
        "numpy's global generator": digest([part if isinstance(part, (str, int, float)) else part.tolist()
                                            for part in numpy.random.get_state()]),
        "Python's global generator": digest(random.getstate()),
        "torch's default dtype": str(torch.get_default_dtype()),
        "torch's default device": str(torch.get_default_device()),
        "torch's number of threads": torch.get_num_threads(),
        "torch's gradient mode": torch.is_grad_enabled(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's matmul precision": torch.get_float32_matmul_precision(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
    }
before = world()
__import__(sys.argv[1])
after = world()
sys.stdout.write("\\0" + json.dumps([name for name in before if before[name] != after[name]]))
"""
"""Imports a module in a fresh interpreter, and says after a NUL what of the world it changed."""


def same_seed_same_weights(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """The same seeds build the same block."""
    for site in sites(kind):
        first, second = built(factory, site).state_dict(), built(factory, site).state_dict()
        expect(first.keys() == second.keys(), site, f"names its parts {list(first)}, then {list(second)}")
        others = [name for name in first if not torch.equal(first[name], second[name])]
        expect(not others, site, f"is built differently under the same seed: {', '.join(others)}")


def leaves_generators_alone(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Neither building nor a pass draws from the global generators of Python or numpy, or seeds that of torch."""
    for site in sites(kind):
        for seed in (1, 2):
            with seeded(seed):
                before = _others()
                block = factory(site)
                block.train()(examples(site))
                moved = [name for name, state in _others().items() if state != before[name]]
                expect(not moved, site, f"draws from {' and '.join(moved)}; torch's default generator is lent to it")
                state = torch.get_rng_state()
            if seed == 1:
                first = state
        expect(not torch.equal(first, state), site, "seeds torch's default generator itself")


def computes_where_its_input_is(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Moved to another device it works there: outputs are where the inputs are, and nothing is made elsewhere.

    The device is ``meta``, which every machine has; where torch cannot do an operation there, nothing is said.
    """
    site = USUAL[kind]
    block = built(factory, site).to("meta").train()
    inputs = torch.empty(BATCH, *site.example_shape, device="meta")
    elsewhere: list[str] = []

    def note(name: str, result: Any) -> None:
        if isinstance(result, Tensor) and result.device.type != "meta" and result.ndim:
            elsewhere.append(f"{name} on {result.device}")

    def heed(name: str, args: Any, kwargs: Any) -> None:
        if _reads(name, args, kwargs):
            reason = "it reads values in its forward pass, which cannot be tried without a device"
            raise NotApplicable(reason)
        for value in (*args, *kwargs.values()):
            note(f"{name} with a tensor", value)

    try:
        with _spied(before=heed, after=note):
            outputs = block(inputs)
    except NotImplementedError as error:
        reason = f"torch cannot try it without a device: {error}"
        raise NotApplicable(reason) from error
    except RuntimeError as error:
        expect(not elsewhere, site, f"makes tensors where its input is not: {', '.join(elsewhere)}")
        expect("device" not in str(error), site, f"does not work on another device: {error}")
        raise
    expect(not elsewhere, site, f"makes tensors where its input is not: {', '.join(elsewhere)}")
    expect(outputs.device.type == "meta", site, f"puts out on {outputs.device} what came in on meta")


def reads_no_value_in_forward(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """A pass reads no number of a tensor, and does not branch on one: on a GPU that makes everything wait."""
    site = USUAL[kind]
    with seeded(0):
        block, inputs = factory(site), examples(site)
        for training in (True, False):
            found: list[str] = []
            with _spied(before=partial(_note_reads, found)):
                block.train(training)(inputs)
            expect(not found, site, f"reads values in its forward pass: {', '.join(dict.fromkeys(found))}")


def imports_cleanly(module: str | None) -> None:
    """Importing the module prints nothing, draws from no generator, and changes no global setting of torch."""
    if module is None or module == "__main__" or not _importable(module):
        reason = f"it does not stand in a module that a fresh interpreter could import: {module}"
        raise NotApplicable(reason)
    command = [sys.executable, "-c", IMPORT_PROBE, module, json.dumps(sys.path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    said, mark, changed = run.stdout.rpartition("\0")
    problems = []
    if not mark:
        problems.append(f"cannot be imported in a fresh interpreter: {run.stderr.strip()[-300:]}")
    elif run.stderr.strip() or said.strip():
        problems.append(f"prints when it is imported: {(said + run.stderr).strip()[:200]}")
    if mark and (names := json.loads(changed)):
        problems.append(f"changes when it is imported: {', '.join(names)}")
    if problems:
        msg = f"{module} " + "; ".join(problems)
        raise AssertionError(msg)


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _others() -> dict[str, str]:
    return {"Python's global generator": repr(random.getstate()), "numpy's": repr(_numpy_state())}


def _numpy_state() -> list[Any]:
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]


class _Spy(TorchFunctionMode):
    """Sees every call into torch that Python makes."""

    def __init__(
        self, before: Callable[[str, Any, Any], None] | None, after: Callable[[str, Any], None] | None
    ) -> None:
        super().__init__()
        self._before, self._after = before, after

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if self._before is not None:
            self._before(name, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if self._after is not None:
            self._after(name, result)
        return result


@contextmanager
def _spied(
    *, before: Callable[[str, Any, Any], None] | None = None, after: Callable[[str, Any], None] | None = None
) -> Iterator[None]:
    with _Spy(before, after):
        yield


def _reads(name: str, args: Any, kwargs: Any) -> list[str]:
    if name in READS:
        return [f"{name}()"]
    if name == "where" and len(args) + len(kwargs) == 1:
        return ["where(condition)"]
    if name == "__getitem__" and _has_mask(args[1]):
        return ["an index of booleans"]
    if name == "to" and any(_is_cpu(one) for one in (*args[1:], *kwargs.values())):
        return ['to("cpu")']
    return []


def _note_reads(found: list[str], name: str, args: Any, kwargs: Any) -> None:
    found.extend(_reads(name, args, kwargs))


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype is torch.bool for part in parts)


def _is_cpu(wanted: Any) -> bool:
    return wanted == "cpu" if isinstance(wanted, str) else isinstance(wanted, torch.device) and wanted.type == "cpu"
