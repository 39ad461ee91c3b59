"""The allocator setting: glibc keeps freed memory; on other systems nothing happens."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from esper_core.app import runtime
from esper_core.app.runtime import M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, glibc_mallopt, tune_allocator

FAULTS = """
import resource, sys, torch
from esper_core.app import runtime
from esper_core.app.runtime import tune_allocator
assert sys.argv[1] == "default" or tune_allocator()
for number in range(40):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 20) * 2.0
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
ON_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


def test_every_bound_is_set_and_the_result_says_whether_glibc_accepted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def mallopt(parameter: int, value: int) -> int:
        asked.append(parameter)
        return int(value > 0 and parameter == M_MMAP_THRESHOLD)

    monkeypatch.setattr(runtime, "glibc_mallopt", lambda: mallopt)
    assert not tune_allocator()
    assert asked == [M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD]
    monkeypatch.setattr(runtime, "glibc_mallopt", lambda: lambda parameter, value: 1)
    assert tune_allocator()


def test_the_allocator_is_not_tuned_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert glibc_mallopt() is None
    assert not tune_allocator()


@pytest.mark.slow
@ON_GLIBC
def test_a_block_that_was_freed_is_used_again_without_the_kernel() -> None:
    """Count the page faults for 4 MiB in the last of 40 rounds, in a new process for each setting."""
    found = {
        mode: int(subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, check=True).stdout)
        for mode in ("tuned", "default")
    }
    assert found["tuned"] < 50, found
