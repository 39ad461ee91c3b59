"""Models with slots on a part of a structured output: a tuple, a dictionary, a dataclass."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from esper_core import graft
from esper_core.growth import Variety
from esper_core.leyline import BlueprintSpec, SlotPlace
from tests.support.core_worlds import Bend, add_seed

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
KINDS = {
    "tuple": None, "last": -1, "list": 0, "named tuple": 1, "dict": None, "ordered": "hidden", "dataclass": None,
}  # fmt: skip
EXAMPLE = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


BEND = Variety("test/bend", BlueprintSpec("vector"), Bend)


def grafted(kind: str) -> nn.Module:
    torch.manual_seed(1)
    return graft(Host(kind), {"here": SlotPlace("part", output=KINDS[kind])}, example=EXAMPLE)


def grown(kind: str) -> nn.Module:
    model = grafted(kind)
    add_seed(model, "here", fossil=True, spec=BEND.spec, identity=True).kept = 3
    return model.eval()
