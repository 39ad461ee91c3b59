"""Grafted models compute what their hosts do, bit for bit while slots are empty, whatever their class and outputs."""

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from esper_core.growth import OptimizerKeeper, graft, is_grafted, slots_of
from esper_core.leyline import Action, GraftError, Op, SlotPlace
from esper_core.settings import OptimizerConfig
from tests.support.core_worlds import WILD, Net, add_seed, make_garden, same
from tests.support.structured_outputs import EXAMPLE, KINDS, PACK, TAKE, grown


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


INPUTS = draw(3, 4)


def conv() -> nn.Module:
    def layers(channels: int, *more: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), *more)

    stem, body = layers(3, nn.ReLU(inplace=True)), layers(4, nn.ReLU(), nn.Dropout(0.3))
    return Net(lambda net, x: net.head(net.body(net.stem(x)).mean((2, 3))), stem=stem, body=body, head=nn.Linear(4, 2))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    return Net(lambda net, x: net.head(net.encoder(x)), encoder=nn.TransformerEncoder(layer, 2), head=nn.Linear(8, 2))


def skipping() -> nn.Module:
    """Return a small U-net, which adds in place to a module's output."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        down = net.down(inputs)
        out = net.deep(torch.relu(down))
        out += down
        up = net.up(out)
        up += inputs
        return up.relu_()

    down, deep = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    return Net(compute, down=down, deep=deep, up=nn.ConvTranspose2d(4, 3, 2, stride=2))


HOSTS = {
    "conv": (conv, {"stem": "stem", "norm": "body.1", "body": "body"}, draw(6, 3, 8, 8)),
    "encoder": (encoder, {"part": "encoder.layers.0.linear1", "whole": "encoder.layers.1"}, draw(6, 5, 8)),
    "u-net": (skipping, {"down": "down", "deep": "deep", "up": "up"}, draw(6, 3, 8, 8)),
}


def trained(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Train twenty steps with momentum; return all outputs, the last gradients, and the final state."""
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    outputs = []
    for _ in range(20):
        optimizer.zero_grad()
        outputs.append(model(inputs))
        outputs[-1].square().mean().backward()
        optimizer.step()
    model.eval()
    return [*outputs, model(inputs), *(p.grad for p in model.parameters()), *model.state_dict().values()]


@pytest.mark.parametrize("name", HOSTS)
def test_model_with_empty_slots_trains_bit_for_bit_as_its_twin(name):
    build, slots, inputs = HOSTS[name]
    torch.manual_seed(1)
    twin = build()
    model = graft(copy.deepcopy(twin), slots, example=inputs)
    expected, actual = trained(twin, inputs), trained(model, inputs)
    assert list(model.state_dict()) == list(twin.state_dict())
    assert same(expected, actual)


def test_gradients_are_right_where_the_host_writes_into_a_slots_output():
    torch.manual_seed(1)
    inputs, plain = draw(4, 3, 8, 8), skipping()
    model = graft(copy.deepcopy(plain), ["down", "deep", "up"], example=inputs)
    seeds = {slot.name: add_seed(model, slot.name, alpha=0.4) for slot in slots_of(model)}
    by_hand = {name: copy.deepcopy(seed.block) for name, seed in seeds.items()}

    def grown(name: str, hidden: Tensor) -> Tensor:
        return 0.6 * hidden + 0.4 * by_hand[name](hidden)

    down = grown("down", plain.down(inputs))
    out = grown("deep", plain.deep(torch.relu(down))) + down
    expected = torch.relu(grown("up", plain.up(out)) + inputs)
    actual = model(inputs)
    torch.testing.assert_close(actual, expected)
    expected.square().sum().backward()
    actual.square().sum().backward()
    grafted = dict(model.named_parameters())
    pairs = [(parameter, grafted[name]) for name, parameter in plain.named_parameters()]
    for name, seed in seeds.items():
        pairs += zip(by_hand[name].parameters(), seed.block.parameters(), strict=True)
    for parameter, grafted_parameter in pairs:
        torch.testing.assert_close(grafted_parameter.grad, parameter.grad)


@pytest.mark.parametrize(
    "at",
    ["encoder.layers.0.linear1", "encoder.layers.0.norm1", "encoder.layers.0.dropout1", "encoder.layers.0", "encoder"],
)
def test_seed_in_or_behind_a_transformer_layer_acts_in_its_fast_path_too(at):
    inputs = draw(4, 5, 8)
    model = graft(encoder(), {"slot": SlotPlace(at, "tokens")}, example=inputs).eval()
    with torch.no_grad():
        before = model(inputs)
        add_seed(model, "slot")
        quick = model(inputs)
    assert not torch.allclose(quick, before)
    torch.testing.assert_close(quick, model(inputs).detach())


def tied() -> nn.Module:
    embed, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = embed.weight
    return Net(lambda net, x: net.head(torch.relu(net.mix(net.embed(x)))), embed=embed, mix=nn.Linear(4, 4), head=head)


@pytest.mark.parametrize("at", ["embed", "head"])
def test_tied_weights_stay_tied_and_have_one_owner(at):
    torch.manual_seed(1)
    inputs = torch.arange(12).reshape(3, 4) % 7
    plain = tied()
    outcomes = []
    for model in (plain, graft(copy.deepcopy(plain), {"slot": SlotPlace(at, "tokens")}, example=inputs)):
        keeper = OptimizerKeeper(model.parameters(), host_settings=OptimizerConfig(), seed_settings=OptimizerConfig())
        for _ in range(5):
            keeper.zero_grad()
            model(inputs).square().mean().backward()
            keeper.step([])
        assert keeper.misowned(model) == []
        assert model.head.weight is model.embed.weight
        outcomes.append(list(model.state_dict().values()))
    assert same(*outcomes)


def test_fossils_act_in_order_and_their_keys_stay():
    model = graft(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), {"slot": SlotPlace("0", stack=3)}, example=INPUTS)
    keys = list(model.state_dict())
    blocks = []
    for number in range(3):
        blocks.append(add_seed(model, "slot", fossil=True, seed=number).block)
        keys += [f"0._esper.seeds.{number}.block.mix.{name}" for name in ("weight", "bias")]
        assert [key for key in model.state_dict() if key in keys] == keys
    first, second, third = blocks
    host = nn.functional.linear(INPUTS, model[0].weight, model[0].bias)
    outputs, twin = model(INPUTS), copy.deepcopy(model)
    assert torch.equal(outputs, third(second(first(host))).relu())
    assert not torch.equal(outputs, first(second(third(host))).relu())
    assert list(twin.state_dict()) == list(model.state_dict())
    assert torch.equal(twin(INPUTS), outputs)
    assert not {id(parameter) for parameter in twin.parameters()} & {id(parameter) for parameter in model.parameters()}


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


class Marking(type):
    """A metaclass, which the class of a grafted model keeps."""


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


def net(kind: type[nn.Module] = Plain) -> nn.Module:
    torch.manual_seed(0)
    return kind()


@pytest.mark.parametrize("kind", [Plain, Derived, Marked, Forwarding])
def test_grafted_model_of_any_class_keeps_its_type_repr_and_outputs(kind):
    expected = net(kind)(INPUTS)
    model = graft(net(kind), ["part", "part.0"], example=INPUTS)
    assert isinstance(model, kind)
    assert type(type(model)) is type(kind)
    for name in ("__name__", "__qualname__", "__module__"):
        assert getattr(type(model), name) == getattr(kind, name)
    assert inspect.getsource(type(model)) == inspect.getsource(kind)
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


def test_class_that_demands_something_of_its_subclasses_is_refused_unless_wrapped_in_a_module():
    wrapped = Net(lambda net, inputs: net.module(inputs), module=net(Tagged))
    for model, at in ((net(Tagged), "part"), (wrapped, "module.part.0")):
        with pytest.raises(GraftError, match=r"E318 the class Tagged cannot be subclassed: .*'tag'"):
            graft(model, [at], example=INPUTS)
    assert type(wrapped) is Net
    assert type(wrapped.module.part) is nn.Sequential
    assert is_grafted(graft(wrapped, ["module"], example=INPUTS))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", ["part", "part.0", "last"])
def test_parametrized_weight_and_slot_work_together(when, at):
    model, twin = net(), net()
    if when == "after":
        graft(model, [at], example=INPUTS)
    for host in (model, twin):
        parametrizations.weight_norm(host.part[0])
        parametrizations.weight_norm(host.last)
    if when == "before":
        graft(model, [at], example=INPUTS)
    assert torch.equal(model(INPUTS), twin(INPUTS))
    add_seed(model, at)
    grown = model(INPUTS)
    assert not torch.allclose(grown, twin(INPUTS))
    assert torch.equal(copy.deepcopy(model)(INPUTS), grown)


def test_seed_has_the_dtype_that_its_slot_sees():
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


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_act_on_the_part_and_the_rest_passes_through(kind):
    model = grown(kind)
    mixed, changed = model.part.mix(EXAMPLE), model.part(EXAMPLE)
    slot, plain = slots_of(model).named("here"), PACK[kind](mixed)
    assert type(changed) is type(plain)
    assert torch.equal(model(EXAMPLE), model.head(TAKE[kind](changed)))
    assert torch.equal(slot.part.of(changed), slot.seeds[0].block(mixed))
    assert str(slot.part.replaced(changed, mixed)) == str(plain)


@pytest.mark.parametrize("length", [6, 8], ids=["tokens", "as many tokens as features"])
def test_tokens_and_sequences_are_distinguished_by_the_layer_that_computes_them(length):
    """In a layer of a transformer, a recurrent and a convolutional network."""

    def compute(net: Any, ids: Tensor) -> Tensor:
        hidden = net.drop(net.words(ids))
        hidden = hidden + net.attention(hidden, hidden, hidden)[0]
        hidden = net.norm(net.gru(hidden)[0])
        return net.pool(net.conv(hidden.transpose(1, 2)))

    of_tokens = {
        "words": nn.Embedding(9, 8),
        "drop": nn.Dropout(0.0),
        "attention": nn.MultiheadAttention(8, 2, batch_first=True),
        "gru": nn.GRU(8, 5, batch_first=True, bidirectional=True),
        "norm": nn.LayerNorm(10),
    }
    of_sequence = {"conv": nn.Sequential(nn.Conv1d(10, 7, 1), nn.ReLU()), "pool": nn.AdaptiveAvgPool1d(8)}
    host = Net(compute, **of_tokens, **of_sequence)
    places = {name: SlotPlace(name, output=0 if name == "attention" else None) for name in of_tokens | of_sequence}
    model = graft(host, places, example=torch.randint(9, (4, length)))
    kinds = dict.fromkeys(of_tokens, "tokens") | dict.fromkeys(of_sequence, "sequence")
    assert {slot.name: slot.site.kind for slot in slots_of(model)} == kinds
