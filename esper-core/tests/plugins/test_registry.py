"""Registry: invalid components are refused at the line that adds them; valid ones are found by name."""

from __future__ import annotations

import pytest

from esper_core.leyline import ConfigError, PluginError
from esper_core.leyline.specs import COMPONENT_KINDS
from esper_core.plugins.records import KINDS
from esper_core.plugins.validation import known_hooks

IMPORTS = (
    "from esper_core import BlueprintSpec, HostSpec, PolicySpec, RewardSpec, SinkSpec, SlotPlace, TaskSpec, hookimpl\n"
    "import json\n"
    "def build(site): pass\n"
)


HEAD = 'plugin "extra" (esper-extra 0.2.0)'


def adding(*calls: str, hook: str = "esper_register_blueprints") -> str:
    body = "".join(f"    {call}\n" for call in calls)
    return f"{IMPORTS}@hookimpl\ndef {hook}(registry):\n{body}"


def test_added_component_is_found_with_its_package(load, workshop) -> None:
    source = adding('registry.add("tiny-conv", "my.blocks:Tiny", BlueprintSpec("image", "9*c*c", "Small."))')
    found = load(workshop.package(source))
    (component,) = found.registry.components()
    assert (component.id, component.short, component.kind) == ("extra/tiny-conv", "tiny-conv", "blueprint")
    assert (component.plugin, component.package, component.version) == ("extra", "esper-extra", "0.2.0")
    assert (component.target, component.spec.kinds) == ("my.blocks:Tiny", ("image",))
    (record,) = found.records
    assert (record.hooks, record.components) == (("esper_register_blueprints",), ("extra/tiny-conv",))


@pytest.mark.parametrize(
    ("hook", "kind", "spec"),
    [
        ("esper_register_hosts", "host", 'HostSpec("A host.", {"early": SlotPlace("stem", "image")}, "m:Settings")'),
        ("esper_register_policies", "policy", "PolicySpec()"),
        ("esper_register_rewards", "reward", "RewardSpec()"),
        ("esper_register_sinks", "sink", "SinkSpec()"),
        ("esper_register_tasks", "task", "TaskSpec()"),
    ],
)
def test_each_registration_hook_adds_its_kind(load, workshop, hook: str, kind: str, spec: str) -> None:
    found = load(workshop.package(adding(f'registry.add("a", build, {spec})', hook=hook)))
    assert [(one.kind, one.id) for one in found.registry.components()] == [(kind, "extra/a")]
    assert found.problems == ()


def test_every_kind_has_a_hook_and_a_specification() -> None:
    assert set(KINDS) == set(COMPONENT_KINDS)
    assert {kind.hook for kind in KINDS.values()} == {
        name for name in known_hooks() if name.startswith("esper_register_")
    }


def test_components_of_two_kinds_may_share_a_name(load, workshop) -> None:
    source = adding('registry.add("a", build, BlueprintSpec("vector", "c"))')
    source += '@hookimpl\ndef esper_register_tasks(registry):\n    registry.add("a", build, TaskSpec())\n'
    assert [one.kind for one in load(workshop.package(source)).registry.components()] == ["blueprint", "task"]


FITS = 'BlueprintSpec("vector", "c")'


FORMULA = (
    "Names: c channels, n spatial dimensions, h height, w width, l length, t tokens. "
    "Operators: + - * // ** ( ) min max."
)

REFUSED = {
    "a bad name": (
        f'registry.add("TinyConv", build, {FITS})',
        f"E216 {HEAD} adds the blueprint with an invalid name: 'TinyConv'",
        "Lower case letters and digits, joined by single - or _, at most 48 characters.",
    ),
    "a name that is no text": (
        f"registry.add(7, build, {FITS})",
        f"E216 {HEAD} adds the blueprint with an invalid name: 7",
        "Lower case letters and digits, joined by single - or _, at most 48 characters.",
    ),
    "another kind's specification": (
        'registry.add("a", build, TaskSpec())',
        f"E217 {HEAD} adds the blueprint \"a\" with an invalid specification: TaskSpec(summary='', settings=None)",
        "A blueprint is declared with BlueprintSpec(...).",
    ),
    "an unknown kind of site": (
        'registry.add("a", build, BlueprintSpec(("vector", "imgae"), "c"))',
        f"E217 {HEAD} adds the blueprint \"a\" with accepts='imgae', which is not a kind of site",
        'Did you mean "image"?',
    ),
    "no kind of site": (
        'registry.add("a", build, BlueprintSpec((), "c"))',
        f'E217 {HEAD} adds the blueprint "a" with accepts=(), which is not a kind of site',
        "Known: image, sequence, tokens, vector",
    ),
    "a version that is no number": (
        'registry.add("a", build, BlueprintSpec("vector", "c", version="2"))',
        f"E217 {HEAD} adds the blueprint \"a\" with version='2'",
        "Expected a value of type int.",
    ),
    "a truth that is none": (
        'registry.add("a", build, BlueprintSpec("vector", "c", starts_as_identity=1))',
        f'E217 {HEAD} adds the blueprint "a" with starts_as_identity=1',
        "Expected a value of type bool.",
    ),
    "a trait that is none": (
        'registry.add("a", build, BlueprintSpec("vector", "c", traits=("bf16", "determinstic")))',
        f"E217 {HEAD} adds the blueprint \"a\" with the trait 'determinstic', which does not exist",
        'Did you mean "deterministic"?',
    ),
    "a summary that is no text": (
        'registry.add("a", build, BlueprintSpec("vector", "c", None))',
        f'E217 {HEAD} adds the blueprint "a" with summary=None',
        "Expected a value of type str.",
    ),
    "a formula with an unknown name": (
        'registry.add("a", build, BlueprintSpec("vector", "c*h"))',
        f'E218 {HEAD} adds the blueprint "a" with an invalid formula for vector sites:'
        ' unknown name "h"; known here: c, n. Received: "c*h"',
        FORMULA,
    ),
    "a formula that holds for one of its kinds only": (
        'registry.add("a", build, BlueprintSpec(("image", "tokens"), "c*h"))',
        f'E218 {HEAD} adds the blueprint "a" with an invalid formula for tokens sites:'
        ' unknown name "h"; known here: c, n, t. Received: "c*h"',
        FORMULA,
    ),
    "a formula that is a number": (
        'registry.add("a", build, BlueprintSpec("vector", 64))',
        f'E218 {HEAD} adds the blueprint "a" with an invalid formula for vector sites:'
        ' a formula is text such as "9*c*c". Received: int',
        FORMULA,
    ),
    "a negative formula": (
        'registry.add("a", build, BlueprintSpec("vector", "c - 100"))',
        f'E218 {HEAD} adds the blueprint "a" with -92 parameters'
        " for Site(kind='vector', channels=8, size=()): \"c - 100\"",
        FORMULA,
    ),
    "a target that cannot be called": (
        f'registry.add("a", 7, {FITS})',
        f'E219 {HEAD} adds the blueprint "a" with a target that cannot be called: 7',
        'A target is a class, a function, or "module:attribute".',
    ),
    "a target without an attribute": (
        f'registry.add("a", "my.blocks.Tiny", {FITS})',
        f"E219 {HEAD} adds the blueprint \"a\" with a target that cannot be called: 'my.blocks.Tiny'",
        'A target is a class, a function, or "module:attribute".',
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_component_is_refused_at_the_line_that_adds_it(load, told, workshop, case: str) -> None:
    call, first, hint = REFUSED[case]
    package = workshop.package(adding(call))
    assert told(package) == f"{first}\n  esper_extra.py:6\n  {hint}"
    found = load(package)
    assert [record.status for record in found.records] == ["broken"]
    assert found.registry.components() == ()


HOSTS = {
    "settings that are no model": (
        "HostSpec(settings={})",
        "settings={}",
        'Settings are a pydantic model class, or "module:Class".',
    ),
    "a slot that is text": (
        'HostSpec(slots={"early": "stem"})',
        "slot 'early': 'stem'",
        'A slot is "name": SlotPlace("module").',
    ),
    "a slot of an unknown kind": (
        'HostSpec(slots={"early": SlotPlace("stem", "vectors")})',
        "slot 'early' of kind 'vectors'",
        'Did you mean "vector"?',
    ),
}


@pytest.mark.parametrize("case", HOSTS)
def test_invalid_host_specification_is_refused(told, workshop, case: str) -> None:
    spec, fault, hint = HOSTS[case]
    text = told(workshop.package(adding(f'registry.add("a", build, {spec})', hook="esper_register_hosts")))
    assert text == f'E217 {HEAD} adds the host "a" with {fault}\n  esper_extra.py:6\n  {hint}'


@pytest.mark.parametrize("family", ["None", "3"])
def test_invalid_reward_family_is_refused(told, workshop, family: str) -> None:
    spec = f"RewardSpec(family={family})"
    text = told(workshop.package(adding(f'registry.add("a", build, {spec})', hook="esper_register_rewards")))
    hint = "Expected a value of type str."
    assert text == f'E217 {HEAD} adds the reward "a" with family={family}\n  esper_extra.py:6\n  {hint}'


def test_duplicate_name_in_a_plugin_is_refused(told, workshop) -> None:
    source = adding(f'registry.add("a", build, {FITS})', f'registry.add("a", "m:Other", {FITS})')
    assert told(workshop.package(source)) == (
        f'E220 {HEAD} adds the blueprint "a" twice\n  esper_extra.py:7\n  Give one of them another name.'
    )


def test_faults_of_all_registration_hooks_are_reported(load, workshop) -> None:
    source = adding('registry.add("A", build, None)')
    source += "@hookimpl\ndef esper_register_tasks(registry):\n    json.loads('{')\n"
    found = load(workshop.package(source))
    assert [(problem.code, problem.line) for problem in found.problems] == [("E216", 6), ("E221", 9)]


@pytest.mark.parametrize("raised", ["1 / 0", "raise SystemExit", "build(build(1, 2))"])
def test_registration_hook_that_raises_breaks_only_its_plugin(load, workshop, raised: str) -> None:
    found = load(workshop.package(adding(raised)), workshop.blueprints("tiny", plugin="good"))
    assert [record.status for record in found.records] == ["broken", "active"]
    assert [(problem.code, problem.line) for problem in found.problems] == [("E221", 6)]
    assert found.problems[0].message.startswith(f"{HEAD} failed in esper_register_blueprints: ")


def test_missing_argument_of_add_is_reported_at_its_line(told, workshop) -> None:
    assert told(workshop.package(adding('registry.add("a", build)'))).splitlines()[:2] == [
        f"E221 {HEAD} failed in esper_register_blueprints: TypeError:"
        " ComponentRegistrar.add() missing 1 required positional argument: 'spec'",
        "  esper_extra.py:6",
    ]


def test_registration_hook_that_returns_a_value_is_refused(told, workshop) -> None:
    assert told(workshop.package(adding("return [build]"))) == (
        f"E221 {HEAD} returns list from esper_register_blueprints, which returns nothing\n"
        "  esper_extra.py:4\n"
        "  Add to the registry, and return nothing."
    )


TASK = "from esper_core import TaskSpec, hookimpl\n@hookimpl\ndef esper_register_tasks(registry):\n    {body}\n"


@pytest.fixture
def refusal(workshop):
    """``refusal(look)``: the error that ``look()`` raises, and its text."""

    def catch(look) -> tuple[type, str]:
        with pytest.raises((ConfigError, PluginError)) as caught:
            look()
        return type(caught.value), str(caught.value).replace(f"{workshop.folder}/", "")

    return catch


def test_find_accepts_short_name_and_full_id(load, workshop) -> None:
    registry = load(workshop.blueprints("tiny", "wide")).registry
    assert registry.find("blueprint", "tiny") is registry.find("blueprint", "extra/tiny")


def test_inactive_plugins_do_not_make_a_name_ambiguous(load, workshop) -> None:
    packages = [workshop.blueprints("tiny", plugin=name) for name in ("one", "two")]
    assert load(*packages, disable=["two"]).registry.find("blueprint", "tiny").plugin == "one"


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        ("*", ["one/conv_a", "one/conv_b", "two/conv_a", "two/norm"]),
        ("conv_*", ["one/conv_a", "one/conv_b", "two/conv_a"]),
        ("two/*", ["two/conv_a", "two/norm"]),
        ("*/conv_a", ["one/conv_a", "two/conv_a"]),
        ("conv_[!a]", ["one/conv_b"]),
        ("nor?", ["two/norm"]),
        ("norm", ["two/norm"]),
        ("one/conv_a", ["one/conv_a"]),
    ],
)
def test_match_returns_the_components_of_a_glob(load, workshop, pattern: str, ids: list[str]) -> None:
    one = workshop.blueprints("conv_b", "conv_a", plugin="one")
    two = workshop.blueprints("norm", "conv_a", plugin="two")
    assert [component.id for component in load(two, one).registry.match("blueprint", pattern)] == ids


def test_pattern_without_wildcards_is_a_name(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny")).registry
    assert refusal(lambda: registry.match("blueprint", "tinny"))[1].startswith('E201 unknown blueprint "tinny"')


def test_components_are_sorted_by_kind_and_id(load, workshop) -> None:
    found = load(
        workshop.package(TASK.format(body='registry.add("a", "m:A", TaskSpec())'), plugin="aa"),
        workshop.blueprints("b", "a"),
    )
    assert [one.id for one in found.registry.components()] == ["extra/a", "extra/b", "aa/a"]
    assert [one.id for one in found.registry.components("task")] == ["aa/a"]


def component(load, workshop, target: str, spec: str = "TaskSpec()"):
    body = f'registry.add("signals", "{target}", {spec})'
    return load(workshop.package(TASK.format(body=body))).registry.find("task", "signals")


def test_find_any_returns_the_components_of_all_kinds_with_a_name(load, workshop, refusal) -> None:
    task = workshop.package(TASK.format(body='registry.add("tiny", "m:A", TaskSpec())'), plugin="data")
    registry = load(workshop.blueprints("tiny", "wide"), task).registry
    assert [one.id for one in registry.find_any("tiny")] == ["extra/tiny", "data/tiny"]
    assert [one.id for one in registry.find_any("extra/wide")] == ["extra/wide"]
    assert refusal(lambda: registry.find_any("wid"))[1] == (
        'E200 unknown component "wid"\n  Did you mean "wide" (esper-extra 0.2.0)?\n  List them:  esper components list'
    )
