"""A network that has grown comes back bit for bit, in a fresh process too; what is damaged or foreign is told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper_core as esper
from esper_core.config import GrowthConfig, OptimizerConfig
from esper_core.growth import Garden, OptimizerKeeper, Variety, graft, slots_of
from esper_core.leyline import (
    Action,
    Blend,
    BlueprintSpec,
    EsperError,
    GraftError,
    GrowthError,
    Op,
    Site,
    SlotPlace,
    SlotState,
    Stage,
)

EXAMPLE = torch.randn(4, 1, 12, generator=torch.Generator().manual_seed(0))


class Loud(nn.Module):
    """Not the identity at birth: a gain stands before it."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.mix = nn.Conv1d(site.channels, site.channels, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.mix(hidden))


LOUD = Variety("test/loud", BlueprintSpec("sequence", "c*c + c"), Loud)


@pytest.fixture
def varieties(local_conv: Variety) -> dict[str, Variety]:
    return {local_conv.id: local_conv, LOUD.id: LOUD}


@pytest.fixture
def plugins(varieties: dict[str, Variety]) -> Any:
    """Plugins that have these blueprints, and say what is missing as the real ones do."""
    real = esper.load_plugins().registry

    def find(kind: str, name: str, *, context: str = "") -> Any:
        if name in varieties:
            variety = varieties[name]
            return SimpleNamespace(id=variety.id, spec=variety.spec, load=lambda: variety.factory)
        return real.find("blueprint", name)

    return SimpleNamespace(registry=SimpleNamespace(find=find))


def build(host: Callable[[], nn.Module], seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return host()


def grown(host: Callable[[], nn.Module], *lives: tuple[Variety, Blend, bool], stack: int = 3) -> nn.Module:
    """A trained-looking network: one seed after the other, kept (True) or still blended in half (False)."""
    model = graft(build(host), {"early": SlotPlace("stem", "sequence", stack)}, example=EXAMPLE)
    settings = OptimizerConfig()
    keeper = OptimizerKeeper(model.parameters(), host_settings=settings, seed_settings=settings)
    garden = Garden(
        model, keeper, {"early": [life[0] for life in lives]}, seed=0, batches=1, settings=GrowthConfig(embargo=0)
    )
    for variety, blend, kept in lives:
        target = 1.0 if kept else 0.5
        garden.apply(Action(Op.GERMINATE, "early", variety.id, blend=blend, speed=0, target=target), 0)
        garden.open_step()
        garden.apply(Action(Op.ADVANCE, "early"), 0)
        garden.close_step()
        with torch.no_grad():
            for parameter in garden.slots["early"].stack:
                for number in parameter.parameters():
                    number.add_(0.1 * torch.randn_like(number))
        if kept:
            garden.apply(Action(Op.FOSSILISE, "early"), 1)
    for parameter in model.parameters():
        parameter.grad = None
    return model.train()


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    if not all(name == again and torch.equal(value, twice) for (name, value), (again, twice) in pairs):
        return False
    with torch.no_grad():
        return all(torch.equal(one.train(mode)(EXAMPLE), other.train(mode)(EXAMPLE)) for mode in (False,))


@pytest.mark.parametrize("blend", list(Blend))
@pytest.mark.parametrize("kind", ["conv", "loud"])
def test_a_network_comes_back_bit_for_bit(
    kind: str, blend: Blend, noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    variety = local_conv if kind == "conv" else LOUD
    model = grown(noisy_host, (local_conv, Blend.ADD, True), (variety, blend, True))
    esper.save(model, tmp_path / "net")
    again = esper.load(build(noisy_host, seed=9), tmp_path / "net", plugins=plugins)
    assert same(model, again)
    assert slots_of(again).named("early").state is SlotState.FREE
    assert [seed.number for seed in slots_of(again).named("early").fossils] == [0, 1]


def test_a_state_dict_is_enough(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    model = grown(noisy_host, (local_conv, Blend.GATE, True), (LOUD, Blend.ADD, False))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert same(model, esper.load(build(noisy_host, seed=9), state, plugins=plugins))
    grafted = graft(build(noisy_host), {"early": SlotPlace("stem", stack=3)})
    assert same(model, esper.load(grafted, state, plugins=plugins))


def test_a_seed_that_lives_comes_back_as_strong_as_it_was(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    model = grown(noisy_host, (local_conv, Blend.RESIDUAL, False))
    esper.save(model, tmp_path)
    again = esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins)
    assert same(model, again)
    slot = slots_of(again).named("early")
    assert slot.living is not None
    assert (slot.state, slot.living.stage, slot.living.alpha.value) == (SlotState.OCCUPIED, Stage.HOLDING, 0.5)


class Tied(nn.Module):
    """Two names for one tensor, and one that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 4, 1)
        self.first = nn.Linear(48, 48)
        self.second = nn.Linear(48, 48)
        self.second.weight = self.first.weight
        self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).T)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(self.stem(inputs).flatten(1)))) * self.turned.sum()


def test_tied_weights_and_turned_tensors_come_back_and_stay_tied(
    local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    model = grown(Tied, (local_conv, Blend.ADD, True))
    esper.save(model, tmp_path)
    again = esper.load(build(Tied, seed=9), tmp_path, plugins=plugins)
    assert same(model, again)
    assert again.second.weight is again.first.weight


def test_an_older_network_in_the_folder_is_replaced(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    esper.save(grown(noisy_host, (LOUD, Blend.ADD, True)), tmp_path)
    model = grown(noisy_host, (local_conv, Blend.ADD, True))
    esper.save(model, tmp_path)
    assert same(model, esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins))


def test_nothing_in_the_folder_is_pickled(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, tmp_path: Path
) -> None:
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["growth.json", "model.safetensors"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def change(**values: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return write


def drop(key: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(
            json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != key})
        )

    return write


HARM = {
    "numbers cut off": ("model.safetensors", cut, "E332", "does not hold the numbers"),
    "a bit turned": ("model.safetensors", flip, "E332", "checksum"),
    "numbers gone": ("model.safetensors", Path.unlink, "E332", "cannot read"),
    "journal gone": ("growth.json", Path.unlink, "E332", "cannot read"),
    "journal cut off": ("growth.json", cut, "E330", "is no growth journal"),
    "journal empty": ("growth.json", lambda path: path.write_text(""), "E330", "is no growth journal"),
    "journal of something else": ("growth.json", lambda path: path.write_text('{"a": 1}'), "E330", "no growth journal"),
    "journal a list": ("growth.json", lambda path: path.write_text("[]"), "E330", "is no growth journal"),
    "journal not text": ("growth.json", lambda path: path.write_bytes(b"\xff\xfe\x00"), "E330", "no growth journal"),
    "a newer format": ("growth.json", change(format=2), "E331", "has the format 2"),
    "a newer format of another shape": ("growth.json", change(format=7, seeds="x", more=1), "E331", "has the format 7"),
    "a key that nobody knows": ("growth.json", change(more=1), "E330", "is no growth journal"),
    "no seeds": ("growth.json", drop("seeds"), "E330", "is no growth journal"),
    "nothing vouched for": ("growth.json", drop("numbers"), "E330", "does not vouch"),
    "an alias of nothing": (
        "growth.json",
        lambda path: change(numbers={**json.loads(path.read_text())["numbers"], "aliases": {"a": "b"}})(path),
        "E332",
        "KeyError",
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_is_damaged_foreign_or_newer_is_told_and_the_model_is_as_it_was(
    harm: str, noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    name, do, code, said = HARM[harm]
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    do(tmp_path / name)
    model = build(noisy_host, seed=9)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(GrowthError) as told:
        esper.load(model, tmp_path, plugins=plugins)
    assert told.value.problems[0].code == code
    assert said in str(told.value)
    assert type(model) is noisy_host
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class Wider(nn.Module):
    """Another host, in which the place is called the same."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 5, 1)
        self.extra = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (Wider, "there is no place for"),
        (lambda: nn.Sequential(nn.Linear(2, 2)), "there is no place for"),
    ],
)
def test_another_host_is_told_apart(
    host: Callable[[], nn.Module],
    said: str,
    noisy_host: Callable[[], nn.Module],
    local_conv: Variety,
    plugins: Any,
    tmp_path: Path,
) -> None:
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    model = host()
    with pytest.raises(GrowthError, match="E334") as told:
        esper.load(model, tmp_path, plugins=plugins)
    assert said in str(told.value)
    assert "_esper" not in dict(model.named_children())


def test_other_numbers_than_the_hosts_are_told_with_what_they_are(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    with pytest.raises(GrowthError, match=r"head.bias is \(3,\) float32, and here \(3,\) float64"):
        esper.load(build(noisy_host).double(), tmp_path, plugins=plugins)


def test_a_network_that_has_grown_itself_takes_no_other(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    model = grown(noisy_host, (local_conv, Blend.ADD, True))
    esper.save(model, tmp_path)
    with pytest.raises(GrowthError, match="E334"):
        esper.load(model, tmp_path, plugins=plugins)


def test_a_blueprint_in_another_version_is_refused(
    noisy_host: Callable[[], nn.Module],
    local_conv: Variety,
    varieties: dict[str, Variety],
    plugins: Any,
    tmp_path: Path,
) -> None:
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    newer = BlueprintSpec("sequence", "6*c*c + 2*c", starts_as_identity=True, version=2)
    varieties[local_conv.id] = Variety(local_conv.id, newer, local_conv.factory)
    with pytest.raises(GrowthError, match=r"E333.*grew in version 1, and what is installed is 2"):
        esper.load(build(noisy_host), tmp_path, plugins=plugins)


def test_a_blueprint_that_is_not_installed_is_told_with_the_way_to_it(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, tmp_path: Path
) -> None:
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    model = build(noisy_host)
    with pytest.raises(EsperError, match=r'unknown blueprint "test/local-conv"'):
        esper.load(model, tmp_path)
    assert type(model) is noisy_host


def test_what_is_no_tensor_is_not_lost_in_silence(local_conv: Variety, tmp_path: Path) -> None:
    class Remembers(Tied):
        def get_extra_state(self) -> dict[str, int]:
            return {"seen": 3}

        def set_extra_state(self, state: dict[str, int]) -> None:
            pass

    with pytest.raises(GrowthError, match=r'E335.*"_extra_state", a dict'):
        esper.save(grown(Remembers, (local_conv, Blend.ADD, True)), tmp_path)


def test_a_plain_model_has_nothing_to_save(noisy_host: Callable[[], nn.Module], tmp_path: Path) -> None:
    with pytest.raises(GraftError, match="E311"):
        esper.save(build(noisy_host), tmp_path)


def test_a_folder_that_cannot_be_written_is_told(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, tmp_path: Path
) -> None:
    (tmp_path / "net").write_text("a file")
    with pytest.raises(EsperError, match="E410 cannot write"):
        esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path / "net")


# The state dict itself.


def test_an_empty_model_has_no_key_of_ours_and_a_grown_one_has_them_under_one_prefix(
    noisy_host: Callable[[], nn.Module], local_conv: Variety
) -> None:
    plain = list(build(noisy_host).state_dict())
    assert list(graft(build(noisy_host), ["stem"]).state_dict()) == plain
    own = [key for key in grown(noisy_host, (local_conv, Blend.ADD, True)).state_dict() if key not in plain]
    assert own
    assert all(key.startswith("_esper.") for key in own)
    assert own[-1] == "_esper.for_esper_core.load"


def test_loading_it_into_a_plain_model_names_what_it_is_for(
    noisy_host: Callable[[], nn.Module], local_conv: Variety
) -> None:
    state = grown(noisy_host, (local_conv, Blend.ADD, True)).state_dict()
    with pytest.raises(RuntimeError, match=r'"_esper\.for_esper_core\.load"'):
        build(noisy_host).load_state_dict(state)


def test_loading_it_where_something_else_has_grown_says_what_to_do(
    noisy_host: Callable[[], nn.Module], local_conv: Variety
) -> None:
    state = grown(noisy_host, (local_conv, Blend.ADD, True)).state_dict()
    empty = graft(build(noisy_host), {"early": SlotPlace("stem")})
    with pytest.raises(
        RuntimeError, match=r"test/local-conv in early, and this one has grown nothing.*esper_core\.load"
    ):
        empty.load_state_dict(state)


def test_loading_it_where_the_same_has_grown_works_as_ever(
    noisy_host: Callable[[], nn.Module], local_conv: Variety
) -> None:
    one, other = (grown(noisy_host, (local_conv, Blend.ADD, True)) for _ in range(2))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.load_state_dict(one.state_dict())
    assert same(one, other)


def test_a_state_dict_without_growth_is_not_for_load(noisy_host: Callable[[], nn.Module]) -> None:
    with pytest.raises(GrowthError, match="E330"):
        esper.load(build(noisy_host), build(noisy_host).state_dict())


PROGRAM = """
import sys, torch, esper_core as esper
from esper_core.leyline import DataShape
from esper_tasks.pointwise_mlp import PointwiseMlp
model = esper.load(PointwiseMlp(DataShape("sequence", (1, 12), 3)), sys.argv[1])
inputs = torch.randn(5, 1, 12, generator=torch.Generator().manual_seed(1))
torch.set_num_threads(1)
print(model.eval()(inputs).double().flatten().tolist())
"""


@pytest.mark.members
def test_a_fresh_process_builds_the_same_network(tmp_path: Path) -> None:
    from esper_core.leyline import DataShape
    from esper_tasks.pointwise_mlp import PointwiseMlp

    component = esper.load_plugins().registry.find("blueprint", "conv_light")
    variety = Variety(component.id, component.spec, component.load())
    model = grown(lambda: PointwiseMlp(DataShape("sequence", (1, 12), 3)), (variety, Blend.GATE, True))
    esper.save(model, tmp_path)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True)
    inputs = torch.randn(5, 1, 12, generator=torch.Generator().manual_seed(1))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert json.loads(done.stdout) == model.eval()(inputs).double().flatten().tolist()
    finally:
        torch.set_num_threads(threads)


def test_a_network_that_was_loaded_grows_on(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    """Fossils go on learning, a seed that lived goes on living, and the next one has a number of its own."""
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True), (LOUD, Blend.ADD, False)), tmp_path)
    model = build(noisy_host, seed=9)
    host = list(model.parameters())
    esper.load(model, tmp_path, plugins=plugins)
    settings = OptimizerConfig()
    keeper = OptimizerKeeper(host, host_settings=settings, seed_settings=settings)
    garden = Garden(model, keeper, {"early": [local_conv]}, seed=0, batches=1, settings=GrowthConfig(embargo=0))
    assert keeper.astray(model) == []
    assert (list(keeper.fossils), list(keeper.seeds), garden.blended) == ([0], [1], (1,))
    garden.apply(Action(Op.PRUNE, "early", speed=0), 0)
    garden.close_step()
    garden.apply(Action(Op.GERMINATE, "early", local_conv.id), 1)
    assert [seed.number for seed in garden.slots["early"].stack] == [0, 2]


def test_a_seed_that_incubated_incubates_on(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    model = graft(build(noisy_host), {"early": SlotPlace("stem")}, example=EXAMPLE)
    settings = OptimizerConfig()
    keeper = OptimizerKeeper(model.parameters(), host_settings=settings, seed_settings=settings)
    garden = Garden(model, keeper, {"early": [local_conv]}, seed=0, batches=1)
    garden.apply(Action(Op.GERMINATE, "early", local_conv.id, target=0.5), 0)
    garden.open_step()
    esper.save(model, tmp_path)
    again = build(noisy_host, seed=9)
    host = list(again.parameters())
    esper.load(again, tmp_path, plugins=plugins)
    keeper = OptimizerKeeper(host, host_settings=settings, seed_settings=settings)
    garden = Garden(again, keeper, {"early": [local_conv]}, seed=0, batches=1)
    assert garden.incubating_slots == ("early",)
    garden.incubate("early", lambda model: model(EXAMPLE).square().mean())
    assert garden.slots["early"].living is not None
    assert garden.slots["early"].living.course.target == 0.5
