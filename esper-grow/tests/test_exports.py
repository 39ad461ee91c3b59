"""An exported network computes what the grown one computes, and has nothing of Esper in it."""

import copy
import runpy
import subprocess
import sys
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from esper_core import EsperError, graft, ungraft
from esper_core.growth import slots_of
from esper_core.leyline import Blend, BlueprintSpec, GrowthError, Site, Stage
from esper_grow import export
from tests.support.core_worlds import Net, add_seed

HOST = """
import torch
from torch import nn

class Host(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.body = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(self.body(self.stem(inputs)))
"""
namespace: dict[str, type[nn.Module]] = {}
exec(HOST, namespace)  # the test that loads without Esper writes the same text to a file
Host = namespace["Host"]
EXAMPLE = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """Parameters of its own, a buffer, layers within layers, and one that differs between training and evaluation."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(site.channels, site.channels), nn.Tanh(), nn.BatchNorm1d(site.channels))
        self.layers_0 = nn.Linear(site.channels, site.channels)  # named as a part of another one
        self.scale = nn.Parameter(torch.full((site.channels,), 0.5))
        self.register_buffer("shift", torch.linspace(0, 1, site.channels))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layers_0(hidden) + self.scale * self.layers(hidden) + self.shift


class Branches(Block):
    """Branches on the values of its inputs."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden if hidden.sum() > 0 else -hidden


def attends(site: Site) -> nn.Module:
    """Return a block with a layer of torch whose repr does not build it."""
    attention = nn.MultiheadAttention(site.channels, 2)
    return Net(lambda net, hidden: hidden + net.attention(hidden, hidden, hidden)[0], attention=attention)


def grow(model: nn.Module, name: str, block: Any = Block, *, stage: Stage = Stage.FOSSILISED, **more: Any) -> None:
    """Put a seed that acts at full strength into a slot."""
    number = sum(len(slot.seeds) for slot in slots_of(model))
    options = {"blueprint": "t/b", "spec": BlueprintSpec("vector"), "identity": False, **more}
    add_seed(model, name, block, seed=number, number=number, noise=0.1, **options).stage = stage


@pytest.fixture
def grown() -> nn.Module:
    """A host with two fossils behind its stem and one behind a Sequential."""
    torch.manual_seed(1)
    model = graft(Host(), {"early": "stem", "late": "body", "empty": "head"}, example=EXAMPLE)
    for slot in slots_of(model):
        slot.limit = 2
    for name in ("early", "early", "late"):
        grow(model, name)
    return model


def modes(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Return the outputs of a copy in training and in evaluation; training changes buffers."""
    outputs = []
    for training in (True, False):
        torch.manual_seed(0)
        outputs.append(copy.deepcopy(model).train(training)(inputs))
    return outputs


def assert_same(first: nn.Module, second: nn.Module, inputs: Tensor = EXAMPLE) -> None:
    for first_outputs, second_outputs in zip(modes(first, inputs), modes(second, inputs), strict=True):
        assert torch.equal(first_outputs, second_outputs)


def test_a_module_computes_the_same_with_torchs_own_layers_and_the_hosts_keys(grown):
    before = {key: value.clone() for key, value in grown.state_dict().items()}
    plain = export(grown, example=EXAMPLE)
    assert_same(plain, grown)
    assert not [module for module in plain.modules() if type(module).__module__.startswith("esper")]
    assert type(plain) is Host
    twin = copy.deepcopy(plain)
    twin(EXAMPLE).square().sum().backward()
    assert all(parameter.grad is not None for parameter in twin.parameters()), "it can be copied and trained"
    assert all(parameter.grad is None for parameter in plain.parameters())
    host_keys = set(Host().state_dict())
    assert {key for key in plain.state_dict() if "grown." not in key} == host_keys
    after = grown.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())


@pytest.mark.parametrize("identity", [True, False], ids=["identity", "eased"])
@pytest.mark.parametrize("blend", list(Blend))
def test_every_blend_is_exported_exactly(blend, identity):
    model = graft(Host(), ["stem"], example=EXAMPLE)
    grow(model, "stem", blend=blend, identity=identity)
    assert_same(export(model, example=EXAMPLE), model)


def test_a_block_in_half_precision_is_exported_in_half_precision(tmp_path):
    model = graft(Host().bfloat16(), ["stem"], example=EXAMPLE.bfloat16())
    grow(model, "stem", blend=Blend.GATED)
    assert_same(export(model, path=tmp_path), model, EXAMPLE.bfloat16())
    dtypes = {value.dtype for value in load_file(tmp_path / "network.safetensors").values()}
    assert dtypes == {torch.bfloat16, torch.int64}


WITHOUT_ESPER = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0].startswith("esper"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import torch
from safetensors.torch import load_file
from host import Host
from network import load

there = load_file("seen.safetensors")
network = load(Host()).eval()
torch.testing.assert_close(network(there["inputs"]), there["outputs"])
print(sum(parameter.numel() for parameter in network.parameters()))
"""


@pytest.mark.install  # CI runs it for every change
def test_a_folder_is_loaded_by_a_process_without_esper(grown, tmp_path):
    plain = export(grown, path=tmp_path, example=EXAMPLE).eval()
    save_file({"inputs": EXAMPLE, "outputs": plain(EXAMPLE)}, tmp_path / "seen.safetensors")
    (tmp_path / "host.py").write_text(HOST)
    (tmp_path / "use.py").write_text(WITHOUT_ESPER)
    done = subprocess.run([sys.executable, "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == sum(parameter.numel() for parameter in grown.parameters())


class Residual(nn.Sequential):
    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self:
            hidden = hidden + layer(hidden)
        return hidden / len(self)


def with_odd_names() -> nn.Module:
    """Return a host that iterates over its layers, with names that are alike, and two for one layer."""
    norm, block = nn.BatchNorm1d(6), nn.ModuleDict({"a": nn.Linear(6, 6)})
    parts = {"norm": norm, "same": norm, "block": block, "block_a": nn.Linear(6, 6)}
    return Residual(Net(lambda net, hidden: net.block_a(net.block["a"](net.norm(hidden))), **parts), nn.Linear(6, 6))


def test_an_export_grows_again_and_acts_as_the_model_with_its_later_hooks(tmp_path):
    plain, loaded = with_odd_names(), with_odd_names()
    for folder in (tmp_path / "first", tmp_path / "second"):
        model = graft(plain, ["0.block.a", "0.block_a", "1"], example=EXAMPLE)
        for slot in slots_of(model):
            grow(model, slot.name)
        model[1].register_forward_hook(lambda *call: call[-1].tanh())
        plain = export(model, path=folder, example=EXAMPLE)
        model[0].register_buffer("phase", torch.zeros(2, dtype=torch.complex128))
        with pytest.raises(EsperError, match="E335"):
            export(model, path=folder)  # the older one stays there
        del model[0].phase
        loaded = runpy.run_path(str(folder / "network.py"))["load"](loaded)
        loaded[1].register_forward_hook(lambda *call: call[-1].tanh())
        assert_same(plain, model)
        assert_same(loaded, model)


def test_a_host_that_grew_nothing_is_exported_as_it_was(tmp_path):
    model = graft(Host(), ["stem"], example=EXAMPLE)
    plain = export(model, path=tmp_path)
    assert plain.state_dict().keys() == Host().state_dict().keys()
    assert_same(plain, model)


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda model: grow(model, "late", stage=Stage.HOLDING) or export(model), r"E336 .*t/b in late"),
        (lambda model: grow(model, "late", Branches) or export(model), r"E337 .*t/b in late cannot be traced"),
        (lambda model: grow(model, "late", attends) or export(model, path="x"), r"E337 .*behind body .* source"),
        (lambda model: vars(model).update(loss=model(EXAMPLE).sum()) or export(model), r"E337 .*copied(?s:.)*to None"),
        (lambda model: export(model.state_dict()), r"E311 OrderedDict has no slots"),
        (lambda model: export(model, example=(EXAMPLE,) * 2), r"E318 .*TypeError(.|\n)*without targets. Received: "),
    ],
    ids=["alive", "untraceable", "no source", "no copy", "no module", "with targets"],
)
def test_what_cannot_be_exported_is_refused_with_the_reason(attempt, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = graft(Host(), {"early": "stem", "late": "body"}, example=EXAMPLE)
    grow(model, "early")
    with pytest.raises(EsperError, match=says):
        attempt(model)


@pytest.mark.parametrize("copied", [False, True], ids=["the model", "a copy of it"])
def test_ungraft_returns_the_model_as_it_was(copied):
    plain = Host()
    model = graft(copy.deepcopy(plain), ["stem", "body.2"], example=EXAMPLE)
    model = ungraft(copy.deepcopy(model) if copied else model)
    assert [type(module) for module in model.modules()] == [type(module) for module in plain.modules()]
    assert not [module for module in model.modules() if module._forward_hooks]
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert_same(model, plain)
    graft(model, ["stem"], example=EXAMPLE)


def test_ungraft_drops_what_grew_only_on_request(grown):
    with pytest.raises(GrowthError, match=r"E336 the model has grown: t/b in early.*\n.*export"):
        ungraft(grown)
    plain = ungraft(grown, discard=True)
    assert not any("_esper" in name for name in plain.state_dict())
