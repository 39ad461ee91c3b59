"""Batches: their order, and streamed data, which gives the numbers of resident data."""

import gc
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from esper_core.growth import Draws
from esper_core.leyline import Split
from esper_core.settings import ComputeConfig
from esper_core.trainer.batches import BatchOrder, Resident, Streamed, sent
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool
from tests.support.core_worlds import ADVANCE, GERMINATE, RecordingStream, change_recipe, make_recipe
from tests.support.studies import play

CPU = torch.device("cpu")
SPLIT = Split(torch.arange(60.0).reshape(30, 2), torch.arange(30))
STREAMED = ComputeConfig(data="streamed")


def feeds() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("feed")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    if feeds():
        gc.collect()
    for thread in feeds():
        thread.join(timeout=60)
    assert not feeds()


@given(examples=st.integers(1, 50), size=st.integers(1, 60), passes=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_each_example_comes_once_in_a_pass_and_all_batches_have_the_same_size(examples, size, passes, seed):
    order = BatchOrder(examples, size, seed)
    batches = [order.next() for _ in range(-(-passes * examples // size))]
    assert {len(batch) for batch in batches} == {size}
    drawn = torch.cat(batches)[: passes * examples].reshape(passes, examples)
    assert torch.equal(drawn.sort(dim=1).values, torch.arange(examples).expand(passes, -1))
    torch.manual_seed(1)
    assert torch.equal(BatchOrder(examples, size, seed).next(), batches[0]), "the order depends on its seed alone"


def test_streamed_batches_equal_resident_ones_and_continue_from_the_state_of_their_order():
    """The state of an order counts what was consumed, not what was gathered ahead."""
    resident, order, resident_order = Resident(SPLIT), BatchOrder(30, 7, 5), BatchOrder(30, 7, 5)
    with closing(Streamed(SPLIT, CPU)) as streamed:
        batches = [streamed.next(order) for _ in range(5)]
        restored_order = BatchOrder(30, 7, 0)
        restored_order.load_state_dict(order.state_dict())
        later = [streamed.next(order) for _ in range(6)]
        assert all(all(map(torch.equal, batch, resident.next(resident_order))) for batch in [*batches, *later])
        assert all(all(map(torch.equal, batch, streamed.next(restored_order))) for batch in later)


def test_an_error_of_the_thread_is_raised_where_the_batch_is_requested():
    short = Split(SPLIT.inputs[:10], SPLIT.targets)
    streamed, order = Streamed(short, CPU), BatchOrder(30, 30, 5)
    for _ in range(2):  # the thread continues
        with pytest.raises(IndexError):
            streamed.next(order)
    streamed.close()
    streamed.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        streamed.next(order)


def test_the_thread_of_a_feed_that_is_not_closed_ends():
    streamed = Streamed(SPLIT, CPU)
    streamed.next(BatchOrder(30, 7, 5))
    assert len(feeds()) == 1
    del streamed  # the fixture waits for the thread


class ReadingStream:
    """The stream on which a batch is read: the marks that it waited for, and the tensors whose memory it keeps."""

    def __init__(self) -> None:
        self.waited: list[str] = []
        self.kept: list[Tensor] = []

    def wait_event(self, mark: str) -> None:
        self.waited.append(mark)


class OnDevice(Tensor):
    """A tensor whose memory a stream can keep, as on a GPU."""

    def record_stream(self, stream: Any) -> None:
        stream.kept.append(self)


def test_a_batch_is_sent_on_its_feeds_stream_and_read_after_its_event(monkeypatch):
    stream, reader = RecordingStream("feed", []), ReadingStream()
    monkeypatch.setattr(torch.cuda, "current_stream", {CPU: reader}.__getitem__)
    streamed = Streamed(Split(SPLIT.inputs.as_subclass(OnDevice), SPLIT.targets.as_subclass(OnDevice)), CPU, stream)
    order = BatchOrder(30, 7, 5)
    read = [*streamed.next(order), *streamed.next(order)]
    streamed.close()
    assert stream.log == [f"feed {call}" for n in (1, 2, 3) for call in ("on", f"mark {n}", "off")]
    assert reader.waited == ["feed:1", "feed:2"]
    assert [id(tensor) for tensor in reader.kept] == [id(tensor) for tensor in read]


@pytest.mark.parametrize(("device", "done"), [("cpu", ["to cpu"]), ("cuda", ["pinned", "to cuda"])])
def test_only_what_is_sent_to_a_gpu_is_pinned_and_nothing_blocks(device, done):
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


def test_sim_med_5_a_run_has_one_feed_for_each_environment_and_the_numbers_of_resident_data():
    """With BatchNorm, dropout, seeds, two rounds and lanes, bit for bit."""
    recipe = change_recipe(make_recipe(steps=4), draws=Draws.FORWARD)
    plan = {0: GERMINATE, 1: ADVANCE}

    def course(recipe: Recipe, lanes: int) -> list[tuple[str, int]]:
        """Return the measurements and the number of feeding threads in each step of two rounds."""
        pool, moments = Pool(recipe, ["grown", "twin"], 2, twin="twin", lanes=lanes), []
        for number in range(2):
            pool.reset(number, 3)
            moments += play(pool, range(4), plan, lambda signals: (repr(signals), len(feeds())))
            moments.append((repr(pool.conclude(3)[1]), len(feeds())))
        pool.close()
        return moments

    resident, streamed = course(recipe, 1), course(replace(recipe, compute=STREAMED), 2)
    assert [words for words, _ in streamed] == [words for words, _ in resident]
    assert {threads for _, threads in resident} == {0}
    assert {threads for _, threads in streamed} == {4}
