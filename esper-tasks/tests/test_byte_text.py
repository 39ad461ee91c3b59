"""The bytes task: windows without overlap, next-byte targets, losses per example."""

import math
import sys
from itertools import pairwise

import pytest
import torch
from pydantic import ValidationError

from esper_core.leyline import ConfigError, Metric, Split
from esper_core.trainer.measurements import evaluate
from esper_tasks.byte_text import NextByte, byte_text
from esper_tasks.settings import BytesSettings

SPLITS = ("train", "validation", "test")
TEXT = bytes(place * 7 % 251 if place % 3 else place // 256 for place in range(10_000))


@pytest.fixture(scope="module")
def task():
    return byte_text()


def test_a_target_is_the_byte_after_its_input():
    for name in SPLITS:
        split = NextByte(TEXT, BytesSettings(length=16)).split(name)
        for inputs, targets in zip(split.inputs.tolist(), split.targets.tolist(), strict=True):
            assert bytes([*inputs, targets[-1]]) in TEXT
            assert inputs[1:] == targets[:-1]


def test_splits_are_disjoint_blocks_of_the_text():
    task = NextByte(TEXT, BytesSettings(length=16, held_out=1000))
    places = {}
    for name in SPLITS:
        split = task.split(name)
        rows = [bytes([*a, b[-1]]) for a, b in zip(split.inputs.tolist(), split.targets.tolist(), strict=True)]
        assert all(TEXT.count(row) == 1 for row in rows)
        places[name] = [TEXT.index(row) for row in rows]
    ends = {name: (starts[0], starts[-1] + 17) for name, starts in places.items()}
    assert ends["train"][1] <= 8000 <= ends["validation"][0]
    assert ends["validation"][1] <= 9000 <= ends["test"][0]
    assert all(b - a == 17 for starts in places.values() for a, b in pairwise(starts))


def test_windows_of_an_earlier_split_are_left_out():
    original = NextByte(TEXT, BytesSettings(length=16)).split("validation")
    copied = TEXT[:8017] + TEXT[17:34] + TEXT[8034:]
    parted = NextByte(copied, BytesSettings(length=16)).split("validation")
    assert torch.equal(parted.inputs, original.inputs[[0, *range(2, len(original))]])


def test_fewer_windows_are_taken_evenly_from_the_block():
    every = NextByte(TEXT, BytesSettings(length=16)).split("train").inputs
    few = NextByte(TEXT, BytesSettings(length=16, windows=10)).split("train").inputs
    assert torch.equal(few, every[[place * len(every) // 10 for place in range(10)]])


def test_losses_and_scores_are_means_over_a_window(task):
    assert task.metric == Metric("perplexity", "down", exponential=True)
    outputs = torch.zeros(2, 3, 256)
    outputs[1, :, 65] = 1e4
    targets = torch.tensor([[1, 2, 3], [65, 65, 66]])
    torch.testing.assert_close(task.losses(outputs, targets), torch.tensor([math.log(256), 1e4 / 3]))
    assert torch.equal(task.scores(outputs, targets), task.losses(outputs, targets))


def test_perplexity_is_computed_over_all_bytes(task):
    windows = task.split("test")
    few = Split(windows.inputs[:2], windows.targets[:2])

    class Guess(torch.nn.Module):
        """A host that is sure of one byte in the first window, and undecided in the other."""

        def forward(self, inputs):
            outputs = torch.zeros(*inputs.shape, 256)
            outputs[0].scatter_(1, few.targets[0][:, None], 1e4)
            return outputs

    measured = evaluate(Guess(), task, few)
    assert measured.losses.tolist() == pytest.approx([0.0, math.log(256)])
    assert measured.metric.item() == pytest.approx(16.0)


def test_a_host_that_is_not_causal_is_refused_with_a_remedy(task):
    with pytest.raises(ConfigError, match=r"outputs for each byte\n[\s\S]*causal: true[\s\S]*\(2, 256\) .* \(2, 64\)"):
        task.losses(torch.zeros(2, 256), torch.zeros(2, 64, dtype=torch.int64))


def test_a_python_without_help_texts_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ConfigError, match=r"bytes needs pydoc_data\.topics"):
        byte_text()


def test_a_repetitive_text_is_refused():
    with pytest.raises(ConfigError, match="validation would be empty"):
        NextByte(b"spam and eggs, " * 600, BytesSettings(length=16))


def test_a_window_longer_than_what_is_held_out_is_refused():
    with pytest.raises(ConfigError, match=r"length exceeds the held-out blocks[\s\S]*1000 bytes. Received: 1000"):
        NextByte(TEXT, BytesSettings(length=1000))
    with pytest.raises(ValidationError, match="length"):
        byte_text(length=8)
