"""The allocator setting: glibc keeps freed memory; on other systems nothing happens."""

import ctypes

from esper_core.app import runtime
from esper_core.app.runtime import M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, glibc_mallopt, tune_allocator


def test_every_bound_is_set_and_the_result_says_whether_glibc_accepted_it(monkeypatch):
    asked: list[int] = []

    def mallopt(parameter: int, value: int) -> int:
        asked.append(parameter)
        return int(value > 0 and parameter == M_MMAP_THRESHOLD)

    monkeypatch.setattr(runtime, "glibc_mallopt", lambda: mallopt)
    assert not tune_allocator()
    assert asked == [M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD]
    monkeypatch.setattr(runtime, "glibc_mallopt", lambda: lambda parameter, value: 1)
    assert tune_allocator()


def test_the_allocator_is_not_tuned_on_other_systems(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert glibc_mallopt() is None
    assert not tune_allocator()
