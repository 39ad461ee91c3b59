"""Environments run in processes only where that was requested, or pays, and is possible."""

from __future__ import annotations

import logging
import sys
import threading
from types import ModuleType

import pytest
import torch

from esper_core.config import RunConfig
from esper_core.trainer import workers as spreading
from esper_core.trainer.workers import processes_for

CPU = [torch.device("cpu")]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores, on which processes can be forked."""
    monkeypatch.setattr(spreading, "usable_cores", lambda: 4)
    monkeypatch.setattr(spreading, "can_fork", lambda: True)


def config(**more: object) -> RunConfig:
    """A run of eight seeds."""
    slots = {"early": {"blueprints": ["conv_light"]}}
    return RunConfig.model_validate(
        {"task": {"use": "stripes"}, "host": {"use": "cnn1d"}, "slots": slots, "environments": 8, **more}
    )


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 1),
        ({"workers": "threads", "lanes": 2}, 1),
        ({"workers": "processes"}, 4),
        ({"workers": "processes", "lanes": 2}, 2),
        ({"workers": "processes", "lanes": 1}, 1),
        ({"workers": "processes", "environments": 3}, 3),
        ({"workers": "processes", "lanes": 2, "environments": 3}, 2),
        ({"workers": "auto"}, 4),
        ({"workers": "auto", "lanes": 2, "environments": 3}, 1),
        ({"workers": "auto", "lanes": 2, "environments": 7}, 2),
        ({"workers": "auto", "compute": {"compile": True}}, 1),
    ],
)
def test_as_many_as_were_asked_for_and_by_themselves_only_where_work_is_shared_evenly(
    more: dict[str, object], count: int
) -> None:
    assert processes_for(config(**more), CPU) == count


def test_not_by_themselves_in_a_notebook_or_on_a_thread_of_somebodys(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    ask = threading.Thread(target=lambda: found.extend(processes_for(config(workers=how), CPU) for how in HOWS))
    ask.start()
    ask.join()
    assert found == [1, 4]
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    assert [processes_for(config(workers=how), CPU) for how in HOWS] == [1, 4]


HOWS = ("auto", "processes")


@pytest.mark.parametrize("why", ["no forks", "a GPU"])
def test_who_asks_for_processes_where_there_are_none_is_told(
    why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    devices = [*CPU, torch.device("cuda")] if why == "a GPU" else CPU
    monkeypatch.setattr(spreading, "can_fork", lambda: why == "a GPU")
    with caplog.at_level(logging.WARNING, "esper"):
        assert processes_for(config(workers="auto"), devices) == 1
        assert caplog.messages == []
        assert processes_for(config(workers="processes"), devices) == 1
    assert [words for words in caplog.messages if "workers: processes needs Linux" in words] == caplog.messages != []
