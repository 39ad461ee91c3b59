"""Grafting refuses models and places that cannot have a slot, says why, and leaves the model as it was."""

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import graft, is_grafted, slots_of
from esper_core.leyline import GraftError, SlotPlace
from tests.support.core_worlds import Net

ROWS, TOKENS = torch.zeros(3, 4), torch.zeros(2, 3, 4)


def linear(outputs: int = 4) -> nn.Module:
    return nn.Linear(4, outputs)


def host(part: nn.Module) -> nn.Module:
    """A first layer, the part under test, and a last layer."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        hidden = net.first(inputs)
        net.odd(hidden)
        return net.last(hidden)

    return Net(compute, first=linear(), odd=part, last=linear(2))


def odd(wrap: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: host(Net(lambda net, hidden: wrap(hidden)))


def shared(times: int = 3) -> nn.Module:
    """Calls one block several times."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        for _ in range(times):
            inputs = net.block(inputs)
        return net.last(inputs)

    return Net(compute, block=nn.Sequential(linear(), nn.Tanh()), last=linear(2))


def two_modes() -> nn.Module:
    """Calls one part only in training and another only in evaluation."""
    parts = {name: linear() for name in ("work", "rest", "last")}
    return Net(lambda net, inputs: net.last((net.work if net.training else net.rest)(inputs)), **parts)


def attending() -> nn.Module:
    attention, norm = nn.MultiheadAttention(4, 2, batch_first=True), nn.LayerNorm(4)
    return Net(lambda net, x: net.norm(x + net.attention(x, x, x)[0]), attention=attention, norm=norm)


def time_first() -> nn.Module:
    """Works on (T, N, D) inside."""
    return Net(lambda net, inputs: net.mix(inputs.transpose(0, 1)).mean(0), mix=linear())


def channels_last() -> nn.Module:
    """Normalises (N, H, W, C), as some vision models do."""
    return Net(lambda net, x: net.norm(net.conv(x).permute(0, 2, 3, 1)), conv=nn.Conv2d(1, 6, 1), norm=nn.LayerNorm(6))


def packing() -> nn.Module:
    """An encoder with a padding mask, which packs its batches in evaluation."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        padding = torch.zeros(inputs.shape[:2], dtype=torch.bool)
        padding[0, -1] = True
        return net.encoder(inputs, src_key_padding_mask=padding)

    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return Net(compute, encoder=nn.TransformerEncoder(layer, 2))


def named_esper() -> nn.Module:
    return nn.Sequential(OrderedDict(_esper=linear(), last=linear()))


class Lists(nn.Module):
    """Has modules that are never called, and no forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.heads = nn.ModuleDict({"one": nn.Linear(4, 2)})
        self.alias = self.layers[1]


def layers(*more: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), *more)


def refusal(model: nn.Module, slots: Any, example: Any = None) -> str:
    """The message of the refusal. The model must be as it was."""
    kinds, was_grafted = [type(module) for module in model.modules()], is_grafted(model)
    hooks = [len(getattr(module, "_forward_hooks", ())) for module in model.modules()]
    with pytest.raises(GraftError) as caught:
        graft(model, slots, example=example)
    assert [type(module) for module in model.modules()] == kinds
    assert [len(getattr(module, "_forward_hooks", ())) for module in model.modules()] == hooks
    assert is_grafted(model) is was_grafted
    return str(caught.value).partition("\n  Modules near it")[0]


def test_refused_module_is_reported_with_modules_near_it_that_fit():
    model = nn.Sequential(linear(), Net(lambda net, x: x.repeat(1 + net.training, 1)), nn.Tanh(), linear())
    with pytest.raises(GraftError, match=r"(?s)Modules near it that can have a slot: 0, 3\n.* slot: 3, 0"):
        graft(model, ["1", "2"], example=torch.zeros(3, 4))


MIX = {"slot": SlotPlace("mix", "tokens")}
ON_1, ON_Y = {"odd": SlotPlace("odd", output=1)}, {"odd": SlotPlace("odd", output="y")}
OBSERVED: list[tuple[Callable[[], nn.Module], Any, Tensor, str]] = [
    (
        odd(lambda x: (x, None, x)), ["odd"], ROWS,
        'module "odd" returns a tuple with 2 tensors of one shape\n  odd\n  It returns 0: torch.float32, '
        'shape (3, 4), 1: None, 2: torch.float32, shape (3, 4)\n  Name one:  SlotPlace("odd", output=0), or  '
        "output: 0  below the slot in a file",
    ),
    (odd(lambda x: (x.sum(), 3)), ["odd"], ROWS, "returns a tuple without a row of numbers per example\n"),
    (odd(lambda x: {}), ["odd"], ROWS, "without a row of numbers per example\n  odd\n  It returns nothing"),
    (odd(lambda x: {"x": x}), ON_Y, ROWS, "returns a dict without a tensor 'y'\n  odd\n  It returns 'x': tor"),
    (odd(lambda x: (x, 3)), ON_1, ROWS, "returns a tuple without a tensor 1\n  odd\n  It returns 0: torch"),
    (odd(lambda x: x), ON_1, ROWS, "returns one tensor, and no output 1\n  odd\n  Omit output."),
    (odd(lambda x: (x, x[0])), ON_1, ROWS, "shape (4,) for a batch of 3"),
    (odd(lambda x: None), ["odd"], ROWS, "returns a NoneType, not one tensor"),
    (odd(lambda x: SimpleNamespace(x=x)), ["odd"], ROWS, "returns a SimpleNamespace, not one tensor"),
    (odd(lambda x: x.long()), ["odd"], ROWS, "first. Received: torch.int64, shape (3, 4) for a batch of 3"),
    (odd(lambda x: x.sum()), ["odd"], ROWS, "first. Received: torch.float32, shape () for a batch of 3"),
    (odd(lambda x: x[:2]), ["odd"], ROWS, "first. Received: torch.float32, shape (2, 4) for a batch of 3"),
    (
        odd(lambda x: torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged)), ["odd"], ROWS,
        "returns a nested tensor",
    ),
    (time_first, MIX, torch.zeros(3, 5, 4), 'module "mix" does not return one row of numbers per example'),
    (time_first, MIX, torch.zeros(3, 3, 4), 'module "mix" does not return one row of numbers per example'),
    (shared, ["block"], ROWS, 'module "block" is called 3 times in one pass'),
    (shared, ["block.0"], ROWS, 'module "block.0" is called 3 times in one pass'),
    (channels_last, ["norm"], torch.zeros(2, 1, 4, 4), "shape (2, 4, 4, 6). An image is (N, C, H, W), and here"),
    (two_modes, ["work"], ROWS, 'E317 slot "work": module "work" is not called in evaluation\n  work'),
    (two_modes, ["rest"], ROWS, 'E317 slot "rest": module "rest" is not called in training\n  rest'),
    (
        lambda: nn.Sequential(Net(lambda net, x: x[:, : 3 + net.training])), ["0"], ROWS,
        "returns another shape in training than in evaluation",
    ),
    (attending, ["attention.out_proj"], TOKENS, "is not called in training"),
    (
        lambda: nn.Sequential(Net(lambda net, x: x.add_(1.0)), linear()), ["1"], ROWS,
        "E318 the model modifies its input",
    ),
    (
        lambda: nn.Sequential(Net(lambda net, x: x.nan_to_num_()), linear()), ["1"], torch.full((3, 4), torch.nan),
        "E318 the model modifies its input",
    ),
    (layers(nn.LazyBatchNorm1d()), ["0"], ROWS, "E318 the model has parameters without a shape: 2.weight, 2.bias, 2."),
    (layers(), ["0"], ("a", 1), "E318 the example has no tensor with a batch of inputs"),
    (layers(), ["0"], torch.tensor(1.0), "E318 the example has no tensor with a batch of inputs"),
    (Lists, ["layers.0"], ROWS, "E318 Lists has no forward to observe slots in\n  Graft its parts, each with an "),
]  # fmt: skip


@pytest.mark.parametrize(("build", "slots", "example", "message"), OBSERVED)
def test_model_or_place_that_a_dry_run_shows_to_be_unfit_is_refused(build, slots, example, message):
    assert message in refusal(build(), slots, example)


NAMED: list[tuple[Callable[[], nn.Module], Any, str]] = [
    (Lists, ["layers"], 'E317 "layers" is a ModuleList, which is never called\n  It contains: layers.0, layers.1'),
    (Lists, ["heads"], 'E317 "heads" is a ModuleDict, which is never called\n  It contains: heads.one'),
    (Lists, ["alias"], 'E313 no module of Lists is called "alias"'),
    (Lists, ["layer.0"], 'E313 no module of Lists is called "layer.0"\n  Did you mean "layers.0"?'),
    (Lists, {"all": ""}, 'E313 no module of Lists is called ""'),
    (Lists, ["layers.*", "layers.1"], 'E316 "layers.1" would have two slots, "layers.1" and "layers.1"'),
    (Lists, {"a": "layers.*", "b": "*.1"}, 'E316 "layers.1" would have two slots, "a:layers.1" and "b"'),
    (Lists, "layers.0", "E312 slots must be a list of names or a mapping"),
    (Lists, {}, "E312 the list of slots is empty"),
    (Lists, [None], "E312 a slot needs a name and a pattern"),
    (Lists, {"a": None}, "E312 a slot needs a name and a pattern"),
    (Lists, {"": "layers.0"}, "E312 a slot needs a name and a pattern"),
    (layers(*(nn.Identity() for _ in range(300))), ["*"], 'E314 "*" matches 302 modules, more than 256'),
    (named_esper, ["last"], 'E318 this model already has an attribute "_esper"'),
    (lambda: torch.compile(layers()(), backend="eager"), ["_orig_mod.0"], "E318 this model is already compiled"),
    (lambda: graft(layers()(), ["0"]), ["1"], "E310 this model already has slots"),
    (lambda: nn.Sequential(graft(layers()(), ["0"])), ["0"], "E310 this model already has slots"),
]


@pytest.mark.parametrize(("build", "slots", "message"), NAMED)
def test_unfit_model_or_wrong_name_is_refused_without_an_example(build, slots, message):
    assert refusal(build(), slots).startswith(message)


def test_all_wrong_names_are_reported_at_once():
    with pytest.raises(GraftError) as caught:
        graft(Lists(), ["layer.0", "hed"])
    assert [problem.code for problem in caught.value.problems] == ["E313", "E313"]


def test_a_plan_for_another_model_is_one_problem_that_names_the_first_few():
    assert refusal(Lists(), [f"encoder.{layer}" for layer in range(12)]) == (
        'E313 Lists lacks the modules of 12 slots: "encoder.0", "encoder.1", "encoder.2" and 9 more\n'
        "  Known: heads, heads.one, layers, layers.0, layers.1\n"
        "  A plan of slots is for the model it was made with."
    )


def test_only_a_module_can_be_grafted():
    model: Any = nn.Linear
    with pytest.raises(GraftError, match=r"E318 only a torch\.nn\.Module can be grafted\. Received: type"):
        graft(model, ["0"])


def test_slots_of_a_plain_model_says_what_to_do():
    with pytest.raises(GraftError, match=r"E311 .*\n.*esper_core\.graft"):
        slots_of(nn.Linear(1, 1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("at", ["encoder.layers.0", "encoder.layers.1.linear2"])
def test_slot_inside_an_encoder_that_packs_its_batches_is_refused(at):
    example = torch.randn(3, 5, 4)
    message = refusal(packing(), [at], example)
    assert "returns a nested tensor" in message
    assert message.endswith("build it with enable_nested_tensor=False.")
    assert is_grafted(graft(packing(), ["encoder"], example=example))
    model = packing()
    model.encoder.use_nested_tensor = False
    assert is_grafted(graft(model, [at], example=example))


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("at", ["odd", "odd.0.0"])
def test_script_module_and_its_parts_are_refused(at):
    inner = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    hint = "Graft the module that it was scripted from; the grafted one can be traced or exported."
    for scripted in (torch.jit.script(inner), torch.jit.trace(inner, ROWS)):
        message = refusal(host(scripted), [at], ROWS)
        assert message == f'E315 "{at}" is a script module and takes no slot\n  {hint}'
        assert is_grafted(graft(host(scripted), ["last"], example=ROWS))


def test_a_slot_behind_a_compiled_part_would_be_lost_in_copies():
    model = nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager"))
    assert refusal(model, ["0"], ROWS).endswith('copies of it lose its slot\n  Name "0._orig_mod".')
    assert is_grafted(graft(model, ["0._orig_mod"]))


def test_example_that_the_model_cannot_take_is_reported_with_its_shape_and_cause():
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(GraftError, match=r"E318 .* RuntimeError on the example: .*\n.*\n.*shape \(2, 3\)") as caught:
        graft(model, ["0"], example=torch.zeros(2, 3))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not is_grafted(model)


class Chain(nn.ModuleList):
    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self:
            hidden = layer(hidden)
        return hidden


@pytest.mark.parametrize(
    ("build", "slots", "example"),
    [
        pytest.param(
            attending, {"slot": SlotPlace("norm", "tokens")}, torch.zeros(4, 4, 4), id="batch as long as rows"
        ),
        pytest.param(shared, ["last"], ROWS, id="module behind a shared one"),
        pytest.param(lambda: shared(times=1), ["block"], ROWS, id="shared module that is called once"),
        pytest.param(lambda: nn.Sequential(Chain([nn.Linear(4, 4)])), ["0"], ROWS, id="list with a forward"),
    ],
)
def test_place_next_to_a_refused_one_is_accepted(build, slots, example):
    (slot,) = slots_of(graft(build(), slots, example=example))
    assert slot.site is not None


def test_a_model_that_changes_a_parameter_in_each_pass_is_refused():
    """Branches and validation would move it, too; a buffer is put back."""

    class Codebook(nn.Linear):
        def forward(self, inputs):
            self.codes.data = 0.9 * self.codes.data
            return super().forward(inputs)

    model = nn.Sequential(Codebook(4, 4))
    model[0].codes = nn.Parameter(torch.ones(3), requires_grad=False)
    assert 'a pass of the model changes its parameter "0.codes"' in refusal(model, ["0"], ROWS)
    del model[0].codes
    model[0].register_buffer("codes", torch.ones(3))
    assert is_grafted(graft(model, ["0"], example=ROWS))
