"""Registry: invalid components are refused at the line that adds them; valid ones are found by name."""

import pytest

IMPORTS = (
    "from esper_core import BlueprintSpec, HostSpec, PolicySpec, RewardSpec, SinkSpec, SlotPlace, TaskSpec, hookimpl\n"
    "import json\n"
    "def build(site): pass\n"
)


HEAD = 'plugin "extra" (esper-extra 0.2.0)'


def adding(*calls: str, hook: str = "esper_register_blueprints") -> str:
    body = "".join(f"    {call}\n" for call in calls)
    return f"{IMPORTS}@hookimpl\ndef {hook}(registry):\n{body}"


FITS = 'BlueprintSpec("vector")'


KNOWN_KINDS = "Known: image, sequence, tokens, vector"
NAME = "Lower case letters and digits, joined by single - or _, at most 48 characters."

SPEC = "A blueprint is declared with BlueprintSpec(...)."


@pytest.mark.parametrize(
    ("name", "spec", "message", "hint"),
    [
        ("TinyConv", FITS, "E216 {} with an invalid name: 'TinyConv'", NAME),
        ("a", "TaskSpec()", "E217 {} \"a\" with an invalid specification: TaskSpec(summary='', settings=None)", SPEC),
        ("a", 'BlueprintSpec("imgae")', "E217 BlueprintSpec with accepts='imgae', which is not", '"image"?'),
        ("a", 'BlueprintSpec("vector", version="2")', "E217 {} \"a\" with version='2'", "a value of type int."),
        (
            "a",
            'BlueprintSpec("image", adapts=True)',
            'E217 {} "a" with adapts=True, starts_as_identity=False',
            "An adapter",
        ),
    ],
)
def test_invalid_blueprint_is_refused_at_the_line_that_adds_it(
    load, report, workshop, name, spec, message, hint
) -> None:
    package = workshop.package(adding(f'registry.add("{name}", build, {spec})'))
    first, place, last = report(package).splitlines()
    assert first.startswith(message.replace(" {}", f" {HEAD} adds the blueprint"))
    assert place == "  esper_extra.py:6"
    assert hint in last
    plugins = load(package)
    assert [record.status for record in plugins.records] == ["broken"]
    assert plugins.registry.components() == ()


@pytest.mark.parametrize(
    ("spec", "fault", "hint"),
    [
        ("HostSpec(settings={})", "settings={}", 'Settings are a pydantic model class, or "module:Class".'),
        ('HostSpec(slots={"s": "stem"})', "slot 's': 'stem'", 'A slot is "name": SlotPlace("module").'),
        ('HostSpec(slots={"s": SlotPlace("m", "sites")})', "slot 's' of kind 'sites'", KNOWN_KINDS),
        (
            'HostSpec(slots={"s": SlotPlace("m", output=0.5)})',
            "slot 's' on output 0.5",
            "It is a key, a field or an index.",
        ),
    ],
)
def test_invalid_specification_of_another_kind_is_refused(report, workshop, spec: str, fault: str, hint: str) -> None:
    kind = "host" if "Host" in spec else "reward"
    text = report(workshop.package(adding(f'registry.add("a", build, {spec})', hook=f"esper_register_{kind}s")))
    assert text == f'E217 {HEAD} adds the {kind} "a" with {fault}\n  esper_extra.py:6\n  {hint}'


@pytest.mark.parametrize("raised", ["1 / 0", "raise SystemExit", "build(build(1, 2))"])
def test_registration_hook_that_raises_breaks_only_its_plugin(load, workshop, raised: str) -> None:
    plugins = load(workshop.package(adding(raised)), workshop.blueprints("tiny", plugin="good"))
    assert [record.status for record in plugins.records] == ["broken", "active"]
    assert [(problem.code, problem.line) for problem in plugins.problems] == [("E221", 6)]
    assert plugins.problems[0].message.startswith(f"{HEAD} failed in esper_register_blueprints: ")


def test_registration_hook_that_returns_a_value_is_refused(report, workshop) -> None:
    assert report(workshop.package(adding("return [build]"))) == (
        f"E221 {HEAD} returns list from esper_register_blueprints, which returns nothing\n"
        "  esper_extra.py:4\n"
        "  Add to the registry, and return nothing."
    )


def test_inactive_plugins_do_not_make_a_name_ambiguous(load, workshop) -> None:
    packages = [workshop.blueprints("tiny", plugin=name) for name in ("one", "two")]
    assert load(*packages, disable=["two"]).registry.find("blueprint", "tiny").plugin == "one"


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        ("*", ["one/conv_a", "one/conv_b", "two/conv_a", "two/norm"]),
        ("two/*", ["two/conv_a", "two/norm"]),
        ("*/conv_a", ["one/conv_a", "two/conv_a"]),
        ("conv_[!a]", ["one/conv_b"]),
        ("nor?", ["two/norm"]),
        ("one/conv_a", ["one/conv_a"]),
    ],
)
def test_match_returns_the_components_of_a_glob(load, workshop, pattern: str, ids: list[str]) -> None:
    first = workshop.blueprints("conv_b", "conv_a", plugin="one")
    second = workshop.blueprints("norm", "conv_a", plugin="two")
    assert [component.id for component in load(second, first).registry.match("blueprint", pattern)] == ids
