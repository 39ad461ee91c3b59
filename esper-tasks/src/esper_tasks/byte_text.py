"""A language-modelling task on bytes: the help texts of Python, which every machine has."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from esper_core.leyline import ConfigError, DataShape, Metric, Problem, Split, SplitName
from esper_tasks.settings import BytesSettings
from esper_tasks.supervised import Supervised

SYMBOLS: Final = 256
_HELD_OUT_SHARE: Final = 0.1


class NextByte(Supervised):
    """Predict each byte of a window from those before it, measured by perplexity.

    Formula: losses = mean over the window of −log softmax(outputs)[next byte], in nats; perplexity = e to their mean.
    All examples have the same length, so the mean over them is the mean over all bytes. A split has inputs (N, length)
    and targets (N, length), shifted by one byte, below 256.

    text: what is cut into windows. settings: of the task.
    """

    def __init__(self, text: bytes, settings: BytesSettings) -> None:
        metric = Metric("perplexity", "down", exponential=True)
        super().__init__(_splits(text, settings), metric, DataShape("tokens", (settings.length,), SYMBOLS))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of each example, in nats; raise ConfigError without outputs per byte."""
        if outputs.shape[:-1] != targets.shape:
            hint = (
                "For example  host: {use: transformer, settings: {causal: true}}\n"
                f"Received: outputs {tuple(outputs.shape)} for targets {tuple(targets.shape)}"
            )
            raise ConfigError(Problem("E120", "the task bytes needs a host with outputs for each byte", hint=hint))
        byte_losses = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return byte_losses.reshape(len(targets), -1).mean(dim=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses, of whose mean the metric is the perplexity."""
        return self.losses(outputs, targets)


def byte_text(*, length: int = 64, windows: int | None = None, held_out: int = 200) -> NextByte:
    """Predict the next byte in the help texts of Python. Inputs and targets (N, length), whole numbers below 256.

    The text is that of ``pydoc_data.topics``, in the order of its topics: 0.4 million bytes, which differ between
    versions of Python, so compare figures only within one version. It is split into three contiguous blocks, 80 % for
    training and 10 % each for validation and test, which are cut into windows without overlap.

    >>> task = byte_text(length=32)
    >>> one = task.split("train")
    >>> bytes(one.inputs[0].tolist())[1:] == bytes(one.targets[0].tolist())[:-1]
    True

    length: bytes per window. windows: most training windows, None for all. held_out: most windows for validation, and
    for the test, spread evenly over the block.
    """
    return NextByte(_help_text(), BytesSettings(length=length, windows=windows, held_out=held_out))


def _help_text() -> bytes:
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError as error:
        hint = "Some systems omit this module; install their full python3 package."
        raise ConfigError(Problem("E120", f"the task bytes needs pydoc_data.topics: {error}", hint=hint)) from error
    return "\n".join(topics[name] for name in sorted(topics)).encode()


def _splits(text: bytes, settings: BytesSettings) -> dict[SplitName, Split]:
    held_out = int(len(text) * _HELD_OUT_SHARE)
    validation_from, test_from = len(text) - 2 * held_out, len(text) - held_out
    if held_out <= settings.length:
        hint = f"Each held-out block has {held_out} bytes. Received: {settings.length}"
        raise ConfigError(Problem("E120", "length exceeds the held-out blocks", path="length", hint=hint))
    blocks: dict[SplitName, tuple[bytes, int | None]] = {
        "train": (text[:validation_from], settings.windows),
        "validation": (text[validation_from:test_from], settings.held_out),
        "test": (text[test_from:], settings.held_out),
    }
    seen: set[bytes] = set()
    splits: dict[SplitName, Split] = {}
    for name, (block, most) in blocks.items():
        starts = range(0, len(block) - settings.length, settings.length + 1)  # the rest at the end is dropped
        windows = [block[start : start + settings.length + 1] for start in starts]
        cut = [window for window in windows if window[:-1] not in seen]
        seen.update(window[:-1] for window in cut)
        if not cut:
            message = f"{name} would be empty: all of its windows also occur in an earlier split"
            raise ConfigError(Problem("E120", message))
        count = len(cut) if most is None else min(most, len(cut))
        evenly = [list(cut[place * len(cut) // count]) for place in range(count)]
        numbers = torch.tensor(evenly, dtype=torch.int64)
        splits[name] = Split(numbers[:, :-1].contiguous(), numbers[:, 1:].contiguous())
    return splits
