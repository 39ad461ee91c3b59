"""Where adapters go: what a plan names, what it costs, and what it refuses."""

import copy
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from esper_core import EsperError
from esper_core.growth import Host
from esper_grow import Gardener, place_adapters, read_plan
from esper_grow.probes.plans import AdapterPlace, better_order, gain_by_parameter, gain_of
from tests.support.core_worlds import Net, per_example

HELPFUL = "layers.2"
PLACES = ["layers.0", "layers.1", "layers.2"]


class Residual(nn.Module):
    """Layers of which each adds to what it gets, and a head; ``acting(inputs)``: how many of them act on a batch."""

    def __init__(self, layers: int = 3, acting: Callable[[torch.Tensor], int | None] = lambda inputs: None) -> None:
        super().__init__()
        self.layers, self.acting = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers)), acting
        self.head, self.pre_head = nn.Linear(8, 2), nn.LayerNorm(8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: self.acting(inputs)]:
            inputs = inputs + torch.tanh(layer(inputs))
        return self.head(inputs)


@pytest.fixture(scope="module")
def world() -> tuple[nn.Module, list[Any], list[Any]]:
    """A frozen network, and data of the same network with a change of rank 1 in one layer."""
    return changed(3, [HELPFUL], 2)


def changed(layers: int, names: list[str], size: float) -> tuple[nn.Module, list[Any], list[Any]]:
    """Return a world with changes in layers of these names."""
    torch.manual_seed(0)
    model = Residual(layers).requires_grad_(requires_grad=False)
    with torch.no_grad():
        model.head.weight.mul_(5)
        other, inputs = copy.deepcopy(model), torch.randn(900, 8)
        for name in names:
            other.get_submodule(name).weight.add_(size * torch.outer(torch.randn(8), torch.randn(8)))
        targets = other(inputs).argmax(1)
    batches = list(zip(inputs.split(50), targets.split(50), strict=True))
    return model, batches[:12], batches[12:]


def placed(world: Any, loss: Any = per_example, **options: Any) -> Any:
    model, train, validation = world
    chosen = {"rank": 1, "steps": 120, "optimizer": partial(AdamW, lr=2e-2), **options}
    return place_adapters(model, loss, train, validation, **chosen)


@pytest.fixture(scope="module")
def plan(world: Any) -> Any:
    return placed(world, parameters=20)


def test_losses_of_examples_are_not_mixed_with_those_of_whole_batches(world) -> None:
    def of_the_first_twenty(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs)[:20], targets[:20])

    model, _, ((inputs, targets), *_) = world
    mixed = [(inputs[:20], targets[:20]), (inputs[20:53], targets[20:53])] * 8
    with pytest.raises(EsperError, match=r"E342 .*for a whole batch, and for each example of another one"):
        placed((model, [(inputs[:20], targets[:20])], mixed), of_the_first_twenty, steps=3)


def test_the_layer_that_lacks_something_comes_first_and_the_model_stays_as_it_is(world, plan) -> None:
    before = {name: tensor.clone() for name, tensor in world[0].state_dict().items()}
    assert replace(placed(world, parameters=20), seconds=plan.seconds) == plan, "the same again"
    assert all(torch.equal(tensor, before[name]) for name, tensor in world[0].state_dict().items())
    assert (plan.verdict, plan.slots, plan.parameters) == ("pays", [HELPFUL], 16)
    assert sorted(place.slot for place in plan.places) == PLACES
    assert plan.all_loss < plan.plan_loss < plan.host_loss


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (
            ["encoder.layer.{}.attention.output.dense", "encoder.layer.{}.output.dense", "encoder.layer.{}.query"],
            "0.attention.output.dense",
        ),
        (
            ["encoder.block.{}.layer.1.DenseReluDense.wo", "decoder.block.{}.layer.1.EncDecAttention.o"],
            "encoder.0.1.DenseReluDense.wo",
        ),
        (
            ["model.decoder.layers.{}.encoder_attn.out_proj", "model.encoder.layers.{}.self_attn.out_proj"],
            "decoder.0.encoder_attn.out_proj",
        ),
        (["a_{}_layer_with_a_long_name_of_one_part_k", "b_{}"], "a_0_layer_with_a_long_name_of_one_part_k"),
    ],
)
def test_a_table_tells_all_rows_apart_in_80_columns(plan, names, shown) -> None:
    layers = [name.format(block) for block in (0, 11) for name in names]
    numbers = {"parameters": 12_288, "alone": 0.1, "error": 0.01, "beside": 0.1, "at_least": 0.1, "price": 0.1}
    places = [AdapterPlace(layer, 2, order=rank, **numbers) for rank, layer in enumerate(layers, 1)]
    lines = str(replace(plan, places=tuple(places), layers=tuple(layers))).splitlines()
    rows = [line for line in lines if re.match(r"\d+\. ", line)]
    assert max(map(len, lines)) <= 80
    assert len({row.split()[1] for row in rows}) == len(layers)
    assert any(row.split()[1] == shown for row in rows)


@pytest.mark.parametrize(
    ("limit", "brings", "order"), [(9, 0.3, gain_by_parameter), (9, 0.1, gain_of), (None, 0.3, gain_of)]
)
def test_a_limit_is_filled_in_the_order_that_loses_less(limit, brings, order) -> None:
    """A large layer, or three small ones, each of which brings less."""
    places = [AdapterPlace("large", 1, 9, 0.5, 0.0), *(AdapterPlace(f"small {n}", 1, 3, 0.4, 0.0) for n in range(3))]
    true = {place.key: 0.5 if place.slot == "large" else brings for place in places}
    assert better_order(places, limit, lambda acting: torch.tensor([1.0 - sum(map(true.__getitem__, acting))])) is order


def test_a_plan_is_told_in_eighty_columns_saved_read_grown_and_given_to_peft(world, plan, tmp_path: Path) -> None:
    named_long = replace(plan, model="M" * 200, places=tuple(replace(place, slot="a" * 200) for place in plan.places))
    assert max(map(len, f"{plan}\n{named_long}".splitlines())) <= 80
    assert f"1. {HELPFUL}" in str(plan)
    plan.save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    config = plan.to_peft()
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (1, 1.0, [HELPFUL])
    assert "modules_to_save" not in config
    assert grown(copy.deepcopy(world[0]), world, plan) == list(world[0].state_dict())


@pytest.mark.parametrize(("form", "power"), [({"alpha": 8}, 1.0), ({"rslora": True}, 0.5)])
def test_a_layer_that_lacks_more_gets_more_blocks_of_the_rank(form, power, tmp_path: Path) -> None:
    lacking = changed(3, [HELPFUL] * 3, 2)
    placed(lacking, rank=4, block=1, parameters=64, **form).save(tmp_path / "plan.json")
    plan = read_plan(tmp_path / "plan.json")
    ranks = Counter(place.slot for place in plan.places if place.order)
    assert ranks.most_common(1)[0][0] == plan.slots[0] == HELPFUL
    assert ranks[HELPFUL] > 1
    config, blueprints = plan.to_peft(), plan.slots_and_blueprints()["blueprints"]
    for layer, rank in ranks.items():
        pattern = re.escape(layer)
        alpha = config["alpha_pattern"].get(pattern, config["lora_alpha"])
        assert config["rank_pattern"].get(pattern, config["r"]) == rank
        assert alpha == pytest.approx(2 * rank**power), "each has the scale of the whole rank"
        assert blueprints[layer].name.startswith(f"lora(rank={rank},alpha={alpha:.3}"[:-1])
    assert ", ".join(f"{layer} {rank}" for layer, rank in ranks.items()) in str(plan).replace("\n", " ")
    assert grown(lacking[0], lacking, plan) == list(lacking[0].state_dict())
    with pytest.raises(EsperError, match="E337 PEFT does not take"):
        replace(plan, peft=None).to_peft()
    for changes, message in (
        ({"blueprints": ()}, "more blocks than there are blueprints"),
        ({"parameters": plan.parameters + 1}, "a changed plan is not measured"),
        ({"peft": {**plan.peft, "r": 2}}, "a changed plan is not measured"),
    ):
        replace(plan, **changes).save(tmp_path / "plan.json")
        with pytest.raises(EsperError, match=rf"E332 (?s:.)*{message}"):
            read_plan(tmp_path / "plan.json")


def test_a_plan_is_refused_by_a_model_whose_layers_have_other_shapes(world, plan, tmp_path: Path) -> None:
    layers = nn.Sequential(*(nn.Linear(16, 16) for _ in PLACES))
    model = Net(lambda net, inputs: net.layers(inputs.repeat(1, 2)), layers=layers)
    plan.save(tmp_path / "plan.json")
    place = f"{HELPFUL} maps 16 to 16 features, and 8 to 8 in the plan"
    with pytest.raises(EsperError, match=rf"E334 the plan does not fit this Net: {place}\n.*place_adapters"):
        grown(model, world, read_plan(tmp_path / "plan.json"))
    assert not Host(model).is_grafted
    grown(model, world, replace(plan, places=tuple(replace(place, features=None) for place in plan.places)))


def grown(model: nn.Module, world: Any, plan: Any) -> list[str]:
    """Return the names of what a model has while a Gardener grows a plan in it."""
    arguments = plan.slots_and_blueprints()
    with Gardener(model, partial(AdamW, lr=1e-2), loss=per_example, validation=world[2], **arguments):
        return list(model.state_dict())


def test_nothing_pays_where_the_data_are_the_models_own(world) -> None:
    model, train, validation = world
    with torch.no_grad():
        answers = [[(inputs, model(inputs).argmax(1)) for inputs, _ in batches] for batches in (train, validation)]
    nothing = placed((model, *answers), optimizer=partial(AdamW, lr=1e-4))
    assert (nothing.verdict, nothing.slots) == ("nothing pays", [])
    assert "as planned" not in str(nothing)
    with pytest.raises(EsperError, match=r"E351.*Nothing pays"):
        nothing.to_peft()


def of_mamba(model: Any) -> None:
    model.layers[2] = nn.Sequential(OrderedDict(out_proj=model.layers[2]))
    model.config = SimpleNamespace(model_type="mamba")


def tie_the_head(model: Any) -> None:
    model.more = nn.Linear(*reversed(model.head.weight.shape)).requires_grad_(requires_grad=False)
    model.more.weight = model.head.requires_grad_().weight


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (of_mamba, {"where": "out_proj"}, r"PEFT refuses LoRA beside layers\.2\.out_proj\n  Leave"),
        (id, {"blueprint": "bottleneck_adapter(width=4)"}, "PEFT has no adapter that computes .*\n  Place LoRA"),
        (nn.Module.requires_grad_, {"price": 1e-9, "steps": 40}, "PEFT freezes all weights of .*Freeze all but a head"),
        (lambda model: model.layers[0].bias.requires_grad_(), {}, r"PEFT freezes layers\.0\.bias, which trained"),
        (lambda model: model.head.requires_grad_(), {}, 'PEFT takes pre_head for the trained "head", .*\n  Rename'),
        (tie_the_head, {}, "PEFT trains a copy of .*, and weights in it are tied\n  Untie"),
        (lambda model: setattr(model, "again", model.layers[2]), {}, r"PEFT adapts .* only one of layers\.2\n  Give"),
    ],
)
def test_a_plan_that_peft_cannot_train_is_for_a_gardener_alone(change, options, message, world, tmp_path) -> None:
    model = copy.deepcopy(world[0])
    change(model)
    replace(placed((model, *world[1:]), **options), verdict="pays").save(tmp_path / "plan.json")
    plan = read_plan(tmp_path / "plan.json")
    with pytest.raises(EsperError, match=f"(?s)E337 {message}.*, or grow the plan with a Gardener") as refused:
        plan.to_peft()
    # Who placed something else than LoRA knows that it is not PEFT's.
    assert (plan.remarks[0] == f"{refused.value.problems[0].message}.") == (plan.peft is not None)


def test_a_gain_that_few_examples_cannot_show_is_undecided_and_its_places_are_ranked(world) -> None:
    plan = placed(world, steps=30, examples=100, optimizer=partial(AdamW, lr=1e-3), price=1e-6)
    assert plan.all_loss < plan.host_loss
    assert plan.verdict == "undecided"
    assert plan.slots, "the best so far"
    assert "More than 30 steps or 100 validation examples" in plan.reason
    with pytest.raises(EsperError, match=r"(?s)E351.*decides nothing yet.*; plan\.slots has the best so far"):
        plan.to_peft()


def test_a_price_that_no_single_place_exceeds_is_named_where_all_of_them_bring_something() -> None:
    names = [f"layers.{number}" for number in range(12)]
    plan = placed(changed(12, names, 0.2), steps=40, optimizer=partial(AdamW, lr=3e-4))
    assert (plan.verdict, plan.slots) == ("undecided", [])
    assert re.search(r"than its price\. The best of them brings about \S+, and its price is \S+ \(price=", plan.reason)
    with pytest.raises(EsperError, match=r"; plan\.places are ranked by what they bring alone"):
        plan.slots_and_blueprints()


def test_too_small_a_budget_ranks_and_says_how_long_it_takes(world) -> None:
    short = placed(world, budget=1e-6)
    assert (short.verdict, short.steps, len(short.places)) == ("undecided", 3, 3)
    assert "It needs about" in short.reason
    with pytest.raises(EsperError, match=r"E351 .*decides nothing yet: Undecided"):
        replace(short, places=tuple(replace(place, order=1) for place in short.places)).to_peft()
    assert placed(world, steps=1).reason.endswith("training for 1 step is too short. Pass steps=30 at least.")


def test_places_are_not_looked_at_again_when_the_budget_is_over(world, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper_grow.probes.budget.BudgetClock.left", property(lambda _: -1.0))
    interrupted = placed(world)
    assert len(interrupted.slots) == 1
    assert "The budget was over" in interrupted.remarks[0]


def test_prices_and_limits_leave_places_out_and_the_reason_says_so(world) -> None:
    expensive, small = placed(world, price=1.0), placed(world, parameters=15)
    assert (expensive.slots, small.slots) == ([], [])
    assert "and their price is 48 (price=… sets it)" in expensive.reason
    assert "the smallest adapter has 16 parameters, and the plan may have 15" in small.reason
    assert len(placed(world, parameters=32).slots) == 2


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"blueprint": "gated_mlp"}, "E351"),
        ({"where": "q_proj"}, "E313"),
        ({"examples": 50}, "E353"),
        ({"budget": "soon"}, "E354"),
        ({"steps": 0}, r"E112.*received 0\n  place_adapters.steps"),
        ({"parameters": 0}, r"E112.*received 0\n  place_adapters.parameters"),
        ({"examples": -1}, r"E112.*received -1\n  place_adapters.examples"),
        ({"optimizer": partial(AdamW, lr=1e4), "steps": 40}, "E352 300 of 300 losses .* with adapters at all places"),
    ],
)
def test_what_cannot_be_placed_is_refused(options: Any, code: str, world) -> None:
    with pytest.raises(EsperError, match=code):
        placed(world, **options)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}', '{"places": [[1]]}'])
def test_a_file_that_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    with pytest.raises(EsperError, match="E332"):
        read_plan(tmp_path / "plan.json")


def test_a_layer_that_is_not_called_is_left_out_and_one_that_is_called_at_times_has_a_place(world) -> None:
    torch.manual_seed(0)
    model, (_, train, validation) = Residual(5, lambda inputs: 4 if inputs[0, 0] > 0 else 3), world
    model.requires_grad_(requires_grad=False)
    order = sorted(train, key=lambda batch: -float(batch[0][0, 0]))  # the first batch shows which layers are called
    plan = placed((model, order, validation))
    assert plan.layers == (*PLACES, "layers.3")
    assert plan.remarks[0] == 'Left out: slot "layers.4": module "layers.4" is not called in training.'


def test_frozen_statistics_are_fixed_and_the_plan_says_so(world) -> None:
    model = Net(lambda net, inputs: net.host(net.norm(inputs)), norm=nn.BatchNorm1d(8), host=copy.deepcopy(world[0]))
    model.requires_grad_(requires_grad=False)
    moving = placed((model, *world[1:]), steps=40)
    model.norm.eval()
    fixed = placed((model, *world[1:]), steps=40)
    assert moving.remarks[0].startswith("1 frozen BatchNorm layer keeps its statistics")
    assert replace(moving, seconds=0.0, remarks=moving.remarks[1:]) == replace(fixed, seconds=0.0)


def adapted(layer: nn.Module) -> nn.Module:
    parts = {"layer": layer, "down": nn.Linear(8, 1, bias=False), "up": nn.Linear(1, 8, bias=False)}
    return Net(lambda net, inputs: net.layer(inputs) + net.up(net.down(inputs)), **parts)


@pytest.mark.slow
def test_a_plan_costs_no_more_operations_than_a_fine_tuning_of_three_times_its_steps(world) -> None:
    torch.manual_seed(0)
    model, train = Residual(12), [(inputs[:35], targets[:35]) for inputs, targets in world[1]]
    model.layers.requires_grad_(requires_grad=False)  # its head trains
    with FlopCounterMode(display=False) as search:
        plan = placed((model, train, world[2]), steps=30)
    assert len(plan.slots) > 3, "more than it can look at all places"
    model.layers = nn.ModuleList(map(adapted, model.layers))
    with FlopCounterMode(display=False) as step:
        per_example(model, train[0]).mean().backward()
    assert search.get_total_flops() <= 3 * 30 * step.get_total_flops()


class Checkpointed(Residual):
    reentrant = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.reentrant and not self.training:
            return super().forward(inputs)
        return checkpoint(super().forward, inputs.clone().requires_grad_(), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_compiled_and_checkpointed_network_is_as_the_network_itself(reentrant, world, plan) -> None:
    model = Checkpointed()
    model.reentrant = reentrant
    model.load_state_dict(world[0].state_dict())
    compiled = torch.compile(model.requires_grad_(requires_grad=False), backend="eager")
    again = placed((compiled, *world[1:]), parameters=20)
    assert replace(again, seconds=plan.seconds, model=plan.model) == plan


def test_a_loss_under_autocast_trains_in_each_step(world, plan) -> None:
    lowered = torch.autocast("cpu", torch.bfloat16)(per_example)
    again = placed(world, lambda model, batch: lowered(model, batch).float(), parameters=20)
    assert (again.slots, again.verdict) == (plan.slots, plan.verdict)
    assert again.all_loss == pytest.approx(plan.all_loss, abs=0.02)


def test_peft_gets_a_pattern_where_a_name_is_the_end_of_another(world) -> None:
    model = copy.deepcopy(world[0])
    model.head = copy.deepcopy(world[0])
    model.head.head.requires_grad_()
    nested = placed((model, *world[1:]), where=["head.layers.2", "layers.0"], steps=40)
    targets = nested.to_peft()["target_modules"]
    assert sorted(name for name, _ in model.named_modules() if re.fullmatch(targets, name)) == sorted(nested.slots)
    assert nested.to_peft()["modules_to_save"] == ["head.head"], "which PEFT would freeze"


def test_what_is_frozen_is_shared_and_never_copied(world, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, plain = [], nn.Parameter.__deepcopy__
    monkeypatch.setattr(
        nn.Parameter, "__deepcopy__", lambda tensor, memo: copied.append(tensor.requires_grad) or plain(tensor, memo)
    )
    placed(world, steps=3)
    assert all(copied), "only what trains has copies"
