"""Slots in models of all kinds: nothing changes while they are empty, and what cannot carry one is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import GrowthConfig, OptimizerConfig
from esper_core.growth import Garden, OptimizerKeeper, Variety, graft, is_grafted, slots_of
from esper_core.leyline import WAIT, Action, GraftError, Op, Site, SlotPlace

EXAMPLE = torch.randn(4, 1, 12, generator=torch.Generator().manual_seed(0))


def build(host: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return host()


def grow(model: nn.Module, variety: Variety) -> Garden:
    """A seed in the first slot that acts at full strength, with weights that make a difference."""
    settings = OptimizerConfig()
    keeper = OptimizerKeeper(model.parameters(), host_settings=settings, seed_settings=settings)
    name = slots_of(model).each()[0].name
    garden = Garden(model, keeper, {name: [variety]}, seed=0, batches=1, settings=GrowthConfig(embargo=0))
    garden.apply(Action(Op.GERMINATE, name, variety.id, speed=0), 0)
    garden.open_step()
    garden.apply(Action(Op.ADVANCE, name), 0)
    with torch.no_grad():
        for parameter in garden.slots[name].seeds.parameters():
            parameter.add_(0.3)
    return garden


def outputs_and_gradients(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    torch.manual_seed(7)
    model.train()
    outputs = model(inputs)
    outputs.square().sum().backward()
    return [outputs, *(p.grad for p in model.parameters() if p.grad is not None), *model.buffers()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_with_empty_slots_outputs_gradients_and_buffers_are_bitwise_those_of_the_host(
    noisy_host: Callable[[], nn.Module],
) -> None:
    plain = build(noisy_host)
    grafted = graft(build(noisy_host), ["stem", "hidden"], example=EXAMPLE)
    assert list(grafted.state_dict()) == list(plain.state_dict())
    assert same(outputs_and_gradients(plain, EXAMPLE), outputs_and_gradients(grafted, EXAMPLE))


def test_the_probe_leaves_parameters_buffers_modes_and_random_numbers_as_they_were(
    noisy_host: Callable[[], nn.Module],
) -> None:
    model = build(noisy_host)
    model.drop.eval()
    torch.manual_seed(3)
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    graft(model, ["stem"], example=EXAMPLE)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert model.training
    assert not model.drop.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_slot_knows_what_it_sees(noisy_host: Callable[[], nn.Module]) -> None:
    model = graft(build(noisy_host), {"early": "stem", "late": "hidden"}, example=EXAMPLE)
    assert [(slot.name, slot.site) for slot in slots_of(model).each()] == [
        ("early", Site("sequence", 4, (12,))),
        ("late", Site("vector", 8, ())),
    ]


def test_class_and_name_stay_what_they_were(noisy_host: Callable[[], nn.Module]) -> None:
    model = graft(build(noisy_host), ["stem"])
    assert isinstance(model, type(build(noisy_host)))
    assert type(model).__name__ == "NoisyHost"
    assert type(model).__module__ == type(build(noisy_host)).__module__


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_seeds_of_its_own(
    again: Callable[[nn.Module], nn.Module], noisy_host: Callable[[], nn.Module], local_conv: Variety
) -> None:
    model = graft(build(noisy_host), ["stem"], example=EXAMPLE)
    grow(model, local_conv)
    twin = again(model)
    model.eval(), twin.eval()
    before = model(EXAMPLE)
    assert torch.equal(twin(EXAMPLE), before)
    with torch.no_grad():
        for parameter in slots_of(twin).each()[0].seeds.parameters():
            parameter.add_(1.0)
    assert not torch.equal(twin(EXAMPLE), before)
    assert torch.equal(model(EXAMPLE), before)
    assert is_grafted(again(twin))


def test_to_moves_the_seeds_too(noisy_host: Callable[[], nn.Module], local_conv: Variety) -> None:
    model = graft(build(noisy_host), ["stem"], example=EXAMPLE)
    grow(model, local_conv)
    model.double()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert model(EXAMPLE.double()).dtype is torch.float64


def test_keys_of_a_seed_stand_under_one_prefix_and_the_hosts_never_change(
    noisy_host: Callable[[], nn.Module], local_conv: Variety
) -> None:
    model = graft(build(noisy_host), ["stem"], example=EXAMPLE)
    keys = list(model.state_dict())
    garden = grow(model, local_conv)
    grown = [key for key in model.state_dict() if key not in keys]
    assert [key for key in model.state_dict() if key in keys] == keys
    assert grown
    *numbers, journal = grown
    assert all(key.startswith("_esper.stem.seeds.0.") for key in numbers)
    assert journal == "_esper.for_esper_core.load"
    garden.remove("done")
    assert list(model.state_dict()) == keys


def test_a_compiled_sibling_of_the_same_class_does_not_hide_the_hooks(
    noisy_host: Callable[[], nn.Module], local_conv: Variety
) -> None:
    twin = build(noisy_host).eval()
    compiled_twin = torch.compile(twin, backend="eager")
    expected = compiled_twin(EXAMPLE)
    model = graft(build(noisy_host), ["stem"], example=EXAMPLE).eval()
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(EXAMPLE), expected)
    grow(model, local_conv)
    model.eval()
    grown = model(EXAMPLE)
    assert not torch.equal(grown, expected)
    assert torch.allclose(compiled(EXAMPLE), grown, atol=1e-6)
    assert torch.equal(compiled_twin(EXAMPLE), expected)


def test_a_sequential_root_works_and_computes_the_same() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    inputs = torch.randn(3, 4)
    expected = plain(inputs)
    assert torch.equal(graft(plain, ["1"], example=inputs)(inputs), expected)


def test_a_pattern_stands_for_several_modules_and_names_slots_after_them() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4)))
    graft(model, {"deep": SlotPlace("*.0", stack=3)}, example=torch.zeros(2, 4))
    assert [(slot.name, slot.at, slot.limit) for slot in slots_of(model).each()] == [
        ("deep:0.0", "0.0", 3),
        ("deep:1.0", "1.0", 3),
    ]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.norm(self.attend(inputs, inputs, inputs)[0])


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.layer(self.layer(inputs)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 4, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.cell(inputs)[0]


@pytest.mark.parametrize(
    ("model", "slot", "example", "said"),
    [
        (
            Attention(),
            "attend.out_proj",
            torch.zeros(2, 3, 4),
            "is not called in training\n  attend.out_proj",
        ),
        (Reused(), "layer", torch.zeros(2, 4), "is called 2 times in one pass"),
        (Recurrent(), "cell", torch.zeros(2, 3, 4), "returns a tuple, not one tensor"),
    ],
)
def test_what_cannot_carry_a_slot_is_refused_and_the_model_is_as_it_was(
    model: nn.Module, slot: str, example: Tensor, said: str
) -> None:
    model, kind = copy.deepcopy(model), type(model)
    with pytest.raises(GraftError) as caught:
        graft(model, [slot], example=example)
    assert said in str(caught.value)
    assert type(model) is kind
    assert not is_grafted(model)
    assert all(not module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        (["stme"], 'E313 no module of NoisyHost is called "stme"\n  Did you mean "stem"?'),
        ({"early": "stem", "again": "stem"}, 'E316 "stem" would have two slots, "early" and "again"'),
        ("stem", "E312 slots must be a list of names or a mapping"),
        ([], "E312 no slot was asked for"),
    ],
)
def test_a_slip_in_a_name_is_told(slots: object, said: str, noisy_host: Callable[[], nn.Module]) -> None:
    with pytest.raises(GraftError) as caught:
        graft(noisy_host(), slots)  # type: ignore[arg-type]
    assert str(caught.value).startswith(said)


def test_all_slips_are_told_at_once(noisy_host: Callable[[], nn.Module]) -> None:
    with pytest.raises(GraftError) as caught:
        graft(noisy_host(), ["stme", "hiden"])
    assert [problem.code for problem in caught.value.problems] == ["E313", "E313"]


def test_a_model_is_grafted_once(noisy_host: Callable[[], nn.Module]) -> None:
    model = graft(noisy_host(), ["stem"])
    with pytest.raises(GraftError, match="E310"):
        graft(model, ["hidden"])


def test_a_pattern_that_matches_hundreds_is_taken_for_a_slip() -> None:
    model = nn.Sequential(*(nn.Identity() for _ in range(300)))
    with pytest.raises(GraftError, match="E314"):
        graft(model, ["*"])


def test_slots_of_a_plain_model_says_what_to_do() -> None:
    with pytest.raises(GraftError, match=r"esper_core\.graft"):
        slots_of(nn.Linear(1, 1))


def test_wait_does_nothing(noisy_host: Callable[[], nn.Module], local_conv: Variety) -> None:
    model = graft(build(noisy_host), ["stem"], example=EXAMPLE)
    garden = grow(model, local_conv)
    assert garden.apply(WAIT, 3) == []


def test_the_probe_puts_back_a_buffer_that_was_replaced() -> None:
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, inputs: Tensor) -> Tensor:
            self.mean = 0.5 * self.mean + inputs.mean(0)
            return self.layer(inputs - self.mean)

    model = Replacing()
    buffer = model.mean
    graft(model, ["layer"], example=torch.ones(3, 4))
    assert model.mean is buffer
    assert not buffer.any()


class Final(nn.Module):
    """Nobody may derive from it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def __init_subclass__(cls, **named: object) -> None:
        if cls.__name__ == "Final":
            raise TypeError("this class is final")

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)


class Scribbler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.add_(1.0))


def layers(count: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))


@pytest.mark.parametrize(
    ("build", "slots", "said"),
    [
        (Final, ["layer"], "E318 the class Final cannot be derived from: this class is final"),
        (Scribbler, ["layer"], "E318 the model writes to its input"),
        (lambda: torch.compile(layers(1), backend="eager"), ["_orig_mod.0"], "E318 this model is compiled already"),
        (lambda: nn.Sequential(graft(layers(1), ["0"])), ["0"], "E310 this model has slots already"),
        (lambda: layers(2), {"a.b": "0", "a/b": "1"}, 'E316 the slots "a.b" and "a/b" would have the same key'),
        (lambda: layers(1), [0], "E312 a slot needs a name and a pattern"),
        (lambda: layers(1), {"a": None}, "E312 a slot needs a name and a pattern"),
        (lambda: layers(1), {"": "0"}, "E312 a slot needs a name and a pattern"),
    ],
)  # fmt: skip
def test_what_cannot_be_grafted_is_told_and_left_as_it_was(
    build: Callable[[], nn.Module], slots: object, said: str
) -> None:
    model = build()
    kind, hooks = type(model), [len(module._forward_hooks) for module in model.modules()]
    with pytest.raises(GraftError) as caught:
        graft(model, slots, example=torch.zeros(2, 2))  # type: ignore[arg-type]
    assert str(caught.value).startswith(said)
    assert type(model) is kind
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert not is_grafted(model)


@pytest.mark.parametrize("name", ["type", "values", "keys", "half", "forward", "training", "each"])
def test_a_slot_may_have_the_name_of_something_that_modules_have(name: str) -> None:
    model = graft(nn.Sequential(nn.Linear(2, 2)), {name: "0"}, example=torch.zeros(2, 2))
    assert slots_of(model).named(name).name == name


def test_a_grafted_sequential_is_as_long_as_it_was() -> None:
    first, last = nn.Linear(2, 2), nn.Linear(2, 3)
    model = graft(nn.Sequential(first, nn.ReLU(), last), ["0"], example=torch.zeros(2, 2))
    assert len(model) == 3
    assert model[-1] is last
    assert next(iter(model)) is first
    assert [type(layer).__name__ for layer in model[:2]] == ["Linear", "ReLU"]
    for change in (
        lambda: model.append(nn.Identity()),
        lambda: model.__setitem__(-1, nn.Identity()),
        lambda: model.pop(0),
    ):
        with pytest.raises(GraftError, match="E319"):
            change()
    assert is_grafted(model)
    assert len(copy.deepcopy(model)) == 3
