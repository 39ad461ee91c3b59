"""Slots on a part of a structured output: seeds act on it, everything else passes through, in every use of a model."""

import copy
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core import graft
from esper_core.growth import Variety, observe, slots_of
from esper_core.leyline import Action, BlueprintSpec, Op, SlotPlace
from esper_grow import Gardener, export, load, save
from tests.support.core_worlds import Bend, PlannedPolicy, add_seed, per_example

HOST = """
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any
import torch
from torch import nn

Pair = namedtuple("Pair", ["count", "hidden"])

@dataclass(frozen=True)
class Record:
    hidden: Any
    name: str = "few"

class Part(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.mix = kind, nn.Linear(6, 8)

    def forward(self, inputs):
        return PACK[self.kind](self.mix(inputs))

class Host(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.part, self.head = kind, Part(kind), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(TAKE[self.kind](self.part(inputs)))

PACK = {
    "tuple": lambda h: (h, None, h[0]),
    "last": lambda h: (h.sum(), h[:, :2], h),
    "list": lambda h: [h, "more"],
    "named tuple": lambda h: Pair(3, h),
    "dict": lambda h: {"loss": h.sum(), "hidden": h, "count": 3},
    "ordered": lambda h: OrderedDict(name="few", hidden=h),
    "dataclass": lambda h: Record(h),
}
TAKE = {
    "tuple": lambda o: o[0],
    "last": lambda o: o[2],
    "list": lambda o: o[0],
    "named tuple": lambda o: o.hidden * o.count,
    "dict": lambda o: o["hidden"] * o["count"],
    "ordered": lambda o: o["hidden"],
    "dataclass": lambda o: o.hidden,
}
"""
namespace: dict[str, Any] = {"__name__": "host"}
# The test that loads an export without Esper writes the same text to a file.
exec(compile(HOST, "host.py", "exec", dont_inherit=True), namespace)
Host = namespace["Host"]
KINDS = {
    "tuple": None, "last": -1, "list": 0, "named tuple": 1, "dict": None, "ordered": "hidden", "dataclass": None,
}  # fmt: skip
EXAMPLE = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


BEND = Variety("test/bend", BlueprintSpec("vector", "c*c + c"), Bend)


def grafted(kind: str) -> nn.Module:
    torch.manual_seed(1)
    return graft(Host(kind), {"here": SlotPlace("part", output=KINDS[kind])}, example=EXAMPLE)


def grown(kind: str) -> nn.Module:
    model = grafted(kind)
    add_seed(model, "here", fossil=True, spec=BEND.spec, identity=True).kept = 3
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_act_on_the_part_and_the_rest_passes_through(kind):
    model = grown(kind)
    mixed, changed = model.part.mix(EXAMPLE), model.part(EXAMPLE)
    slot, plain = slots_of(model).named("here"), namespace["PACK"][kind](mixed)
    assert type(changed) is type(plain)
    assert torch.equal(model(EXAMPLE), model.head(namespace["TAKE"][kind](changed)))
    assert torch.equal(slot.part.of(changed), slot.seeds[0].block(mixed))
    assert str(slot.part.replaced(changed, mixed)) == str(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_network_is_rebuilt_on_the_same_part(kind, tmp_path):
    model = grown(kind)
    save(model, tmp_path / "net")
    component = SimpleNamespace(id=BEND.id, spec=BEND.spec, title=BEND.title, load=lambda: Bend)
    plugins = SimpleNamespace(registry=SimpleNamespace(find=lambda *_: component))
    for source in (tmp_path / "net", model.state_dict()):
        again = load(Host(kind), source, plugins=plugins)
        assert torch.equal(again(EXAMPLE), model(EXAMPLE))
        assert slots_of(again).named("here").part == slots_of(model).named("here").part
        observe(again, slots_of(again).each(), EXAMPLE)


WITHOUT_ESPER = """
import sys
sys.modules["esper_core"] = None
import torch
from host import Host
from network import load
inputs, outputs, kind = torch.load("seen.pt")
torch.testing.assert_close(load(Host(kind)).eval()(inputs), outputs)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_acts_on_the_same_part(kind, tmp_path):
    model = grown(kind)
    plain = export(model, path=tmp_path / "all", example=EXAMPLE)
    assert torch.equal(plain.eval()(EXAMPLE), model(EXAMPLE))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tuple", "dict", "dataclass"])  # one of each form that is written as source
def test_an_export_acts_there_in_a_process_without_esper(kind, tmp_path):
    model = grown(kind)
    export(model, path=tmp_path, example=EXAMPLE)
    for name, text in {"host.py": HOST, "use.py": WITHOUT_ESPER}.items():
        (tmp_path / name).write_text(text)
    torch.save((EXAMPLE, model.eval()(EXAMPLE), kind), tmp_path / "seen.pt")
    done = subprocess.run([sys.executable, "use.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_programs_and_compilers_capture_a_grafted_model_as_one_graph(kind):
    model = grown(kind)
    more = torch.randn(7, 6)
    torch.testing.assert_close(export(model, "program", example=EXAMPLE).module()(more), model(more))
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(more), model(more))


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_a_gardener_grows_there_on_a_branch(kind):
    plan = {0: Action(Op.GERMINATE, "here", BEND.id), 1: Action(Op.ADVANCE, "here"), 3: Action(Op.FOSSILISE, "here")}
    model = grafted(kind)
    batch = (EXAMPLE, torch.arange(5) % 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    gardener = Gardener(
        model, optimizer, loss=per_example, blueprints=[BEND], example=batch, validation=[batch], steps=8,
        policy=PlannedPolicy(plan), growth={"gates": "off"},
    )  # fmt: skip
    plain = copy.deepcopy(model)
    for _ in range(4):
        optimizer.zero_grad()
        per_example(model, batch).mean().backward()
        optimizer.step()
        gardener.step(batch)
        tended = gardener.tend()
    assert tended.kept
    gardener.close()
    torch.testing.assert_close(export(model, example=EXAMPLE)(EXAMPLE), model(EXAMPLE))
    assert not torch.equal(plain(EXAMPLE), model(EXAMPLE))


class Encoder(nn.Module):
    """A layer of a transformer, a recurrent and a convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.drop = nn.Dropout(0.0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.gru = nn.GRU(8, 5, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(10)
        self.conv = nn.Sequential(nn.Conv1d(10, 7, 1), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool1d(8)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.drop(self.words(ids))
        hidden = hidden + self.attention(hidden, hidden, hidden)[0]
        hidden = self.norm(self.gru(hidden)[0])
        return self.pool(self.conv(hidden.transpose(1, 2)))


KNOWN = {
    "words": "tokens", "drop": "tokens", "attention": "tokens", "gru": "tokens", "norm": "tokens",
    "conv": "sequence", "pool": "sequence",
}  # fmt: skip


@pytest.mark.parametrize("length", [6, 8], ids=["tokens", "as many tokens as features"])
def test_tokens_and_sequences_are_distinguished_by_the_layer_that_computes_them(length):
    places = {name: SlotPlace(name, output=0 if name == "attention" else None) for name in KNOWN}
    model = graft(Encoder(), places, example=torch.randint(9, (4, length)))
    assert {slot.name: slot.site.kind for slot in slots_of(model).each()} == KNOWN
