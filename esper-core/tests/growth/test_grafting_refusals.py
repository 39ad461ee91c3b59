"""What takes no slot is refused before anything happens, in words that say what would do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import graft, is_grafted, slots_of
from esper_core.leyline import GraftError, SlotPlace


@dataclass
class Parcel:
    content: Tensor


class Wrapping(nn.Module):
    """A layer that puts out what ``wrap`` makes of numbers."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, inputs: Tensor) -> Any:
        return self.wrap(inputs)


class Host(nn.Module):
    """A first layer, one in question, and a last one."""

    def __init__(self, odd: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.odd = odd
        self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        self.odd(hidden)
        return self.last(hidden)


class Shared(nn.Module):
    """One block, several times."""

    def __init__(self, times: int = 3) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.last = nn.Linear(4, 2)
        self.times = times

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(self.times):
            inputs = self.block(inputs)
        return self.last(inputs)


class Moody(nn.Module):
    """One part is called in training alone, one in evaluation alone."""

    def __init__(self) -> None:
        super().__init__()
        self.work, self.rest, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.work(inputs) if self.training else self.rest(inputs))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.embed(inputs)
        return self.norm(hidden + self.attention(hidden, hidden, hidden)[0])


class Turned(nn.Module):
    """Works on (T, N, D) inside."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.mix(inputs.transpose(0, 1)).mean(0))


class Packing(nn.Module):
    """An encoder with a padding mask, which packs its batches in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)

    def forward(self, inputs: Tensor) -> Tensor:
        padding = torch.zeros(inputs.shape[:2], dtype=torch.bool)
        padding[0, -1] = True
        return self.encoder(inputs, src_key_padding_mask=padding)


def refusal(model: nn.Module, slots: Any, example: Tensor | None = None) -> str:
    """What the refusal says; the model is as it was."""
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(GraftError) as caught:
        graft(model, slots, example=example)
    assert [type(module) for module in model.modules()] == kinds
    assert not is_grafted(model)
    assert all(not getattr(module, "_forward_hooks", None) for module in model.modules())
    return str(caught.value)


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (lambda x: (x, x), "returns a tuple, not one tensor"),
        (lambda x: {"x": x}, "returns a dict, not one tensor"),
        (lambda x: None, "returns a NoneType, not one tensor"),
        (Parcel, "returns a Parcel, not one tensor"),
    ],
)  # fmt: skip
def test_an_output_that_is_not_a_tensor_is_refused(wrap: Callable[..., Any], said: str) -> None:
    told = refusal(Host(Wrapping(wrap)), ["odd"], torch.zeros(3, 4))
    assert told == f'E317 slot "odd": module "odd" {said}\n  odd'


@pytest.mark.parametrize(
    ("wrap", "received"),
    [
        (lambda x: x.argmax(1), "torch.int64, shape (3,)"),
        (lambda x: x.long(), "torch.int64, shape (3, 4)"),
        (lambda x: x.sum(1), "torch.float32, shape (3,)"),
        (lambda x: x.sum(), "torch.float32, shape ()"),
        (lambda x: x[:2], "torch.float32, shape (2, 4)"),
    ],
)
def test_what_is_no_row_of_numbers_for_each_example_is_refused(wrap: Callable[..., Any], received: str) -> None:
    told = refusal(Host(Wrapping(wrap)), ["odd"], torch.zeros(3, 4))
    assert "does not return one row of numbers per example" in told
    assert told.endswith(f"Received: {received} for a batch of 3")


def test_rows_of_different_lengths_are_refused() -> None:
    nested = Wrapping(lambda x: torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged))
    assert "returns a nested tensor" in refusal(Host(nested), ["odd"], torch.zeros(3, 4))


@pytest.mark.parametrize("steps", [5, 3])
def test_a_batch_in_the_second_dimension_is_refused_even_where_both_are_as_long(steps: int) -> None:
    told = refusal(Turned(), {"slot": SlotPlace("mix", "tokens")}, torch.zeros(3, steps, 4))
    assert 'module "mix" does not return one row of numbers per example' in told
    assert "Put the batch first" in told


def test_a_batch_that_is_as_long_as_something_else_is_no_fault() -> None:
    model = graft(Attending(), {"slot": SlotPlace("norm", "tokens")}, example=torch.zeros(4, 4, 4))
    assert slots_of(model).named("slot").site is not None


def test_a_module_that_is_called_several_times_is_refused_and_what_comes_after_it_is_not() -> None:
    example = torch.zeros(3, 4)
    for at in ("block", "block.0"):
        assert f'module "{at}" is called 3 times in one pass' in refusal(Shared(), [at], example)
    assert is_grafted(graft(Shared(), ["last"], example=example))
    assert is_grafted(graft(Shared(times=1), ["block"], example=example))


@pytest.mark.parametrize(("at", "mode"), [("work", "evaluation"), ("rest", "training")])
def test_a_module_that_is_called_in_one_mode_alone_is_refused(at: str, mode: str) -> None:
    told = refusal(Moody(), [at], torch.zeros(3, 4))
    assert told == f'E317 slot "{at}": module "{at}" is not called in {mode}\n  {at}'


def test_attention_and_its_projection_are_refused() -> None:
    for at, said in (("attention", "returns a tuple"), ("attention.out_proj", "is not called in training")):
        assert said in refusal(Attending(), [at], torch.zeros(2, 3, 4))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("at", ["encoder.layers.0", "encoder.layers.1.linear2"])
def test_a_slot_in_an_encoder_that_packs_its_batches_is_refused_and_one_behind_it_is_not(at: str) -> None:
    example = torch.randn(3, 5, 4)
    told = refusal(Packing(), [at], example)
    assert "returns a nested tensor" in told
    assert told.endswith("build it with enable_nested_tensor=False.")
    assert is_grafted(graft(Packing(), ["encoder"], example=example))
    model = Packing()
    model.encoder.use_nested_tensor = False
    assert is_grafted(graft(model, [at], example=example))


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("at", ["odd", "odd.0", "odd.0.0"])
def test_script_modules_are_refused_and_all_that_is_in_them(at: str) -> None:
    inner = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    hint = "Graft the module that it was scripted from; the grafted one can be traced or exported."
    for odd in (torch.jit.script(inner), torch.jit.trace(inner, torch.zeros(3, 4))):
        told = refusal(Host(odd), [at], torch.zeros(3, 4))
        assert told == f'E315 "{at}" is a script module and takes no slot\n  {hint}'
        assert is_grafted(graft(Host(odd), ["last"], example=torch.zeros(3, 4)))


def named(**modules: nn.Module) -> nn.Module:
    """A Sequential whose layers have names."""
    model = nn.Sequential()
    for name, module in modules.items():
        model.add_module(name, module)
    return model


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.heads = nn.ModuleDict({"one": nn.Linear(4, 2)})
        self.alias = self.layers[1]


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        (["layers"], 'E317 "layers" is a ModuleList, which is never called\n  It contains: layers.0, layers.1'),
        (["heads"], 'E317 "heads" is a ModuleDict, which is never called\n  It contains: heads.one'),
        (["alias"], 'E313 no module of Lists is called "alias"'),
        (["layer.0"], 'E313 no module of Lists is called "layer.0"\n  Did you mean "layers.0"?'),
        ([""], 'E313 no module of Lists is called ""'),
        ({"all": ""}, 'E313 no module of Lists is called ""'),
        (["layers.*", "layers.1"], 'E316 "layers.1" would have two slots, "layers.1" and "layers.1"'),
        ({"a": "layers.*", "b": "*.1"}, 'E316 "layers.1" would have two slots, "a:layers.1" and "b"'),
        ({}, "E312 no slot was asked for"),
        ([None], "E312 a slot needs a name and a pattern"),
    ],
)
def test_a_slip_in_a_name_is_told_even_without_an_example(slots: Any, said: str) -> None:
    assert refusal(Lists(), slots).startswith(said)


def test_a_name_with_signs_that_a_pattern_reads_otherwise_is_taken_as_it_stands() -> None:
    model = graft(
        named(**{"a[0]": nn.Linear(4, 4), "a0": nn.Linear(4, 4), "b c/d-é": nn.Linear(4, 2)}), ["a[0]", "b c/d-é"]
    )
    assert [slot.at for slot in slots_of(model).each()] == ["a[0]", "b c/d-é"]


def test_a_list_that_can_be_called_takes_a_slot() -> None:
    class Chain(nn.ModuleList):
        def forward(self, hidden: Tensor) -> Tensor:
            for layer in self:
                hidden = layer(hidden)
            return hidden

    model = graft(nn.Sequential(Chain([nn.Linear(4, 4)])), ["0"], example=torch.zeros(3, 4))
    assert slots_of(model).named("0").site is not None


def test_a_model_that_has_something_of_that_name_is_refused() -> None:
    told = refusal(named(_esper=nn.Linear(4, 4), last=nn.Linear(4, 2)), ["last"])
    assert told.startswith('E318 this model has a "_esper" of its own')


def test_an_error_of_the_model_itself_is_not_taken_for_the_slots() -> None:
    model = Host(Wrapping(lambda x: x @ x))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        graft(model, ["first"], example=torch.zeros(3, 4))
    assert not is_grafted(model)
