"""Batches: their order, and streamed data, which gives the numbers of resident data."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from esper_core.config import ComputeConfig
from esper_core.growth import Draws
from esper_core.leyline import WAIT, Action, Op, Split
from esper_core.trainer.batches import BatchOrder, Resident, Streamed, feed_for, sent
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.lanes import CudaStream
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
CPU = torch.device("cpu")
SPLIT = Split(torch.arange(60.0).reshape(30, 2), torch.arange(30))
STREAMED = ComputeConfig(data="streamed")


def feeds() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("feed")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    yield
    if feeds():
        gc.collect()
    ends = time.monotonic() + 5
    while feeds() and time.monotonic() < ends:
        time.sleep(0.01)
    assert not feeds()


@given(examples=st.integers(1, 50), size=st.integers(1, 60), passes=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_each_example_comes_once_in_a_pass_and_no_batch_is_short(examples, size, passes, seed):
    order = BatchOrder(examples, size, seed)
    batches = [order.next() for _ in range(-(-passes * examples // size))]
    assert {len(batch) for batch in batches} == {size}
    drawn = torch.cat(batches)[: passes * examples].reshape(passes, examples)
    assert torch.equal(drawn.sort(dim=1).values, torch.arange(examples).expand(passes, -1))


def test_the_order_depends_on_the_seed_alone():
    torch.manual_seed(0)
    first = BatchOrder(30, 7, 5).next()
    torch.manual_seed(1)
    assert torch.equal(BatchOrder(30, 7, 5).next(), first)
    assert not torch.equal(BatchOrder(30, 7, 6).next(), first)


def test_the_batches_are_those_of_resident_data_in_the_same_order():
    streamed, resident = Streamed(SPLIT, CPU), Resident(SPLIT, CPU)
    one, other = BatchOrder(30, 7, 5), BatchOrder(30, 7, 5)
    for _ in range(12):
        assert all(map(torch.equal, streamed.next(one), resident.next(other)))
    streamed.close()


def test_what_was_gathered_ahead_is_still_to_come_for_whoever_goes_on_from_the_state():
    """The state counts what was consumed: another order that is told it hands out the very next batch."""
    streamed, order = Streamed(SPLIT, CPU), BatchOrder(30, 7, 5)
    for _ in range(5):
        streamed.next(order)
    state = order.state_dict()
    goes_on = [streamed.next(order) for _ in range(6)]
    again = BatchOrder(30, 7, 0)
    again.load_state_dict(state)
    assert all(all(map(torch.equal, batch, streamed.next(again))) for batch in goes_on)
    streamed.close()


def test_a_batch_that_was_gathered_for_an_order_that_is_no_more_is_not_used():
    streamed = Streamed(SPLIT, CPU)
    streamed.next(BatchOrder(30, 7, 5))
    inputs, targets = streamed.next(BatchOrder(30, 7, 6))
    assert torch.equal(targets, BatchOrder(30, 7, 6).next())
    assert torch.equal(inputs, SPLIT.inputs[targets])
    streamed.close()


def test_a_batch_is_gathered_while_the_one_before_is_trained_on():
    gathered = threading.Semaphore(0)

    class Telling:
        def index_select(self, dimension: int, indices: Tensor) -> Tensor:
            gathered.release()
            return SPLIT.targets.index_select(dimension, indices)

    streamed = Streamed(Split(SPLIT.inputs, Telling()), CPU)  # type: ignore[arg-type]
    streamed.next(BatchOrder(30, 7, 5))
    assert gathered.acquire(timeout=5)
    assert gathered.acquire(timeout=5), "the second one, though nobody asked for it yet"
    streamed.close()


def test_what_goes_wrong_in_the_thread_is_raised_where_the_batch_is_asked_for():
    short = Split(SPLIT.inputs[:10], SPLIT.targets)
    streamed, order = Streamed(short, CPU), BatchOrder(30, 30, 5)
    for _ in range(2):  # and the thread goes on
        with pytest.raises(IndexError):
            streamed.next(order)
    streamed.close()
    streamed.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        streamed.next(order)


def test_a_feed_that_is_forgotten_ends_its_thread():
    streamed = Streamed(SPLIT, CPU)
    streamed.next(BatchOrder(30, 7, 5))
    assert len(feeds()) == 1
    del streamed  # the fixture sees to the rest


def test_data_may_be_mapped_from_a_file(tmp_path):
    (tmp_path / "inputs.bin").write_bytes(SPLIT.inputs.numpy().tobytes())
    mapped = torch.from_file(str(tmp_path / "inputs.bin"), shared=False, size=60).reshape(30, 2)
    streamed, order = Streamed(Split(mapped, SPLIT.targets), CPU), BatchOrder(30, 7, 5)
    inputs, targets = streamed.next(order)
    assert torch.equal(inputs, SPLIT.inputs[targets])
    streamed.close()


class RecordingStream(CudaStream):
    """Writes down what the thread does on it. Its marks are numbered."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @contextmanager
    def current(self) -> Any:
        self.log.append("on")
        yield
        self.log.append("off")

    def mark(self) -> Any:
        self.log.append("mark")
        return self.log.count("mark")


class ReadingStream:
    """The stream on which a batch is read: the marks that it waited for, and the tensors whose memory it keeps."""

    def __init__(self) -> None:
        self.waited: list[int] = []
        self.kept: list[Tensor] = []

    def wait_event(self, mark: int) -> None:
        self.waited.append(mark)


class OnDevice(Tensor):
    """A tensor whose memory a stream can keep, as on a GPU."""

    def record_stream(self, stream: Any) -> None:
        stream.kept.append(self)


def test_a_batch_is_sent_on_a_stream_of_the_feeds_own_and_read_behind_its_mark(monkeypatch):
    stream, reader = RecordingStream(), ReadingStream()
    monkeypatch.setattr(torch.cuda, "current_stream", {CPU: reader}.__getitem__)
    streamed = Streamed(Split(SPLIT.inputs.as_subclass(OnDevice), SPLIT.targets.as_subclass(OnDevice)), CPU, stream)
    order = BatchOrder(30, 7, 5)
    read = [*streamed.next(order), *streamed.next(order)]
    streamed.close()
    assert stream.log == ["on", "mark", "off"] * 3
    assert reader.waited == [1, 2]
    assert [id(tensor) for tensor in reader.kept] == [id(tensor) for tensor in read]


@pytest.mark.parametrize(("device", "done"), [("cpu", ["to cpu"]), ("cuda", ["pinned", "to cuda"])])
def test_only_what_is_sent_to_a_gpu_is_pinned_and_nothing_is_waited_for(device, done):
    log: list[str] = []

    class OnHost(Tensor):
        def pin_memory(self) -> Tensor:
            log.append("pinned")
            return self

        def to(self, device: torch.device, *, non_blocking: bool = False) -> Tensor:
            assert non_blocking
            log.append(f"to {device.type}")
            return self

    sent(torch.zeros(2).as_subclass(OnHost), torch.device(device))
    assert log == done


def course(recipe: Recipe, lanes: int, rounds: int = 2) -> tuple[list[str], list[int]]:
    """What two environments measured over two rounds, and how many threads there were that feed."""
    pool = Pool(recipe, ["grown", "twin"], 2, twin="twin", lanes=lanes)
    told, counts = [], []
    for round_ in range(rounds):
        pool.reset(round_, 3)
        for step in range(4):
            pool.train(step)
            pool.evaluate(step)
            signals = pool.synchronise(step)
            told.append(repr(signals))
            germinate = Action(Op.GERMINATE, "early", "test/local-conv", speed=1)
            action = {0: germinate, 1: Action(Op.ADVANCE, "early")}.get(step, WAIT)
            pool.apply([action if one.arm == "grown" else WAIT for one in pool.environments], step)
            counts.append(len(feeds()))
        told.append(repr(pool.conclude(3)[1]))
    pool.close()
    return told, counts


def test_sim_med_5_what_feeds_a_run_is_built_once_and_its_numbers_are_those_of_resident_data(make_recipe):
    """BatchNorm, dropout, seeds; two rounds, lanes: bit for bit, and as many threads at the end as at the beginning."""
    recipe = replace(make_recipe(steps=4), draws=Draws.FORWARD)
    resident, none = course(recipe, 1)
    assert set(none) == {0}
    streamed, counts = course(replace(recipe, compute=STREAMED), 2)
    assert streamed == resident
    assert set(counts) == {4}, "one for each environment, in every step of every round"


def test_streamed_data_stays_where_it_is_when_environments_are_elsewhere(make_recipe):
    recipe = replace(make_recipe(), compute=STREAMED)
    there = recipe.on(torch.device("meta"))
    assert there.device.type == "meta"
    assert there.data["train"].inputs is recipe.data["train"].inputs


def test_an_environment_goes_on_from_a_state_in_the_middle_of_its_stream(make_recipe):
    recipe = replace(make_recipe(), compute=STREAMED)
    one, other = (Environment(recipe, arm="a", index=0) for _ in range(2))
    one.reset(0, 3)
    one.governor.begin(one.garden)
    one.train()
    other.load_state_dict(one.state_dict())
    for environment in (one, other):
        environment.train()
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))
    assert torch.equal(one.network.measurements.train_loss, other.network.measurements.train_loss)
    for environment in (one, other):
        environment.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_streamed_batch_is_the_resident_one():
    device = torch.device("cuda", 0)
    on_device = Split(SPLIT.inputs.to(device), SPLIT.targets.to(device))
    streamed, resident = feed_for("streamed", SPLIT, device), Resident(on_device, device)
    one, other = BatchOrder(30, 7, 5), BatchOrder(30, 7, 5)
    for _ in range(12):
        assert all(map(torch.equal, streamed.next(one), resident.next(other)))
    streamed.close()
