"""Models of all classes with hooks of all kinds: a graft leaves them what they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from esper_core.config import OptimizerConfig
from esper_core.growth import Garden, OptimizerKeeper, Variety, graft, is_grafted
from esper_core.growth.seeds import Seed
from esper_core.leyline import Action, BlueprintSpec, GraftError, Op

INPUTS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.part(inputs))


class Derived(Net):
    """Says ``super()`` and ``self.__class__`` within forward."""

    scale = 2.0

    def forward(self, inputs: Tensor) -> Tensor:
        assert self.__class__.__name__ == "Derived"
        return super().forward(inputs) * self.__class__.scale


class Slotted(Net):
    __slots__ = ("note",)


class Marking(type):
    """Writes on each class what made it, and counts instances."""

    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.marked = type(cls).__name__
        return made


class Marked(Net, metaclass=Marking):
    pass


class Forwarding(Net):
    """What it does not have, its part has."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("last"), name)


class Demanding(Net):
    def __init_subclass__(cls, *, tag: str) -> None:
        cls.tag = tag


class Tagged(Demanding, tag="one"):
    pass


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.module(*args, **named)


def net(kind: type[nn.Module] = Net) -> nn.Module:
    torch.manual_seed(0)
    return kind()


@pytest.mark.parametrize("kind", [Net, Derived, Slotted, Marked, Forwarding])
def test_any_class_takes_slots_and_keeps_its_ways(kind: type[nn.Module], add_seed: Callable[..., Seed]) -> None:
    expected = net(kind)(INPUTS)
    model = graft(net(kind), ["part", "part.0"], example=INPUTS)
    assert isinstance(model, kind)
    assert type(type(model)) is type(kind)
    assert (type(model).__name__, type(model).__qualname__) == (kind.__name__, kind.__qualname__)
    assert isinstance(model.part, nn.Sequential)
    assert repr(model).startswith(f"{kind.__name__}(\n  (part): Sequential(\n    (0): Linear(")
    assert torch.equal(model(INPUTS), expected)
    add_seed(model, "part.0")
    grown = model(INPUTS)
    assert not torch.allclose(grown, expected)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(INPUTS), grown)
        assert isinstance(again, kind)
        assert is_grafted(again)


def test_what_classes_have_of_their_own_is_there_after_grafting() -> None:
    slotted, marked, forwarding = net(Slotted), net(Marked), net(Forwarding)
    slotted.note = "here"
    for model in (slotted, marked, forwarding):
        graft(model, ["part"], example=INPUTS)
    assert slotted.note == "here"
    assert marked.marked == "Marking"
    assert copy.deepcopy(marked).marked == "Marking"
    assert forwarding.in_features == 4


def test_a_class_that_asks_something_of_its_subclasses_is_refused_unless_it_is_put_into_another_module() -> None:
    with pytest.raises(GraftError, match=r"E318 the class Tagged cannot be derived from: .*'tag'"):
        graft(net(Tagged), ["part"], example=INPUTS)
    assert is_grafted(graft(Wrapper(net(Tagged)), ["module"], example=INPUTS))


def test_a_new_model_of_a_grafted_models_class_is_a_plain_one() -> None:
    fresh = type(graft(net(), ["part"], example=INPUTS))()
    assert not is_grafted(fresh)
    assert fresh(INPUTS).shape == (3, 2)


@pytest.mark.parametrize("wrap", [Wrapper, nn.DataParallel])
def test_a_wrapper_around_a_grafted_model_hears_its_slots(
    wrap: Callable[[nn.Module], nn.Module], add_seed: Callable[..., Seed]
) -> None:
    model = graft(net(), ["part"], example=INPUTS)
    add_seed(model, "part")
    assert torch.equal(wrap(model)(INPUTS), model(INPUTS))
    assert torch.equal(copy.deepcopy(wrap(model))(INPUTS), model(INPUTS))


def test_a_functional_call_reaches_seeds_as_all_parameters(add_seed: Callable[..., Seed]) -> None:
    model = graft(net(), ["part"], example=INPUTS)
    add_seed(model, "part")
    own = dict(model.named_parameters())

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (INPUTS,)).square().sum()

    gradients = torch.func.grad(loss)(own)
    model(INPUTS).square().sum().backward()
    assert any(name.startswith("_esper.") for name in gradients)
    torch.testing.assert_close(gradients, {name: parameter.grad for name, parameter in own.items()})


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", ["part", "part.0", "last"])
def test_a_parametrized_weight_and_a_slot_do_not_disturb_each_other(
    when: str, at: str, add_seed: Callable[..., Seed]
) -> None:
    model, twin = net(), net()
    for each in (model, twin):
        if each is model and when == "after":
            graft(model, [at], example=INPUTS)
        parametrizations.weight_norm(each.part[0])
        parametrizations.weight_norm(each.last)
    if when == "before":
        graft(model, [at], example=INPUTS)
    assert torch.equal(model(INPUTS), twin(INPUTS))
    add_seed(model, at)
    grown = model(INPUTS)
    assert not torch.allclose(grown, twin(INPUTS))
    assert torch.equal(copy.deepcopy(model)(INPUTS), grown)


class Root(nn.Module):
    """Has a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.part = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.part(inputs @ self.weight)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_root_may_be_parametrized_itself(when: str, add_seed: Callable[..., Seed]) -> None:
    model = net(Root)
    if when == "before":
        parametrizations.orthogonal(model, "weight")
    graft(model, ["part"], example=INPUTS)
    if when == "after":
        parametrizations.orthogonal(model, "weight")
    before = model(INPUTS)
    add_seed(model, "part")
    assert not torch.allclose(model(INPUTS), before)
    again = copy.deepcopy(model)
    assert is_grafted(again)
    assert torch.equal(again(INPUTS), model(INPUTS))


def test_a_users_hook_sees_the_module_if_it_came_first_and_the_slot_if_it_came_after(
    add_seed: Callable[..., Seed],
) -> None:
    model, seen = net(), {}
    model.part.register_forward_hook(lambda module, args, output: seen.update(first=output))
    graft(model, ["part"], example=INPUTS)
    model.part.register_forward_hook(lambda module, args, output: seen.update(last=output))
    seed = add_seed(model, "part", alpha=0.5)
    model(INPUTS)
    host = net().part(INPUTS)
    assert torch.equal(seen["first"], host)
    torch.testing.assert_close(seen["last"], 0.5 * host + 0.5 * seed.block(host))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_users_backward_hook_sees_the_gradient_of_what_leaves_the_slot(
    when: str, add_seed: Callable[..., Seed]
) -> None:
    seen: list[Tensor] = []

    def hook(module: nn.Module, inward: Any, outward: Any) -> None:
        seen.append(outward[0])

    model = net()
    if when == "before":
        model.part.register_full_backward_hook(hook)
    graft(model, ["part"], example=INPUTS)
    if when == "after":
        model.part.register_full_backward_hook(hook)
    add_seed(model, "part", alpha=0.5)
    model(INPUTS.clone().requires_grad_()).sum().backward()
    (gradient,) = seen
    torch.testing.assert_close(gradient, model.last.weight.sum(0).expand(3, 4))


@pytest.mark.parametrize("strict", [False, True])
def test_a_grown_model_can_be_exported(strict: bool, add_seed: Callable[..., Seed]) -> None:
    model = graft(net(), ["part", "part.0"], example=INPUTS).eval()
    add_seed(model, "part", fossil=True)
    exported = torch.export.export(model, (INPUTS,), strict=strict)
    assert torch.equal(exported.module()(INPUTS), model(INPUTS))
    assert not any("part/0" in name for name in exported.state_dict)


def test_a_traced_graph_takes_slots_and_so_do_its_copies(add_seed: Callable[..., Seed]) -> None:
    model = graft(torch.fx.symbolic_trace(net()), ["part.0"], example=INPUTS)
    before = model(INPUTS)
    add_seed(model, "part.0")
    assert not torch.allclose(model(INPUTS), before)
    assert torch.equal(copy.deepcopy(model)(INPUTS), model(INPUTS))


def test_parts_of_a_grafted_model_are_left_when_a_later_class_cannot_be_changed() -> None:
    model = Wrapper(net(Tagged))
    with pytest.raises(GraftError, match="E318 the class Tagged"):
        graft(model, ["module.part.0"], example=INPUTS)
    assert type(model) is Wrapper
    assert type(model.module.part) is nn.Sequential


class TwoNumbers(nn.Module):
    """The first layer computes in double, what carries the slot in half: a seed is what its slot is."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4).double()
        self.second = nn.Linear(4, 4).to(torch.bfloat16)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(self.first(inputs.double()).to(torch.bfloat16)).float()


def test_a_seed_computes_in_what_its_slot_sees_and_not_in_what_the_host_begins_with() -> None:
    settings = OptimizerConfig(implementation="plain")
    model = graft(TwoNumbers(), ["second"], example=torch.randn(3, 4))
    keeper = OptimizerKeeper(model.parameters(), host_settings=settings, seed_settings=settings)
    variety = Variety("test/linear", BlueprintSpec("vector", "c*c + c"), lambda site: nn.Linear(site.channels, 4))
    garden = Garden(model, keeper, {"second": [variety]}, seed=0, batches=1)
    garden.apply(Action(Op.GERMINATE, "second", variety.id, speed=0), 0)
    garden.open_step()
    garden.apply(Action(Op.ADVANCE, "second"), 0)
    assert {parameter.dtype for parameter in garden.slots["second"].parameters()} == {torch.bfloat16}
    assert model(torch.randn(3, 4)).isfinite().all()
