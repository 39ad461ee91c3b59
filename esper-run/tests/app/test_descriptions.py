"""Descriptions: blueprints and slots are described as the seeds that grow there, without a trace."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core import SlotPlace, graft
from esper_core.growth import Variety, slots_of
from esper_core.leyline import Action, BlueprintSpec, Op, Site
from esper_run.app.descriptions import SlotDescriptions, count_operations, describe
from tests.support.core_worlds import Net, make_garden, same, sites_of


def unbuildable(site: Site) -> nn.Module:
    raise KeyError(site.kind)


def test_operations_that_torch_cannot_count_are_unknown():
    host = graft(nn.Sequential(nn.ReLU()), ["0"], example=torch.zeros(1, 3))
    assert count_operations(host, {}, {}, torch.zeros(1, 3)) is None


USUAL = sites_of(4, 6, image=(5, 9), sequence=(30,), tokens=(7,))
NARROW = sites_of(1, 1, image=(6, 4), sequence=(12,), tokens=(3,))


def at_each_site(sites: dict[str, Site]) -> list[tuple[Variety, Site]]:
    """Yield every standard blueprint at every kind of site that it accepts."""
    components = pytest.importorskip("esper_testing").components_of("blueprints")
    placed = [(component, kind) for component in components for kind in component.spec.kinds]
    return [(Variety(component.id, component.spec, component.load()), sites[kind]) for component, kind in placed]


def shown(site: Site, stem: nn.Module | None = None) -> nn.Module:
    """Return a module whose output behind ``stem`` fits a site."""
    width = math.prod(site.example_shape)
    return Net(
        lambda net, inputs: net.head(net.norm(net.stem(net.scale * inputs).flatten(1))),
        scale=nn.Parameter(torch.ones(())),
        stem=stem or nn.Tanh(),
        norm=nn.BatchNorm1d(width),
        head=nn.Linear(width, 3),
    )


def germinated(variety: Variety, site: Site) -> int:
    """Return the parameters of a germinated seed, counted in its slot."""
    convolutions = {"image": nn.Conv2d, "sequence": nn.Conv1d}  # beside which an adapter can grow
    stem = convolutions[site.kind](site.channels, site.channels, 1) if site.kind in convolutions else None
    host = graft(shown(site, stem), {"here": SlotPlace("stem", site.kind)}, example=torch.randn(3, *site.example_shape))
    make_garden(host, variety).apply(Action(Op.GERMINATE, "here", variety.id), 0)
    return slots_of(host).named("here").living.parameter_count


@pytest.mark.members
@pytest.mark.parametrize("sites", [USUAL, NARROW], ids=["usual", "narrow"])
def test_every_blueprint_is_described_as_the_seed_that_it_builds(sites):
    for variety, site in at_each_site(sites):
        candidate = describe(variety, site)
        assert candidate.blueprint == variety.id
        assert candidate.parameters == germinated(variety, site), (variety.id, site)
        assert candidate.identity == variety.spec.starts_as_identity
        assert candidate.flops is not None
        assert candidate.flops > 0 or variety.id.endswith(("/norm", "/ia3"))  # which have no product and no convolution


@pytest.mark.parametrize(("site", "dimensions"), [(Site("sequence", 4, (30,)), 1), (Site("image", 3, (8, 10)), 2)])
def test_operations_of_a_convolution_are_counted_exactly(site, dimensions):
    def convolutions(site: Site) -> nn.Module:
        conv = nn.Conv1d if dimensions == 1 else nn.Conv2d
        layers = conv(site.channels, 6, 3, padding=1), nn.ReLU(), conv(6, site.channels, 5, padding=2)
        return nn.Sequential(*layers)

    candidate = describe(Variety("a/b", BlueprintSpec(site.kind), convolutions), site)
    weights = 6 * site.channels * (3**dimensions + 5**dimensions)
    assert candidate.flops == 2 * weights * math.prod(site.size)
    gain = 1  # in front of a block that is not the identity
    assert candidate.parameters == weights + 6 + site.channels + gain


def refusing(site: Site) -> nn.Module:
    def compute(net: Any, hidden: Tensor) -> Tensor:
        raise OSError("not today")

    return Net(compute, shift=nn.Parameter(torch.zeros(site.channels)))


@pytest.mark.parametrize("factory", [unbuildable, refusing])
@pytest.mark.parametrize("kind", USUAL)
def test_description_of_a_broken_blueprint_is_unknown(factory, kind):
    candidate = describe(Variety("a/broken", BlueprintSpec(kind), factory), USUAL[kind])
    channels = USUAL[kind].channels
    assert candidate.flops is None
    assert channels < candidate.parameters <= 2 * channels + 2


def listening(site: Site) -> nn.Module:
    """Return a block that draws when it is built and when it runs, and keeps statistics; a trial leaves no trace."""

    def compute(net: Any, hidden: Tensor) -> Tensor:
        return net.norm(hidden * net.weight) + 0.0 * torch.rand(())

    return Net(compute, weight=nn.Parameter(torch.randn(site.channels, 1)), norm=nn.BatchNorm1d(site.channels))


def observed(site: Site) -> tuple[nn.Module, SlotDescriptions]:
    host = shown(site)
    example = torch.randn(3, *site.example_shape)
    graft(host, {"here": SlotPlace("stem", site.kind), "there": SlotPlace("norm")}, example=example)
    varieties = {"here": [Variety("a/listening", BlueprintSpec(site.kind), listening)]}
    sites = {slot.name: slot.site for slot in slots_of(host)}
    return host, SlotDescriptions(host, sites, varieties, example)


def test_describing_neither_draws_nor_depends_on_random_numbers_and_leaves_the_host_unchanged():
    host, terrain = observed(USUAL["sequence"])
    host.train()
    host.norm.running_mean.fill_(0.5)
    before = {name: value.clone() for name, value in host.state_dict().items()}
    random = torch.get_rng_state()
    (candidate,) = terrain["here"].candidates
    assert candidate.parameters == 3 * 4 + 1
    assert terrain["there"].candidates == ()
    assert torch.equal(torch.get_rng_state(), random)
    assert same(host.state_dict(), before)
    assert host.training
    assert all(parameter.grad is None for parameter in host.parameters())
    variety = Variety("a/listening", BlueprintSpec("sequence"), listening)
    first = describe(variety, USUAL["sequence"])
    torch.manual_seed(2)
    assert describe(variety, USUAL["sequence"]) == first


def test_place_describes_its_host_and_is_computed_once():
    site = USUAL["sequence"]
    host, terrain = observed(site)
    assert (list(terrain), len(terrain)) == (["here", "there"], 2)
    place, other = terrain["here"], terrain["there"]
    assert terrain["here"] is place
    assert (place.kind, place.channels, place.size, place.positions) == ("sequence", 4, (30,), 30)
    assert (other.kind, other.positions) == ("vector", 0)
    assert (place.depth, other.depth) == (0.0, 0.5)
    width = math.prod(site.example_shape)
    parameters = sum(parameter.numel() for parameter in host.parameters())
    assert place.host_parameters == parameters == 1 + 2 * width + 3 * width + 3
    assert place.host_flops == other.host_flops == 2 * 3 * width  # of one example
    with pytest.raises(KeyError):
        terrain["nowhere"]
    assert terrain.get("nowhere") is None
