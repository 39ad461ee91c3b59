"""Descriptions of places and candidates: exact counts, without a trace, and computed only on demand."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core import BlueprintSpec, Site, SlotPlace, graft
from esper_core.growth import (
    Garden,
    GrowthConfig,
    OptimizerConfig,
    OptimizerKeeper,
    PlaceDescriptions,
    Variety,
    describe,
    slots_of,
)
from esper_core.growth.trials import flops, reach
from esper_core.leyline import Action, Op

USUAL = {
    "image": Site("image", 4, (5, 9)),
    "sequence": Site("sequence", 4, (30,)),
    "vector": Site("vector", 6, inputs=6),
    "tokens": Site("tokens", 6, (7,), inputs=6),
}
NARROW = {
    "image": Site("image", 1, (6, 4)),
    "sequence": Site("sequence", 1, (12,)),
    "vector": Site("vector", 1, inputs=1),
    "tokens": Site("tokens", 1, (3,), inputs=1),
}


def every_blueprint() -> list[Any]:
    testing = pytest.importorskip("esper_testing")
    return list(testing.components_of("blueprints"))


def at_each_site(sites: dict[str, Site]) -> list[tuple[Variety, Site]]:
    """Every blueprint that comes with Esper, wherever it may grow."""
    return [
        (Variety(one.id, one.spec, one.load()), sites[kind])
        for one in every_blueprint()
        for kind in one.spec.kinds
        if kind in sites
    ]


class Shown(nn.Module):
    """Something that puts out what a site sees."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.stem = nn.Tanh()
        self.norm = nn.BatchNorm1d(math.prod(site.example_shape))
        self.head = nn.Linear(math.prod(site.example_shape), 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.norm(self.stem(self.scale * inputs).flatten(1)))


def germinated(variety: Variety, site: Site) -> int:
    """Parameters of a seed that is planted to be added, counted in its slot."""
    host = Shown(site)
    graft(host, {"here": SlotPlace("stem", site.kind)}, example=torch.randn(3, *site.example_shape))
    adam = OptimizerConfig()
    keeper = OptimizerKeeper(host.parameters(), host_settings=adam, seed_settings=adam)
    garden = Garden(host, keeper, {"here": [variety]}, seed=0, batches=1, settings=GrowthConfig())
    garden.apply(Action(Op.GERMINATE, "here", variety.id), 0)
    (seed,) = slots_of(host).named("here").stack
    return seed.parameter_count


@pytest.mark.members
@pytest.mark.parametrize("sites", [USUAL, NARROW], ids=["usual", "narrow"])
def test_every_blueprint_is_described_as_the_seed_that_it_builds(sites: dict[str, Site]) -> None:
    for variety, site in at_each_site(sites):
        told = describe(variety, site)
        assert told.blueprint == variety.id
        assert told.parameters == germinated(variety, site), (variety.id, site)
        assert (told.identity, told.traits) == (variety.spec.starts_as_identity, variety.spec.traits)
        assert told.flops is not None
        assert told.flops > 0 or variety.id.endswith("/norm")  # it has no product and no convolution


LONG = {"sequence": Site("sequence", 4, (30,)), "tokens": Site("tokens", 6, (30,)), "vector": Site("vector", 6)}


@pytest.mark.members
@pytest.mark.parametrize(
    ("name", "kind", "seen"),
    [
        ("attention", "tokens", 30), ("gru_mixer", "tokens", 16), ("norm", "tokens", 1), ("norm", "sequence", 30),
        ("squeeze_excite", "sequence", 30), ("dilated", "sequence", 27), ("conv_light", "sequence", 9),
        ("pointwise", "sequence", 1), ("mlp", "vector", 0),
    ],
)  # fmt: skip
def test_reach_is_the_number_of_positions_that_one_output_position_sees(name: str, kind: str, seen: int) -> None:
    (variety,) = {one.id: one for one, _ in at_each_site(LONG) if one.id.endswith(f"/{name}")}.values()
    assert describe(variety, LONG[kind]).reach == seen


class Convolutions(nn.Module):
    def __init__(self, site: Site) -> None:
        super().__init__()
        conv = nn.Conv1d if site.kind == "sequence" else nn.Conv2d
        self.layers = nn.Sequential(
            conv(site.channels, 6, 3, padding=1), nn.ReLU(), conv(6, site.channels, 5, padding=2)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layers(hidden)


@pytest.mark.parametrize(("site", "dimensions"), [(Site("sequence", 4, (30,)), 1), (Site("image", 3, (8, 10)), 2)])
def test_operations_of_a_convolution_are_counted_exactly(site: Site, dimensions: int) -> None:
    told = describe(Variety("a/b", BlueprintSpec(site.kind, "1"), Convolutions), site)
    weights = 6 * site.channels * (3**dimensions + 5**dimensions)
    assert told.flops == 2 * weights * math.prod(site.size)
    assert told.reach == 7
    assert told.parameters == weights + 6 + site.channels + 1  # the gain behind which it is eased in


def test_operations_of_attention_are_counted_exactly() -> None:
    """Wherever it is computed: torch takes a shortcut of its own on each device, and counts only some."""
    tokens = torch.randn(1, 2, 5, 3)
    counted = flops(lambda: nn.functional.scaled_dot_product_attention(tokens, tokens, tokens))
    assert counted == 2 * (2 * 2 * 5 * 5 * 3)


class Quiet(nn.Module):
    """The identity, though nobody says so."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.gain * hidden


def test_undeclared_identity_is_counted_without_a_gain() -> None:
    variety = Variety("a/quiet", BlueprintSpec("sequence", "1"), Quiet)
    assert describe(variety, USUAL["sequence"]).parameters == germinated(variety, USUAL["sequence"]) == 1


class Refusing(nn.Module):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(site.channels))

    def forward(self, hidden: Tensor) -> Tensor:
        raise OSError("not today")


class Reshaping(Refusing):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.sum() + self.shift.sum()


def unbuilt(site: Site) -> nn.Module:
    raise OSError("out of clay")


@pytest.mark.parametrize("factory", [unbuilt, Refusing])
@pytest.mark.parametrize("kind", USUAL)
def test_description_of_a_broken_blueprint_is_unknown(factory: Callable[[Site], Any], kind: str) -> None:
    told = describe(Variety("a/broken", BlueprintSpec(kind, "c"), factory), USUAL[kind])
    channels = USUAL[kind].channels
    assert told.flops is None
    assert told.reach == (0 if kind == "vector" and factory is Refusing else None)
    assert channels < told.parameters <= 2 * channels + 2


def test_block_with_another_output_shape_has_no_reach() -> None:
    assert reach(Reshaping(USUAL["sequence"]), USUAL["sequence"]) is None


class Listening(nn.Module):
    """Draws when it is built, when it runs, and keeps what it saw: whoever asks it must leave no trace elsewhere."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(site.channels, 1))
        self.norm = nn.BatchNorm1d(site.channels)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden * self.weight) + 0.0 * torch.rand(())


def observed(site: Site) -> tuple[Shown, PlaceDescriptions]:
    host = Shown(site)
    example = torch.randn(3, *site.example_shape)
    graft(host, {"here": SlotPlace("stem", site.kind), "there": SlotPlace("norm")}, example=example)
    varieties = {"here": [Variety("a/listening", BlueprintSpec(site.kind, "3*c"), Listening)]}
    sites = {slot.name: slot.site for slot in slots_of(host).each()}
    return host, PlaceDescriptions(host, sites, varieties, example)


def test_describing_draws_no_random_numbers_and_leaves_the_host_unchanged() -> None:
    host, terrain = observed(USUAL["sequence"])
    host.train()
    host.norm.running_mean.fill_(0.5)
    before = {name: value.clone() for name, value in host.state_dict().items()}
    random = torch.get_rng_state()
    (candidate,) = terrain["here"].candidates
    assert (candidate.parameters, candidate.reach) == (3 * 4 + 1, 1)
    assert terrain["there"].candidates == ()
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in host.state_dict().items())
    assert host.training
    assert all(parameter.grad is None for parameter in host.parameters())


def test_place_describes_its_host_and_is_computed_once() -> None:
    site = USUAL["sequence"]
    host, terrain = observed(site)
    assert (list(terrain), len(terrain)) == (["here", "there"], 2)
    place, other = terrain["here"], terrain["there"]
    assert terrain["here"] is place
    assert (place.kind, place.channels, place.size, place.positions) == ("sequence", 4, (30,), 30)
    assert (other.kind, other.positions) == ("vector", 0)
    assert (place.depth, other.depth) == (0.0, 0.5)
    width = math.prod(site.example_shape)
    assert place.host_parameters == sum(one.numel() for one in host.parameters()) == 1 + 2 * width + 3 * width + 3
    assert place.host_flops == other.host_flops == 2 * 3 * width  # of one example
    with pytest.raises(KeyError):
        terrain["nowhere"]
    assert terrain.get("nowhere") is None


def test_description_does_not_depend_on_the_default_generator() -> None:
    variety = Variety("a/listening", BlueprintSpec("sequence", "3*c"), Listening)
    torch.manual_seed(1)
    first = describe(variety, USUAL["sequence"])
    torch.manual_seed(2)
    assert describe(variety, USUAL["sequence"]) == first


RUN = """
import sys
from esper_core.cli import main
try:
    main(["run", "run.yaml", "--quiet"])
except SystemExit as end:
    assert not end.code, end.code
print([name in sys.modules for name in ("torch", "torch.utils.flop_counter", "torch._dynamo")])
"""


@pytest.mark.slow
@pytest.mark.members
def test_run_without_descriptions_does_not_import_the_counter(tmp_path: Path) -> None:
    """It takes longer to load than a small run does."""
    (tmp_path / "run.yaml").write_text(
        "task: stripes\nhost: pointwise-mlp\nslots:\n  early: {blueprints: [conv_light]}\npolicy: heuristic\n"
        "environments: 1\nepisode: {steps: 8, batches: 1, batch_size: 20}\ncapacity: false\n"
    )
    done = subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[True, False, False]"
