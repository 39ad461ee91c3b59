"""Saved networks: they are restored bit for bit, and damaged or foreign files are refused."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper_grow as esper
from esper_core.growth import Garden, OptimizerKeeper, Seed, Variety, graft, host_parameters, slots_of
from esper_core.leyline import Action, Blend, EsperError, GraftError, GrowthError, Op, Site, SlotPlace, SlotState, Stage
from esper_core.plugins import load_plugins
from esper_core.settings import OptimizerConfig
from tests.support.core_worlds import LOCAL_CONV, LOUD, TAME, NoisyHost, make_garden, same as alike
from tests.support.special_files import put

EXAMPLE = torch.randn(4, 1, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def varieties():
    return {LOCAL_CONV.id: LOCAL_CONV, LOUD.id: LOUD}


@pytest.fixture
def plugins(varieties):
    """Plugins that have these blueprints, and report a missing one as the real ones do."""
    real = load_plugins().registry

    def find(kind: str, name: str, *, context: str = "") -> Any:
        if name in varieties:
            variety = varieties[name]
            return SimpleNamespace(id=variety.id, spec=variety.spec, title=variety.title, load=lambda: variety.factory)
        return real.find("blueprint", name)

    return SimpleNamespace(registry=SimpleNamespace(find=find))


def build(host: Callable[[], nn.Module], seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return host()


@pytest.fixture
def load(plugins):
    """``load(source, host)``: load into a newly built host, by default the noisy one."""
    return lambda source, host=NoisyHost: esper.load(build(host, seed=9), source, plugins=plugins)


def grow(*lives: tuple[Variety, Blend, bool], host: Callable[[], nn.Module] = NoisyHost, stack: int = 3) -> nn.Module:
    """Return a host with seeds of these varieties that were kept, or blended in half; by default one was kept."""
    lives = lives or ((LOCAL_CONV, Blend.ADD, True),)
    model = graft(build(host), {"early": SlotPlace("stem", "sequence", stack)}, example=EXAMPLE)
    garden = make_garden(model, *(life[0] for life in lives))
    for variety, blend, kept in lives:
        hold(garden, variety, blend=blend, alpha=1.0 if kept else 0.5)
        with torch.no_grad():
            for seed in garden.slots["early"].seeds:
                for number in seed.parameters():
                    number.add_(0.1 * torch.randn_like(number))
        if kept:
            garden.apply(Action(Op.FOSSILISE, "early"), 1)
    for parameter in model.parameters():
        parameter.grad = None
    return model.train()


def hold(garden: Garden, variety: Variety, *, alpha: float = 1.0, **more: Any) -> Garden:
    """Return the garden with a seed that was germinated and blended in immediately, to this alpha."""
    garden.apply(Action(Op.GERMINATE, "early", variety.id, speed=0, **more), 0)
    garden.open_step()
    for number in garden.incubating:
        garden.incubate(number, lambda model: model(EXAMPLE).square().mean())
    garden.apply(Action(Op.ADVANCE, "early"), 0)
    garden.close_step()
    living(garden.model).alpha.aim(alpha, 0)
    return garden


@pytest.fixture
def folder(tmp_path):
    """A folder with a saved network, in which one seed was kept."""
    esper.save(grow(), tmp_path)
    return tmp_path


def living(model: nn.Module) -> Seed:
    seed = slots_of(model).named("early").living
    assert seed is not None
    return seed


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Check that the ``with`` block does not change the model."""
    kind, before = type(model), {key: value.clone() for key, value in model.state_dict().items()}
    yield
    assert type(model) is kind
    assert alike(model.state_dict().items(), before.items())


def same(first: nn.Module, second: nn.Module) -> bool:
    """Return whether names, numbers and outputs of two networks are bitwise equal."""
    with torch.no_grad():
        outputs = first.eval()(EXAMPLE), second.eval()(EXAMPLE)
    return alike(first.state_dict().items(), second.state_dict().items()) and torch.equal(*outputs)


# --- what is restored


@pytest.mark.parametrize("blend", list(Blend))
@pytest.mark.parametrize("kind", ["conv", "loud"])
def test_a_network_is_restored_bit_for_bit(kind, blend, load, tmp_path):
    model = grow((LOCAL_CONV, Blend.ADD, True), (LOCAL_CONV if kind == "conv" else LOUD, blend, True))
    esper.save(model, tmp_path / "net")
    again = load(tmp_path / "net")
    assert same(model, again)
    slot = slots_of(again).named("early")
    assert (slot.state, [seed.number for seed in slot.fossils]) == (SlotState.FREE, [0, 1])


def test_a_network_is_restored_from_its_state_dict_in_a_plain_or_a_grafted_model(load):
    model = grow((LOCAL_CONV, Blend.GATED, True), (LOUD, Blend.ADD, False))
    assert same(model, load(model.state_dict()))
    assert same(model, load(model.state_dict(), lambda: graft(NoisyHost(), {"early": SlotPlace("stem", stack=3)})))


class Tied(nn.Module):
    """Two names for one tensor, and tensors that are not contiguous, one of them square."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 4, 1)
        self.first = nn.Linear(48, 48)
        self.second = nn.Linear(48, 48)
        self.second.weight = self.first.weight
        self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).T)
        self.register_buffer("square", torch.arange(9.0).reshape(3, 3))
        self.register_buffer("turned_square", self.square.T)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(self.stem(inputs).flatten(1)))) * self.turned.sum()


def test_tied_and_transposed_tensors_are_restored_and_stay_tied(load, tmp_path):
    model = grow(host=Tied)
    esper.save(model, tmp_path)
    again = load(tmp_path, Tied)
    assert same(model, again)
    assert again.second.weight is again.first.weight
    assert torch.equal(again.turned_square, model.square.T)


# --- how a folder is written


@pytest.mark.parametrize("step", ["numbers half written", "numbers written", "journal half written", "old ones there"])
def test_a_save_that_is_killed_leaves_one_whole_network(step, folder, load, monkeypatch):
    old, new = grow(), grow((LOUD, Blend.ADD, True))
    rename, unlink = Path.replace, Path.unlink

    def killed_at(path: Path, *arguments: Any, **more: Any) -> Any:
        if path.name.startswith(".model-") and step == "numbers half written":
            raise KeyboardInterrupt
        if path.name == ".growth.json.part" and step in ("numbers written", "journal half written"):
            path.write_text("{") if step == "journal half written" else unlink(path)
            raise KeyboardInterrupt
        return rename(path, *arguments, **more)

    def killed_when_tidying(path: Path, **more: Any) -> None:
        if step == "old ones there" and not path.name.startswith("."):
            raise KeyboardInterrupt
        unlink(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed_at)
        patch.setattr(Path, "unlink", killed_when_tidying)
        with pytest.raises(KeyboardInterrupt):
            esper.save(new, folder)
    assert same(new if step == "old ones there" else old, load(folder))
    esper.save(new, folder)
    assert same(new, load(folder))
    assert len([path for path in folder.iterdir() if "model-" in path.name]) == 1


def test_state_that_safetensors_cannot_store_is_named_and_nothing_is_written(tmp_path):
    odd = {"complex": torch.zeros(3, dtype=torch.complex128), "sparse": torch.eye(3).to_sparse()}
    for name, value in {**odd, "meta": torch.zeros(2, device="meta")}.items():
        model = graft(build(NoisyHost), ["stem"])
        model.register_buffer(name, value)
        with pytest.raises(GrowthError, match=rf'E335.*"{name}"'):
            esper.save(model, tmp_path / "net")
    more = {"get_extra_state": lambda host: {"seen": 3}, "set_extra_state": print}
    with pytest.raises(GrowthError, match=r'E335.*"_extra_state", a dict'):
        esper.save(grow(host=type("WithExtraState", (NoisyHost,), more)), tmp_path / "net")
    assert not (tmp_path / "net").exists()
    (tmp_path / "net").write_text("a file")
    with pytest.raises(EsperError, match="E410 cannot write"):
        esper.save(grow(), tmp_path / "net")


def test_a_model_without_slots_cannot_be_saved(folder, plugins):
    wrapper = nn.ModuleDict({"generator": grow(), "critic": nn.Linear(2, 2)})
    with pytest.raises(GraftError, match=r"E311 .* has no slots"):
        esper.save(build(NoisyHost), folder)
    with pytest.raises(GrowthError):
        esper.load(wrapper, folder, plugins=plugins)
    with pytest.raises(GrowthError, match=r"E334(.|\n)*which does not exist"):
        esper.load(build(NoisyHost), wrapper.state_dict(), plugins=plugins)


# --- damaged files


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def write(text: str | bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(text if isinstance(text, bytes) else text.encode())


def edit(do: Callable[[dict[str, Any]], Any], *, signed: bool = True) -> Callable[[Path], None]:
    """Change the journal; signed: with its new checksum."""

    def write(path: Path) -> None:
        record = json.loads(path.read_text())
        do(record)
        if signed:
            record.pop("sha256", None)
            text = json.dumps(record, sort_keys=True, separators=(",", ":"))
            record["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(json.dumps(record))

    return write


def change(*, signed: bool = True, **values: Any) -> Callable[[Path], None]:
    return edit(lambda record: record.update(values), signed=signed)


JOURNAL, NUMBERS, ELSEWHERE = "growth.json", "model-*", "../model-00000000.safetensors"
NO_JOURNAL, NO_NUMBERS = "E330 .* is not a growth journal", "E330 (.|\n)*does not name the file of its tensors"
PIPE = "E332 (.|\n)*received a pipe"
DAMAGE: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "numbers cut off": (NUMBERS, cut, "E332 .*does not contain the tensors"),
    "a bit flipped": (NUMBERS, flip, "E332 (.|\n)*checksum"),
    "no numbers": (NUMBERS, Path.unlink, "E332 cannot read"),
    "numbers a pipe": (NUMBERS, partial(put, "pipe"), PIPE),
    "no journal": (JOURNAL, Path.unlink, "E332 cannot read"),
    "journal a pipe": (JOURNAL, partial(put, "pipe"), PIPE),
    "journal cut off": (JOURNAL, cut, NO_JOURNAL),
    "another object": (JOURNAL, write('{"a": 1}'), NO_JOURNAL),
    "a list": (JOURNAL, write("[]"), NO_JOURNAL),
    "no text": (JOURNAL, write(b"\xff\xfe\x00"), NO_JOURNAL),
    "too deep": (JOURNAL, write("[" * 100_000), NO_JOURNAL),
    "too deep inside": (JOURNAL, write('{"a": ' + "[" * 3000 + "]" * 3000 + "}"), NO_JOURNAL),
    "too large": (JOURNAL, write(b" " * (2**26 + 1)), "E332 (.|\n)*ESPER_MAX_FILE_MIB"),
    "unknown key": (JOURNAL, change(more=1), NO_JOURNAL),
    "no seeds": (JOURNAL, edit(lambda record: record.pop("seeds")), NO_JOURNAL),
    "newer": (JOURNAL, change(format=5), "E331 .*has the format 5(.|\n)*pip install -U"),
    "older": (JOURNAL, change(format=2), "E331 .*has the format 2(.|\n)*by an older one"),
    "newer and of another shape": (JOURNAL, change(format=7, seeds="x", more=1), "E331 .*has the format 7"),
    "changed by hand": (JOURNAL, change(model="Another", signed=False), "E330 (.|\n)*Its checksum does not match"),
    "no file of numbers": (JOURNAL, edit(lambda record: record.pop("numbers")), NO_NUMBERS),
    "numbers elsewhere": (JOURNAL, edit(lambda record: record["numbers"].update(file=ELSEWHERE)), NO_NUMBERS),
    "an alias": (JOURNAL, edit(lambda record: record["numbers"]["aliases"].update(a="b")), "E332 (.|\n)*KeyError"),
}


def test_damaged_foreign_and_newer_files_are_refused_and_the_model_is_unchanged(folder, plugins):
    sound = {path: path.read_bytes() for path in folder.iterdir()}
    model = build(NoisyHost, seed=9)
    for damage, (name, do, message) in DAMAGE.items():
        path = next(folder.glob(name))
        do(path)
        with unchanged(model), pytest.raises(GrowthError) as refusal:
            esper.load(model, folder, plugins=plugins)
        assert re.search(message, str(refusal.value)), damage
        path.unlink(missing_ok=True)
        path.write_bytes(sound[path])


def two_seeds(record: dict[str, Any]) -> list[dict[str, Any]]:
    record["seeds"].append({**record["seeds"][0], "number": 1})
    return record["seeds"]


AT_LEAST = "Input should be greater than or equal to 0. Received:"
SLOT, SEED, RAMP = ("slots", 0), ("seeds", 0), ("seeds", 0, "ramp")
INVALID: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {"format": 0}, "format: Input should be greater than or equal to 1. Received: 0"),
    ((), {"slots": []}, 'there is no slot "early"'),
    (SLOT, {"embargo": -1}, f"slots.0.embargo: {AT_LEAST} -1"),
    (SLOT, {"dtypes": ["x", "float32"]}, "slots.0.dtypes.0: Input should be 'float16'"),
    (SLOT, {"stack": 257}, "stack: Input should be less than or equal to 256. Received: 257"),
    (SLOT, {"kind": "image"}, "example_shape is (4, 12), and kind image"),
    (SLOT, {"at": "head"}, "differ from those of its slot"),
    (SLOT, {"example_shape": [5, 12]}, "differ from those of its slot"),
    (RAMP, {"done": 4, "ticks": 3}, "4 of 3 ticks"),
    (RAMP, {"target": 2.0}, "ramp.target: Input should be less than or equal to 1. Received: 2.0"),
    *((SEED, {name: -1}, f"{name}: {AT_LEAST} -1") for name in ("number", "version", "born", "kept", "parameters")),
    (SEED, {"alpha": float("nan")}, "alpha: Input should be"),
    (SEED, {"alpha": 0.3}, "is a fossil, and its alpha is 0.3"),
    (SEED, {"stage": "pruned"}, "seed 0 is pruned"),
    (SEED, {"speed": 10**30}, "speed: Input should be less than or equal to 9007199254740992. Received: 1000"),
    (SEED, {"example_shape": []}, "example_shape: Tuple should have at least 1 item"),
    (SEED, {"example_shape": [4, 0]}, "no example has this shape"),
    (SEED, {"example_shape": [4, 10**12]}, "no example has this shape"),
    (SEED, {"example_shape": [4]}, "and kind sequence"),
]
CONTRADICTORY: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda record: record["slots"].append(record["slots"][0]), "a slot is listed twice"),
    (lambda record: record["seeds"].append(record["seeds"][0]), "a seed is listed twice"),
    (
        lambda record: (record["slots"][0].update(stack=2), two_seeds(record)[0].update(stage="holding")),
        "a living seed comes before a fossil",
    ),
    (lambda record: [seed.update(stage="holding") for seed in two_seeds(record)], "one of 2 living seeds acts"),
    (lambda record: (record["slots"][0].update(stack=1), two_seeds(record)), "holds 2 seeds, and its stack is 1"),
]


def test_a_journal_with_invalid_or_contradictory_values_is_refused(folder, plugins):
    path, model = folder / JOURNAL, build(NoisyHost, seed=9)
    sound = path.read_text()

    def update(place: tuple[Any, ...], values: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
        def do(record: Any) -> None:
            for key in place:
                record = record[key]
            record.update(values)

        return do

    for do, message in [*((update(place, values), message) for place, values, message in INVALID), *CONTRADICTORY]:
        path.write_text(sound)
        edit(do)(path)
        with unchanged(model), pytest.raises(GrowthError, match="E330") as refusal:
            esper.load(model, folder, plugins=plugins)
        assert message in str(refusal.value)


# --- networks that do not fit


def test_another_host_is_refused(folder, load, plugins):
    layers = {"stem": nn.Conv1d(1, 5, 1), "extra": nn.Linear(2, 2)}
    for host, message in {
        lambda: nn.ModuleDict(layers): r"E334 (.|\n)*which is not expected",
        lambda: nn.Sequential(nn.Linear(2, 2)): r'E334 (.|\n)*is behind "stem", which does not exist',
        lambda: NoisyHost().double(): r"head.bias is \(3,\) float32, expected \(3,\) float64",
        grow: "E334",
    }.items():
        model = host()
        with pytest.raises(GrowthError, match=message):
            esper.load(model, folder, plugins=plugins)
        assert host is grow or "_esper" not in dict(model.named_children())


NO_PATTERN = ({"at": "*"}, r"E334(.|\n)*which does not exist")
TOO_LARGE = ({"example_shape": [2**20, 12]}, r"E334(.|\n)*but the file has [\d,]+ in all")


@pytest.mark.parametrize(("values", "message"), [NO_PATTERN, TOO_LARGE], ids=["a pattern", "nothing so large is built"])
def test_a_slot_that_the_host_does_not_have_is_refused(values, message, folder, load):
    edit(lambda record: (record["slots"][0].update(values), record["seeds"][0].update(values)))(folder / JOURNAL)
    with pytest.raises(GrowthError, match=message):
        load(folder)


def test_a_blueprint_that_cannot_be_built_or_has_another_version_or_is_not_installed(folder, varieties, plugins):
    def broken(site: Site) -> nn.Module:
        raise ValueError("no")

    model, newer = build(NoisyHost, seed=9), replace(LOCAL_CONV.spec, version=2)
    for change, message in [
        ({"factory": broken}, r"E334(.|\n)*raised ValueError: no"),
        ({"spec": newer}, r"E333.*grew in version 1, and version 2 is installed"),
    ]:
        varieties[LOCAL_CONV.id] = replace(LOCAL_CONV, **change)
        with unchanged(model), pytest.raises(GrowthError, match=message):
            esper.load(model, folder, plugins=plugins)
    with unchanged(model), pytest.raises(EsperError, match=r'unknown blueprint "test/local-conv"'):
        esper.load(model, folder)


def test_a_host_whose_load_state_dict_fails_is_unchanged(folder, plugins):
    class Refuses(NoisyHost):
        def load_state_dict(self, *args: Any, **more: Any) -> Any:
            super().load_state_dict(*args, **more)
            raise RuntimeError("not me")

    model = build(Refuses, seed=9)
    with unchanged(model), pytest.raises(RuntimeError, match="not me"):
        esper.load(model, folder, plugins=plugins)
    graft(model, ["stem"], example=EXAMPLE)


# --- continued growth


def test_a_loaded_network_grows_on(load, tmp_path):
    """Fossils learn, a living seed continues, and the next one gets a new number."""
    esper.save(grow((LOCAL_CONV, Blend.ADD, True), (LOUD, Blend.ADD, False)), tmp_path)
    model = load(tmp_path)
    garden = make_garden(model, LOCAL_CONV, batches=10)
    keeper = garden.keeper
    assert keeper.misowned(model) == []
    assert (list(keeper.fossils), list(keeper.seeds), garden.blended) == ([0], [1], (1,))
    garden.apply(Action(Op.PRUNE, "early", speed=0), 0)
    garden.close_step()
    garden.apply(Action(Op.GERMINATE, "early", LOCAL_CONV.id), 1)
    assert [seed.number for seed in garden.slots["early"].seeds] == [0, 2]


def test_an_incubating_seed_continues_to_incubate(load, tmp_path):
    model = graft(build(NoisyHost), {"early": SlotPlace("stem")}, example=EXAMPLE)
    garden = make_garden(model, LOCAL_CONV, batches=10)
    garden.apply(Action(Op.GERMINATE, "early", LOCAL_CONV.id, speed=7), 0)
    garden.open_step()
    esper.save(model, tmp_path)
    again = load(tmp_path)
    garden = make_garden(again, LOCAL_CONV, batches=10)
    assert list(garden.incubating) == [0]
    garden.incubate(0, lambda model: model(EXAMPLE).square().mean())
    assert living(again).speed == 7


def test_a_ramp_of_alpha_continues(load, tmp_path):
    model = graft(build(NoisyHost), {"early": "stem"}, example=EXAMPLE)
    garden = hold(make_garden(model, LOCAL_CONV, batches=10), LOCAL_CONV, alpha=0.9)
    garden.apply(Action(Op.PRUNE, "early", speed=4), 1)
    for _ in range(15):
        garden.tick()
    esper.save(model, tmp_path)
    again = load(tmp_path)
    later = make_garden(again, LOCAL_CONV, batches=10)
    assert (living(again).alpha, living(again).stage) == (living(model).alpha, living(model).stage)
    assert later.close_step() == []
    for _ in range(25):
        assert living(again).alpha.value == living(model).alpha.value
        garden.tick()
        later.tick()
    assert later.close_step() == garden.close_step() != []


def test_an_embargo_continues_and_a_full_slot_is_closed(load, tmp_path):
    model = graft(build(NoisyHost), {"early": "stem", "late": "hidden"}, example=EXAMPLE)
    garden = make_garden(model, LOCAL_CONV, TAME, growth={"embargo": 2})
    garden.apply(Action(Op.GERMINATE, "early", LOCAL_CONV.id), 0)
    garden.apply(Action(Op.PRUNE, "early"), 0)
    esper.save(model, tmp_path)
    again = load(tmp_path)
    states = [slots_of(again).named("early").state]
    later = make_garden(again, LOCAL_CONV, TAME, growth={"embargo": 2})
    for _ in range(2):
        later.close_step()
        states.append(slots_of(again).named("early").state)
    assert states == [SlotState.EMBARGOED, SlotState.EMBARGOED, SlotState.FREE]
    esper.save(grow(stack=1), tmp_path)
    assert slots_of(load(tmp_path)).named("early").state is SlotState.CLOSED


def test_loaded_fossils_are_frozen_where_the_settings_say_so(folder, load):
    garden = make_garden(load(folder), LOCAL_CONV, growth={"freeze_fossils": True})
    assert not any(parameter.requires_grad for parameter in garden.slots["early"].parameters())
    assert (garden.keeper.fossils, garden.keeper.seeds, garden.born) == ({}, {}, 1)


def test_a_keeper_that_holds_seeds_as_host_parameters_is_refused_with_a_hint(folder, load):
    again = load(folder)
    adam = OptimizerConfig()
    keeper = OptimizerKeeper(again.parameters(), host_settings=adam, seed_settings=adam)
    with pytest.raises(GrowthError, match=r"E304(.|\n)*esper_core\.growth\.host_parameters"):
        Garden(again, keeper, {"early": [LOCAL_CONV]}, seed=0, batches=1)
    plain = [tuple(parameter.shape) for parameter in build(NoisyHost).parameters()]
    assert [tuple(parameter.shape) for parameter in host_parameters(again)] == plain
    assert len(host_parameters(nn.ModuleDict({"part": again}))) == len(plain)


# --- state dicts


def test_load_state_dict_works_where_the_same_has_grown_and_else_says_what_to_do():
    source, target = grow(), grow()
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(1.0)
    target.load_state_dict(source.state_dict())
    assert same(source, target)
    with pytest.raises(RuntimeError, match=r'"stem\._esper\.for_esper_grow\.load"'):
        build(NoisyHost).load_state_dict(source.state_dict())


def test_load_state_dict_restores_alpha():
    model = graft(build(NoisyHost), {"early": "stem"}, example=EXAMPLE)
    garden = hold(make_garden(model, LOCAL_CONV, batches=10), LOCAL_CONV, alpha=0.5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = model.eval()(EXAMPLE)
    garden.apply(Action(Op.PRUNE, "early", speed=4), 1)
    for _ in range(7):
        garden.tick()
    model.load_state_dict(before)
    assert (living(model).stage, living(model).alpha.value) == (Stage.HOLDING, 0.5)
    assert torch.equal(model(EXAMPLE), expected)


JOURNALS: list[Any] = [
    5,
    torch.full((5,), float("nan")),
    torch.zeros(2, 2, dtype=torch.uint8),
    torch.tensor(1, dtype=torch.uint8),
    torch.frombuffer(bytearray(b"[" * 100_000), dtype=torch.uint8),
    torch.zeros(5, dtype=torch.uint8, device="meta"),
    torch.zeros(5, dtype=torch.uint8).to_sparse(),
]


def test_a_state_dict_with_a_changed_journal_is_refused(load):
    model = grow()
    for journal in JOURNALS:
        state = {**model.state_dict(), "stem._esper.for_esper_grow.load": journal}
        with pytest.raises(GrowthError, match=r"E330(.|\n)*sums, averages or casts"):
            load(state)
        with pytest.raises(RuntimeError, match=r"E330"):
            model.load_state_dict(state)


def test_a_state_dict_without_growth_or_with_a_value_that_is_no_tensor_is_refused(load):
    with pytest.raises(GrowthError, match="E330"):
        load(build(NoisyHost).state_dict())
    with pytest.raises(GrowthError, match=r"E334(.|\n)*head.bias is not a tensor, expected \(3,\) float32"):
        load({**grow().state_dict(), "head.bias": 3})
