"""Grafted models of unusual classes and with hooks of their own keep working."""

import copy
import pickle
from typing import Any

import pytest
import torch
from core_worlds import WILD, Net
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from esper_core.config import OptimizerConfig
from esper_core.growth import graft, is_grafted
from esper_core.leyline import Action, GraftError, Op

INPUTS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.part(inputs))


class Derived(Plain):
    """Uses ``super()`` and ``self.__class__`` in forward."""

    scale = 2.0

    def forward(self, inputs: Tensor) -> Tensor:
        assert self.__class__.__name__ == "Derived"
        return super().forward(inputs) * self.__class__.scale


class Slotted(Plain):
    __slots__ = ("note",)


class Marking(type):
    """Writes the name of the metaclass on each instance."""

    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.marked = type(cls).__name__
        return made


class Marked(Plain, metaclass=Marking):
    pass


class Forwarding(Plain):
    """Forwards unknown attributes to its part."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("last"), name)


class Demanding(Plain):
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


def net(kind: type[nn.Module] = Plain) -> nn.Module:
    torch.manual_seed(0)
    return kind()


@pytest.mark.parametrize("kind", [Plain, Derived, Slotted, Marked, Forwarding])
def test_grafted_model_of_any_class_keeps_its_type_repr_and_outputs(kind, add_seed):
    expected = net(kind)(INPUTS)
    model = graft(net(kind), ["part", "part.0"], example=INPUTS)
    assert isinstance(model, kind)
    assert type(type(model)) is type(kind)
    for name in ("__name__", "__qualname__", "__module__"):
        assert getattr(type(model), name) == getattr(kind, name)
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


def test_attributes_from_slots_metaclass_and_getattr_survive_grafting():
    slotted, marked, forwarding = net(Slotted), net(Marked), net(Forwarding)
    slotted.note = "here"
    for model in (slotted, marked, forwarding):
        graft(model, ["part"], example=INPUTS)
    assert slotted.note == "here"
    assert marked.marked == "Marking"
    assert copy.deepcopy(marked).marked == "Marking"
    assert forwarding.in_features == 4


def test_class_that_demands_something_of_its_subclasses_is_refused_unless_wrapped_in_a_module():
    wrapped = Wrapper(net(Tagged))
    for model, at in ((net(Tagged), "part"), (wrapped, "module.part.0")):
        with pytest.raises(GraftError, match=r"E318 the class Tagged cannot be subclassed: .*'tag'"):
            graft(model, [at], example=INPUTS)
    assert type(wrapped) is Wrapper
    assert type(wrapped.module.part) is nn.Sequential
    assert is_grafted(graft(wrapped, ["module"], example=INPUTS))


@pytest.mark.parametrize("wrap", [Wrapper, nn.DataParallel])
def test_seeds_act_inside_a_wrapper(wrap, add_seed):
    model = graft(net(), ["part"], example=INPUTS)
    add_seed(model, "part")
    assert torch.equal(wrap(model)(INPUTS), model(INPUTS))
    assert torch.equal(copy.deepcopy(wrap(model))(INPUTS), model(INPUTS))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", ["part", "part.0", "last"])
def test_parametrized_weight_and_slot_work_together(when, at, add_seed):
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


def test_seed_has_the_dtype_that_its_slot_sees(make_garden):
    """The host computes in double in the first layer, and in half precision in the one with the slot."""
    model = Net(
        lambda net, inputs: net.second(net.first(inputs.double()).to(torch.bfloat16)).float(),
        first=nn.Linear(4, 4).double(),
        second=nn.Linear(4, 4).to(torch.bfloat16),
    )
    graft(model, ["second"], example=INPUTS)
    garden = make_garden(model, WILD, optimizer=OptimizerConfig(implementation="plain"))
    garden.apply(Action(Op.GERMINATE, "second", WILD.id, speed=0), 0)
    garden.open_step()
    garden.apply(Action(Op.ADVANCE, "second"), 0)
    assert {parameter.dtype for parameter in garden.slots["second"].parameters()} == {torch.bfloat16}
    assert model(INPUTS).isfinite().all()
