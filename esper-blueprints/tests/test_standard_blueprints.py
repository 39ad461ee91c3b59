"""Registration and learning of the standard blueprints."""

from __future__ import annotations

import copy
import doctest
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import esper_blueprints
from esper_blueprints import plugin
from esper_core import BlueprintSpec, Site
from esper_core.leyline.specs import SITE_KINDS
from esper_core.plugins import evaluate_formula

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "blueprints.md"

SITES = {
    "image": Site("image", 4, (6, 6)),
    "sequence": Site("sequence", 4, (12,)),
    "vector": Site("vector", 8),
    "tokens": Site("tokens", 8, (5,)),
}


class Book:
    """A registry that only writes down."""

    def __init__(self):
        self.entries = {}

    def add(self, name, target, spec):
        assert name not in self.entries
        module, _, attribute = target.partition(":")
        self.entries[name] = (getattr(import_module(module), attribute), spec)


def registered():
    book = Book()
    plugin.esper_register_blueprints(registry=book)
    return book.entries


ENTRIES = registered()
EVERYWHERE = [(name, kind) for name, (_, spec) in ENTRIES.items() for kind in spec.kinds]


def factory_of(name):
    return ENTRIES[name][0]


def count(block):
    return sum(parameter.numel() for parameter in block.parameters())


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def test_the_plugin_registers_these():
    kinds = {name: " ".join(spec.kinds) for name, (_, spec) in ENTRIES.items()}
    assert kinds == {
        "norm": "image sequence vector tokens",
        "squeeze_excite": "image sequence tokens",
        "pointwise": "image sequence",
        "depthwise_separable": "image sequence",
        "conv_light": "image sequence",
        "conv_heavy": "image sequence",
        "dilated": "image sequence",
        "bottleneck": "image sequence",
        "mlp": "vector tokens",
        "low_rank": "vector tokens",
        "gated_mlp": "vector tokens",
        "lora_small": "tokens",
        "lora_large": "tokens",
        "attention": "tokens",
        "gru_mixer": "tokens",
    }
    assert all(isinstance(spec, BlueprintSpec) and spec.starts_as_identity for _, spec in ENTRIES.values())


@pytest.mark.parametrize("c", [1, 2, 3, 7, 8, 33])
def test_parameters_are_counted_by_hand_for_several_widths(c):
    m = max(c // 4, 1)
    for n, site in ((1, Site("sequence", c, (9,))), (2, Site("image", c, (9, 9)))):
        by_hand = {
            "norm": c + c,
            "squeeze_excite": (c * m + m) + (m * c + c),
            "pointwise": (4 * c * c + 4 * c) + (4 * c * c + c),
            "depthwise_separable": (5**n * c + c) + (c * c + c),
            "conv_light": 2 * (5**n * c * c + c),
            "conv_heavy": (5**n * c * 2 * c + 2 * c) + (5**n * 4 * c * c + 2 * c) + 4 * c + (5**n * 2 * c * c + c),
            "dilated": 3 * (3**n * c * c + c),
            "bottleneck": (c * m + m) + (5**n * m * m + m) + (m * c + c),
        }
        assert {name: count(factory_of(name)(site)) for name in by_hand} == by_hand
    by_hand = {
        "norm": c + c,
        "mlp": (2 * c * c + 2 * c) + (2 * c * c + c),
        "low_rank": c * m + (m * c + c),
        "gated_mlp": 2 * (2 * c * c + 2 * c) + (2 * c * c + c),
    }
    assert {name: count(factory_of(name)(Site("vector", c))) for name in by_hand} == by_hand
    by_hand |= {
        "squeeze_excite": (c * m + m) + (m * c + c),
        "lora_small": 2 * c * max(min(c // 2, 4), 1),
        "lora_large": 2 * c * max(min(c // 2, 16), 1),
        "attention": 3 * c * c + (c * c + c),
        "gru_mixer": 3 * (c * c + c) + 3 * (c * c + c) + (c * c + c),
    }
    assert {name: count(factory_of(name)(Site("tokens", c, (5,)))) for name in by_hand} == by_hand


@pytest.mark.parametrize(("name", "kind"), EVERYWHERE)
def test_the_formula_holds_for_every_width(name, kind):
    factory, spec = ENTRIES[name]
    for c in [*range(1, 18), 24, 33, 64]:
        site = Site.of(kind, {"image": (c, 5, 4), "sequence": (c, 9), "vector": (c,), "tokens": (5, c)}[kind])
        assert count(factory(site)) == evaluate_formula(spec.params, site.formula_variables()), site


@pytest.mark.parametrize(("name", "kind"), EVERYWHERE)
def test_it_starts_as_the_identity_where_numbers_are_ugly_too(name, kind):
    site = SITES[kind]
    for scale in (1.0, 1e-30, 1e4):
        inputs = scale * torch.randn(3, *site.example_shape)
        inputs.view(-1)[:4] = torch.tensor([0.0, -0.0, 1e-42, 3e9])
        block = factory_of(name)(site)
        assert torch.equal(block(inputs), inputs)
        rounded = inputs.to(torch.bfloat16)
        assert torch.equal(block.to(torch.bfloat16)(rounded), rounded)


BLENDS = {
    "add": lambda host, seed, alpha: torch.lerp(host, seed, alpha),
    "residual": lambda host, seed, alpha: host + alpha * (seed - host),
    "multiply": lambda host, seed, alpha: host * (1 + alpha * torch.tanh(seed - host)),
    "gate": lambda host, seed, alpha: host + 2 * alpha * torch.sigmoid(host.mean() - host.mean()) * (seed - host),
}


@pytest.mark.parametrize("blend", BLENDS)
@pytest.mark.parametrize(("name", "kind"), EVERYWHERE)
def test_every_parameter_has_a_gradient_within_two_steps_whatever_the_blend(name, kind, blend):
    site = SITES[kind]
    for alpha in (0.1, 1.0):
        for learner in (lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.Adam(p, lr=0.01)):
            block = factory_of(name)(site)
            optimizer = learner(block.parameters())
            waiting = dict(block.named_parameters())
            for _ in range(2):
                host, wanted = torch.randn(2, 32, *site.example_shape)
                optimizer.zero_grad()
                (BLENDS[blend](host, block(host), alpha) - wanted).square().mean().backward()
                optimizer.step()
                waiting = {key: value for key, value in waiting.items() if not value.grad.any()}
            assert list(waiting) == []


@pytest.mark.parametrize("kind", ["image", "sequence", "tokens"])
@pytest.mark.parametrize("c", [1, 2, 3])
def test_a_summary_of_a_few_features_is_never_dead(kind, c):
    site = Site.of(kind, (9, c) if kind == "tokens" else (c, *SITES[kind].size))
    for name in ("squeeze_excite", "bottleneck"):
        if kind in ENTRIES[name][1].kinds:
            for seed in range(20):
                torch.manual_seed(seed)
                block = factory_of(name)(site)
                optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
                for _ in range(2):
                    host = torch.randn(8, *site.example_shape)
                    optimizer.zero_grad()
                    (block(host) - 2 * host + 1).square().mean().backward()
                    optimizer.step()
                assert [key for key, value in block.named_parameters() if not value.grad.any()] == [], seed


@pytest.mark.parametrize(("name", "kind"), EVERYWHERE)
def test_a_deepcopy_shares_nothing(name, kind):
    site = SITES[kind]
    block = factory_of(name)(site)
    twin = copy.deepcopy(block)
    before = {key: value.clone() for key, value in block.state_dict().items()}
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    assert all(torch.equal(value, before[key]) for key, value in block.state_dict().items())
    assert not torch.equal(twin(torch.ones(2, *site.example_shape)), block(torch.ones(2, *site.example_shape)))


@pytest.mark.parametrize("name", ENTRIES)
def test_a_site_of_another_kind_is_refused(name):
    factory, spec = ENTRIES[name]
    for kind in set(SITE_KINDS) - set(spec.kinds):
        with pytest.raises(ValueError, match=f"Received: {kind}$"):
            factory(SITES[kind])


def test_importing_the_plugin_imports_no_torch():
    code = "import esper_blueprints.plugin, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


MODULES = sorted(path.stem for path in Path(esper_blueprints.__file__).parent.glob("[a-z]*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_true(module):
    found = doctest.testmod(import_module(f"esper_blueprints.{module}"))
    assert found.failed == 0
    assert found.attempted > 0 or module == "plugin"


def test_the_overview_of_the_package_names_each_class_where_it_stands():
    lines = re.findall(r"^    (\w+) +(esper_blueprints\.\w+) ", esper_blueprints.__doc__, flags=re.MULTILINE)
    listed = {getattr(import_module(module), name) for name, module in lines}
    assert listed == {factory for factory, _ in ENTRIES.values()}


@pytest.mark.skipif(not PAGE.exists(), reason="the pages are not beside this package")
def test_the_page_of_the_blueprints_says_what_they_declare():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| `(.*?)` \| (.*?) ?\|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    common = set.intersection(*(set(spec.traits) for _, spec in ENTRIES.values()))
    declared = [
        (
            name,
            ", ".join(spec.kinds),
            spec.params,
            ", ".join(trait.replace("_", " ") for trait in spec.traits if trait not in common),
        )
        for name, (_, spec) in ENTRIES.items()
    ]
    assert rows == declared
    assert common == {"deterministic", "bf16", "dynamic_spatial"}
