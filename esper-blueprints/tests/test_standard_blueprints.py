"""The standard blueprints are registered, conform, learn, and can be exported without Esper."""

import re
from itertools import groupby
from pathlib import Path

import pytest
import torch
from torch import nn

from esper_blueprints.plugin import BLUEPRINTS
from esper_core import Site, SlotPlace, graft
from esper_core.growth import Variety
from esper_core.growth.trials import audition
from esper_core.leyline.specs import SITE_KINDS
from esper_grow import export
from esper_testing.components import components_of, plugin_checks
from tests.support.core_worlds import add_seed, sites_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "blueprints.md"
SITES = sites_of(4, 8, image=(6, 6), sequence=(12,), tokens=(5,))
OF_64 = sites_of(64, 64, image=(8, 8), sequence=(8,), tokens=(8,))
BUILT = {blueprint.short: blueprint.load() for blueprint in components_of("blueprints")}
ENTRIES = {name: (BUILT[name], spec) for name, (_, spec) in BLUEPRINTS.items()}
EVERYWHERE = [(name, kind) for name, (_, spec) in ENTRIES.items() for kind in spec.kinds]


@pytest.mark.parametrize(("name", "kind"), EVERYWHERE)
def test_it_starts_as_the_identity_for_denormal_and_large_numbers(name, kind):
    site, (factory, spec) = SITES[kind], ENTRIES[name]
    for scale in (1.0, 1e-30, 1e4):
        inputs = scale * torch.randn(3, *site.example_shape)
        inputs.view(-1)[:4] = torch.tensor([0.0, -0.0, 1e-42, 3e9])
        block, kept = Variety(name, spec, factory).build_alone(site), 0.0 if spec.adapts else 1.0
        assert torch.equal(block(inputs), kept * inputs)
        rounded = inputs.to(torch.bfloat16)
        assert torch.equal(block.to(torch.bfloat16)(rounded), kept * rounded)


@pytest.mark.parametrize(("name", "kind"), [("squeeze_excite", "tokens"), ("bottleneck", "sequence")])
@pytest.mark.parametrize("c", [1, 2, 3])
def test_a_bottleneck_of_a_few_features_is_never_dead(name, kind, c):
    site = Site.of(kind, (9, c) if kind == "tokens" else (c, *SITES[kind].size))
    for seed in range(6):
        torch.manual_seed(seed)
        block = ENTRIES[name][0](site)
        optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
        for _ in range(2):
            host = torch.randn(8, *site.example_shape)
            optimizer.zero_grad()
            (block(host) - 2 * host + 1).square().mean().backward()
            optimizer.step()
        assert [key for key, value in block.named_parameters() if not value.grad.any()] == [], seed


def test_a_narrow_block_is_tried_on_so_many_examples_that_its_units_act():
    factory, spec = ENTRIES["mlp"]
    assert audition(Variety("blueprints/mlp", spec, factory), Site("vector", 1), torch.device("cpu")) is None


@pytest.mark.parametrize("name", ENTRIES)
def test_a_site_of_another_kind_is_refused(name):
    factory, spec = ENTRIES[name]
    for kind in set(SITE_KINDS) - set(spec.kinds):
        with pytest.raises(ValueError, match=f"Received: {kind}$"):
            factory(SITES[kind])


@pytest.mark.skipif(not PAGE.exists(), reason="the pages are not beside this package")
def test_the_reference_page_shows_what_blueprints_declare():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| ([\d,]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [
        (name, ", ".join(spec.kinds), f"{Variety(name, spec, factory).block_parameters(OF_64[spec.kinds[-1]]):,}")
        for name, (factory, spec) in ENTRIES.items()
    ]


COSTLY = {"gradient_within_two_steps", "loss_falls_within_fifty_steps", "host_stands_still_while_incubating"}
COSTLY |= {"lives_a_whole_life", "imports_cleanly"}
"""Checks that train or start an interpreter: in the fast suite for ``SAMPLE``, in the slow suite for the others."""
SAMPLE = {("conv_light", None), ("conv_light", "image"), ("mlp", "vector")}
"""Blueprints and kinds of sites."""


def cases():
    """Yield the cases of one check and blueprint; those of the slow suite separately."""

    def group(check):
        return check.component, check.name, check.name in COSTLY and (check.component, check.case) not in SAMPLE

    for (component, name, slow), checks in groupby(sorted(plugin_checks("blueprints"), key=group), key=group):
        marks = pytest.mark.install if slow else []  # this suite must pass for every change
        yield pytest.param(list(checks), marks=marks, id=f"{component}-{name}{'-slow' if slow else ''}")


@pytest.mark.parametrize("checks", list(cases()))
def test_it_conforms(checks):
    for check in checks:
        try:
            check.run()
        except Exception as error:
            error.add_note(check.id)
            raise


@pytest.mark.parametrize("kind", SITES)
def test_what_grew_from_each_blueprint_is_exported_exactly(kind, tmp_path):
    example = torch.randn(3, *sites_of(8, 8, image=(6, 6), sequence=(12,), tokens=(12,))[kind].example_shape)
    blueprints = [component for component in components_of("blueprints") if kind in component.spec.accepts]
    blueprints = [blueprint for blueprint in blueprints if not blueprint.spec.reads_layer]  # it is merged, or refused
    assert blueprints
    layers: dict[str, nn.Module] = {"sequence": nn.Conv1d(8, 8, 1), "image": nn.Conv2d(8, 8, 1)}
    behind = layers.get(kind, nn.Linear(8, 8))
    model = graft(nn.Sequential(behind), {"it": SlotPlace("0", kind, stack=len(blueprints))}, example=example)
    for component in blueprints:
        add_seed(model, "it", component.load(), fossil=True, noise=0.1, spec=component.spec, blueprint=component.id)
    plain = export(model, path=tmp_path, example=example)
    assert torch.equal(plain.eval()(example), model.eval()(example))
