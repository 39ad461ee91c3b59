"""A network that has grown comes back bit for bit, in a fresh process too; what is damaged or foreign is told."""

from __future__ import annotations

import hashlib
import json
import os
import re
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
from esper_core.growth import Garden, OptimizerKeeper, Seed, Variety, graft, host_parameters, slots_of
from esper_core.leyline import (
    Action,
    Blend,
    BlueprintSpec,
    Curve,
    EsperError,
    GraftError,
    GrowthError,
    Op,
    Site,
    SlotPlace,
    SlotState,
    Stage,
)
from esper_core.plugins import load_plugins

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
    real = load_plugins().registry

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
    journal, numbers = sorted(path.name for path in tmp_path.iterdir())
    assert journal == "growth.json"
    assert re.fullmatch(r"model-[0-9a-f]{8}\.safetensors", numbers)


@pytest.mark.parametrize("step", ["numbers half written", "numbers written", "journal half written", "old ones there"])
def test_a_save_that_ends_anywhere_leaves_one_network_whole(
    step: str,
    noisy_host: Callable[[], nn.Module],
    local_conv: Variety,
    plugins: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = grown(noisy_host, (local_conv, Blend.ADD, True))
    new = grown(noisy_host, (LOUD, Blend.ADD, True))
    esper.save(old, tmp_path)
    rename, unlink = Path.replace, Path.unlink

    def killed_at(path: Path, *rest: Any, **more: Any) -> Any:
        if path.name.startswith(".model-") and step == "numbers half written":
            raise KeyboardInterrupt
        if path.name == ".growth.json.part" and step in ("numbers written", "journal half written"):
            path.write_text("{") if step == "journal half written" else unlink(path)
            raise KeyboardInterrupt
        return rename(path, *rest, **more)

    def killed_when_tidying(path: Path, **more: Any) -> None:
        if step == "old ones there" and not path.name.startswith("."):
            raise KeyboardInterrupt
        unlink(path, **more)

    monkeypatch.setattr(Path, "replace", killed_at)
    monkeypatch.setattr(Path, "unlink", killed_when_tidying)
    with pytest.raises(KeyboardInterrupt):
        esper.save(new, tmp_path)
    monkeypatch.undo()
    left = esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins)
    assert same(new if step == "old ones there" else old, left)
    esper.save(new, tmp_path)
    assert same(new, esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins))
    assert len([path for path in tmp_path.iterdir() if "model-" in path.name]) == 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def change(*, signed: bool = True, **values: Any) -> Callable[[Path], None]:
    return edit(lambda record: record.update(values), signed=signed)


def drop(key: str) -> Callable[[Path], None]:
    return edit(lambda record: record.pop(key))


def edit(do: Callable[[dict[str, Any]], Any], *, signed: bool = True) -> Callable[[Path], None]:
    """Change what the journal says; signed: with the checksum that it then has."""

    def write(path: Path) -> None:
        record = json.loads(path.read_text())
        do(record)
        if signed:
            record.pop("sha256", None)
            whole = json.dumps(record, sort_keys=True, separators=(",", ":"))
            record["sha256"] = hashlib.sha256(whole.encode()).hexdigest()
        path.write_text(json.dumps(record))

    return write


HARM = {
    "numbers cut off": ("numbers", cut, "E332", "does not contain the tensors"),
    "a bit turned": ("numbers", flip, "E332", "checksum"),
    "numbers gone": ("numbers", Path.unlink, "E332", "cannot read"),
    "journal gone": ("growth.json", Path.unlink, "E332", "cannot read"),
    "journal a pipe": ("growth.json", replace_by_pipe, "E332", "received a pipe"),
    "numbers a pipe": ("numbers", replace_by_pipe, "E332", "received a pipe"),
    "journal cut off": ("growth.json", cut, "E330", "is no growth journal"),
    "journal empty": ("growth.json", lambda path: path.write_text(""), "E330", "is no growth journal"),
    "journal of something else": ("growth.json", lambda path: path.write_text('{"a": 1}'), "E330", "no growth journal"),
    "journal a list": ("growth.json", lambda path: path.write_text("[]"), "E330", "is no growth journal"),
    "journal not text": ("growth.json", lambda path: path.write_bytes(b"\xff\xfe\x00"), "E330", "no growth journal"),
    "a newer format": ("growth.json", change(format=2), "E331", "has the format 2"),
    "a newer format of another shape": ("growth.json", change(format=7, seeds="x", more=1), "E331", "has the format 7"),
    "a key that nobody knows": ("growth.json", change(more=1), "E330", "is no growth journal"),
    "no seeds": ("growth.json", drop("seeds"), "E330", "is no growth journal"),
    "nothing vouched for": ("growth.json", drop("numbers"), "E330", "does not name the file of its tensors"),
    "an alias of nothing": (
        "growth.json",
        edit(lambda record: record["numbers"]["aliases"].update(a="b")),
        "E332",
        "KeyError",
    ),
    "numbers elsewhere": (
        "growth.json",
        edit(lambda record: record["numbers"].update(file="../model-00000000.safetensors")),
        "E330",
        "does not name the file of its tensors",
    ),
    "changed by hand": ("growth.json", change(model="Another", signed=False), "E330", "Its checksum does not match"),
    "too deep": ("growth.json", lambda path: path.write_text("[" * 100_000), "E330", "is no growth journal"),
    "too deep inside": (
        "growth.json",
        lambda path: path.write_text('{"a": ' + "[" * 3000 + "]" * 3000 + "}"),
        "E330",
        "is no growth journal",
    ),
    "too large": ("growth.json", lambda path: path.write_bytes(b" " * (2**26 + 1)), "E330", "bytes"),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_is_damaged_foreign_or_newer_is_told_and_the_model_is_as_it_was(
    harm: str, noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    name, do, code, said = HARM[harm]
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    do(next(tmp_path.glob("model-*")) if name == "numbers" else tmp_path / name)
    model = build(noisy_host, seed=9)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(GrowthError) as told:
        esper.load(model, tmp_path, plugins=plugins)
    assert told.value.problems[0].code == code
    assert said in str(told.value)
    assert type(model) is noisy_host
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


NONSENSE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "format 0": (
        lambda record: record.update(format=0),
        "format: Input should be greater than or equal to 1. Received: 0",
    ),
    "a slot twice": (lambda record: record["slots"].append(record["slots"][0]), "a slot is listed twice"),
    "a number twice": (lambda record: record["seeds"].append(record["seeds"][0]), "a seed is listed twice"),
    "no such slot": (lambda record: record.update(slots=[]), 'there is no slot "early"'),
    "an embargo below 0": (
        lambda record: record["slots"][0].update(embargo=-1),
        "slots.0.embargo: Input should be greater than or equal to 0. Received: -1",
    ),
    "a dtype of nothing": (
        lambda record: record["slots"][0].update(dtypes=["x", "float32"]),
        "slots.0.dtypes.0: Input should be 'float16'",
    ),
    "ticks ahead": (lambda record: record["seeds"][0]["ramp"].update(done=4, ticks=3), "4 of 3 ticks"),
    "a ramp to nowhere": (
        lambda record: record["seeds"][0]["ramp"].update(target=2.0),
        "ramp.target: Input should be less than or equal to 1. Received: 2.0",
    ),
    "a ramp from nowhere": (
        lambda record: record["seeds"][0]["ramp"].update(start=-1.0),
        "ramp.start: Input should be greater than or equal to 0. Received: -1.0",
    ),
    "ticks below 0": (
        lambda record: record["seeds"][0]["ramp"].update(done=-2, ticks=-1),
        "ramp.ticks: Input should be greater than or equal to 0. Received: -1",
    ),
    "a life before the last": (
        lambda record: (
            record["slots"][0].update(stack=2),
            record["seeds"].append({**record["seeds"][0], "number": 1}),
            record["seeds"][0].update(stage="holding"),
            record["seeds"][1].update(stage="fossilized", alpha=1.0),
        ),
        "a living seed comes before a fossil",
    ),
    "more than its stack": (
        lambda record: (
            record["slots"][0].update(stack=1),
            record["seeds"].append({**record["seeds"][0], "number": 1}),
        ),
        "holds 2 seeds, and its stack is 1",
    ),
    **{
        f"slot.{key} {value}": (lambda record, key=key, value=value: record["slots"][0].update({key: value}), said)
        for key, value, said in [
            ("stack", 0, "stack: Input should be greater than or equal to 1. Received: 0"),
            ("stack", 257, "stack: Input should be less than or equal to 256. Received: 257"),
            ("kind", "image", "example_shape is (4, 12), and kind image"),
            ("at", "head", "differ from those of its slot"),
            ("example_shape", [5, 12], "differ from those of its slot"),
        ]
    },
    **{
        f"seed.{key} {value}": (lambda record, key=key, value=value: record["seeds"][0].update({key: value}), said)
        for key, value, said in [
            ("alpha", float("nan"), "alpha: Input should be"),
            ("alpha", -3.0, "alpha: Input should be greater than or equal to 0. Received: -3.0"),
            ("alpha", 0.3, "is a fossil, and its alpha is 0.3"),
            ("target", 9.0, "target: Input should be less than or equal to 1. Received: 9.0"),
            ("stage", "pruned", "seed 0 is pruned"),
            ("number", -5, "number: Input should be greater than or equal to 0. Received: -5"),
            ("version", -1, "version: Input should be greater than or equal to 0. Received: -1"),
            ("speed", -4, "speed: Input should be greater than or equal to 0. Received: -4"),
            ("speed", 10**30, "speed: Input should be less than or equal to 9007199254740992. Received: 1000"),
            ("born", -1, "born: Input should be greater than or equal to 0. Received: -1"),
            ("kept", -1, "kept: Input should be greater than or equal to 0. Received: -1"),
            ("parameters", -1, "parameters: Input should be greater than or equal to 0. Received: -1"),
            ("example_shape", [], "example_shape: Tuple should have at least 1 item"),
            ("example_shape", [4, 0], "no example has this shape"),
            ("example_shape", [4, 10**12], "no example has this shape"),
            ("example_shape", [4], "and kind sequence"),
        ]
    },
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_journal_that_cannot_be_true_is_told(
    nonsense: str, noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    do, said = NONSENSE[nonsense]
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    edit(do)(tmp_path / "growth.json")
    model = build(noisy_host, seed=9)
    with pytest.raises(GrowthError, match="E330") as told:
        esper.load(model, tmp_path, plugins=plugins)
    assert said in str(told.value)
    assert type(model) is noisy_host


def test_a_slot_in_the_journal_is_one_module_and_no_pattern(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    edit(lambda record: (record["slots"][0].update(at="*"), record["seeds"][0].update(at="*")))(
        tmp_path / "growth.json"
    )
    with pytest.raises(GrowthError, match=r"E334(.|\n)*which is not there"):
        esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins)


def test_a_site_that_is_said_to_be_huge_builds_nothing(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)

    def swell(record: dict[str, Any]) -> None:
        for entry in (record["slots"][0], record["seeds"][0]):
            entry["example_shape"] = [2**20, 12]

    edit(swell)(tmp_path / "growth.json")
    with pytest.raises(GrowthError, match=r"E334(.|\n)*and there are [\d,]+ numbers in all"):
        esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins)


def test_a_blueprint_that_cannot_be_built_there_is_told(
    noisy_host: Callable[[], nn.Module],
    local_conv: Variety,
    varieties: dict[str, Variety],
    plugins: Any,
    tmp_path: Path,
) -> None:
    def broken(site: Site) -> nn.Module:
        msg = "no"
        raise ValueError(msg)

    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    varieties[local_conv.id] = Variety(local_conv.id, local_conv.spec, broken)
    model = build(noisy_host, seed=9)
    with pytest.raises(GrowthError, match=r"E334(.|\n)*raised ValueError: no"):
        esper.load(model, tmp_path, plugins=plugins)
    assert type(model) is noisy_host


def test_a_host_that_refuses_its_numbers_is_as_it_was(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    class Refuses(noisy_host):  # type: ignore[valid-type, misc]
        def load_state_dict(self, *args: Any, **more: Any) -> Any:
            super().load_state_dict(*args, **more)
            msg = "not me"
            raise RuntimeError(msg)

    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    model = build(Refuses, seed=9)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="not me"):
        esper.load(model, tmp_path, plugins=plugins)
    assert type(model) is Refuses
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    graft(model, ["stem"], example=EXAMPLE)


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
        (lambda: nn.Sequential(nn.Linear(2, 2)), 'is behind "stem", which is not there'),
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
    with pytest.raises(GrowthError, match=r"E333.*grew in version 1, and version 2 is installed"):
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
        RuntimeError, match=r"(?s)test/local-conv in early, and this one has no seeds.*esper_core\.load"
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
from esper_tasks.hosts import PointwiseMlp
model = esper.load(PointwiseMlp(DataShape("sequence", (1, 12), 3)), sys.argv[1])
inputs = torch.randn(5, 1, 12, generator=torch.Generator().manual_seed(1))
torch.set_num_threads(1)
print(model.eval()(inputs).double().flatten().tolist())
"""


@pytest.mark.members
def test_a_fresh_process_builds_the_same_network(tmp_path: Path) -> None:
    from esper_core.leyline import DataShape
    from esper_tasks.hosts import PointwiseMlp

    component = load_plugins().registry.find("blueprint", "conv_light")
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
    assert keeper.misowned(model) == []
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
    assert garden.incubating == (0,)
    garden.incubate(0, lambda model: model(EXAMPLE).square().mean())
    assert garden.slots["early"].living is not None
    assert garden.slots["early"].living.schedule.target == 0.5


# Where a life stood.


def tended(
    model: nn.Module, varieties: list[Variety], settings: GrowthConfig | None = None, batches: int = 10
) -> Garden:
    """A garden over all slots of a model that may have been loaded."""
    adam = OptimizerConfig()
    keeper = OptimizerKeeper(host_parameters(model), host_settings=adam, seed_settings=adam)
    names = [slot.name for slot in slots_of(model).each()]
    return Garden(model, keeper, dict.fromkeys(names, varieties), seed=0, batches=batches, settings=settings)


def holding(model: nn.Module, variety: Variety, *, target: float = 1.0) -> Garden:
    garden = tended(model, [variety])
    garden.apply(Action(Op.GERMINATE, "early", variety.id, speed=0, target=target), 0)
    garden.open_step()
    garden.apply(Action(Op.ADVANCE, "early"), 0)
    garden.close_step()
    return garden


def living(model: nn.Module) -> Seed:
    seed = slots_of(model).named("early").living
    assert seed is not None
    return seed


@pytest.mark.parametrize("op", [Op.PRUNE, Op.RETARGET])
def test_alpha_goes_on_along_the_way_that_it_was_on(
    op: Op, noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    model = graft(build(noisy_host), {"early": "stem"}, example=EXAMPLE)
    garden = holding(model, local_conv, target=0.9)
    garden.apply(Action(op, "early", speed=4, curve=Curve.SIGMOID, target=0.2), 1)
    for _ in range(15):
        garden.tick()
    esper.save(model, tmp_path)
    again = esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins)
    later = tended(again, [local_conv])
    assert living(again).alpha == living(model).alpha
    assert living(again).stage is living(model).stage
    assert later.close_step() == []
    for _ in range(25):
        assert living(again).alpha.value == living(model).alpha.value
        garden.tick()
        later.tick()
    assert later.close_step() == garden.close_step() != []


def test_a_slot_rests_as_long_as_it_had_to(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    model = graft(build(noisy_host), {"early": "stem", "late": "hidden"}, example=EXAMPLE)
    garden = tended(model, [local_conv], GrowthConfig(embargo=2))
    garden.apply(Action(Op.GERMINATE, "early", local_conv.id), 0)
    garden.apply(Action(Op.PRUNE, "early"), 0)
    esper.save(model, tmp_path)
    again = esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins)
    states = [slots_of(again).named("early").state]
    later = tended(again, [local_conv], GrowthConfig(embargo=2))
    for _ in range(2):
        later.close_step()
        states.append(slots_of(again).named("early").state)
    assert states == [SlotState.EMBARGOED, SlotState.EMBARGOED, SlotState.FREE]


def test_a_slot_that_is_full_comes_back_closed(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True), stack=1), tmp_path)
    again = esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins)
    assert slots_of(again).named("early").state is SlotState.CLOSED


def test_fossils_of_a_loaded_network_are_frozen_where_the_settings_say_so(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    again = esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins)
    garden = tended(again, [local_conv], GrowthConfig(freeze_fossils=True))
    assert not any(parameter.requires_grad for parameter in garden.slots["early"].parameters())
    assert (garden.keeper.fossils, garden.keeper.seeds, garden.born) == ({}, {}, 1)


def test_a_keeper_that_holds_seeds_as_the_hosts_is_told_what_to_take(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    esper.save(grown(noisy_host, (local_conv, Blend.ADD, True)), tmp_path)
    again = esper.load(build(noisy_host, seed=9), tmp_path, plugins=plugins)
    adam = OptimizerConfig()
    keeper = OptimizerKeeper(again.parameters(), host_settings=adam, seed_settings=adam)
    with pytest.raises(GrowthError, match=r"E304(.|\n)*esper_core\.growth\.host_parameters"):
        Garden(again, keeper, {"early": [local_conv]}, seed=0, batches=1)
    plain = [tuple(parameter.shape) for parameter in build(noisy_host).parameters()]
    assert [tuple(parameter.shape) for parameter in host_parameters(again)] == plain
    assert len(host_parameters(nn.ModuleDict({"part": again}))) == len(plain)


class Mixed(nn.Module):
    """Its stem computes in another precision than its first parameter has."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, 3)
        self.stem = nn.Conv1d(1, 4, 1).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.stem(inputs.double()).flatten(1).float())  # type: ignore[no-any-return]


def test_what_grows_on_computes_in_what_was_seen_there(local_conv: Variety, plugins: Any, tmp_path: Path) -> None:
    model = grown(Mixed, (local_conv, Blend.ADD, True))
    esper.save(model, tmp_path)
    again = esper.load(build(Mixed, seed=9), tmp_path, plugins=plugins)
    assert same(model, again)
    garden = tended(again, [local_conv])
    garden.apply(Action(Op.GERMINATE, "early", local_conv.id), 0)
    dtypes = {parameter.dtype for parameter in slots_of(again).parameters()}
    assert dtypes == {torch.float64}


# The state dict of another moment.


def test_a_state_dict_brings_its_alpha_along(noisy_host: Callable[[], nn.Module], local_conv: Variety) -> None:
    model = graft(build(noisy_host), {"early": "stem"}, example=EXAMPLE)
    garden = holding(model, local_conv, target=0.5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = model.eval()(EXAMPLE)
    garden.apply(Action(Op.RETARGET, "early", target=0.9, speed=4), 1)
    for _ in range(7):
        garden.tick()
    model.load_state_dict(before)
    assert (living(model).stage, living(model).alpha.value) == (Stage.HOLDING, 0.5)
    assert torch.equal(model(EXAMPLE), expected)


def test_a_state_dict_of_another_phase_of_life_is_refused(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any
) -> None:
    model = graft(build(noisy_host), {"early": "stem"}, example=EXAMPLE)
    garden = tended(model, [local_conv])
    garden.apply(Action(Op.GERMINATE, "early", local_conv.id, speed=0), 0)
    garden.open_step()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    garden.apply(Action(Op.ADVANCE, "early"), 0)
    with pytest.raises(
        RuntimeError, match=r"was training and acting in the state dict, and is blending and acting here"
    ):
        model.load_state_dict(before)
    assert living(model).stage is Stage.BLENDING
    assert living(esper.load(build(noisy_host), before, plugins=plugins)).stage is Stage.TRAINING


JOURNALS: dict[str, Any] = {
    "no tensor": 5,
    "numbers": torch.full((5,), float("nan")),
    "two dimensions": torch.zeros(2, 2, dtype=torch.uint8),
    "none": torch.tensor(1, dtype=torch.uint8),
    "deep": torch.frombuffer(bytearray(b"[" * 100_000), dtype=torch.uint8),
    "on no device": torch.zeros(5, dtype=torch.uint8, device="meta"),
    "sparse": torch.zeros(5, dtype=torch.uint8).to_sparse(),
}


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_journal_that_was_reckoned_with_is_told(
    journal: str, noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any
) -> None:
    model = grown(noisy_host, (local_conv, Blend.ADD, True))
    state = {**model.state_dict(), "_esper.for_esper_core.load": JOURNALS[journal]}
    with pytest.raises(GrowthError, match=r"E330(.|\n)*adds up, averages or casts"):
        esper.load(build(noisy_host), state, plugins=plugins)
    with pytest.raises(RuntimeError, match=r"E330"):
        model.load_state_dict(state)


def test_a_value_that_is_no_tensor_is_told(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any
) -> None:
    state = {**grown(noisy_host, (local_conv, Blend.ADD, True)).state_dict(), "head.bias": 3}
    with pytest.raises(GrowthError, match=r"E334(.|\n)*head.bias is not a tensor, and here \(3,\) float32"):
        esper.load(build(noisy_host), state, plugins=plugins)


# What a file of numbers does not take, and models within models.


@pytest.mark.parametrize("odd", ["complex", "sparse", "meta"])
def test_numbers_that_no_file_takes_are_named(odd: str, noisy_host: Callable[[], nn.Module], tmp_path: Path) -> None:
    value = {
        "complex": torch.zeros(3, dtype=torch.complex128),
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.zeros(2, device="meta"),
    }[odd]
    model = graft(build(noisy_host), ["stem"])
    model.register_buffer("odd", value)
    with pytest.raises(GrowthError, match=r'E335.*"odd"'):
        esper.save(model, tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_a_square_and_the_same_turned_are_two(noisy_host: Callable[[], nn.Module], tmp_path: Path) -> None:
    def host() -> nn.Module:
        model = noisy_host()
        square = torch.randn(3, 3)
        model.register_buffer("square", square)
        model.register_buffer("turned", square.t())
        return model

    model = graft(build(host), ["stem"])
    esper.save(model, tmp_path)
    again = esper.load(build(host, seed=9), tmp_path)
    assert torch.equal(again.get_buffer("turned"), model.get_buffer("turned"))
    assert torch.equal(again.get_buffer("square"), model.get_buffer("square"))


def test_a_model_that_holds_a_grown_one_is_refused(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, plugins: Any, tmp_path: Path
) -> None:
    model = grown(noisy_host, (local_conv, Blend.ADD, True))
    wrapper = nn.ModuleDict({"generator": model, "critic": nn.Linear(2, 2)})
    with pytest.raises(GraftError, match="E311 ModuleDict has no slots"):
        esper.save(wrapper, tmp_path)
    esper.save(model, tmp_path)
    with pytest.raises(GrowthError):
        esper.load(wrapper, tmp_path, plugins=plugins)
    with pytest.raises(GrowthError, match=r"E330(.|\n)*grafted model itself"):
        esper.load(build(noisy_host), wrapper.state_dict(), plugins=plugins)
