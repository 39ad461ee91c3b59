"""Registration: what a plugin adds is refused at its line or found by name, and no hook is overlooked."""

import pytest

IMPORTS = (
    "from esper_core import BlueprintSpec, HostSpec, PolicySpec, RewardSpec, SinkSpec, SlotPlace, TaskSpec, hookimpl\n"
    "def build(site): pass\n"
)
PLUGIN = 'plugin "extra" (esper-extra 0.2.0)'


def hook(signature: str = "esper_register_blueprints(registry)", body: str = "pass", marker: str = "@hookimpl") -> str:
    return f"{IMPORTS}{marker}\ndef {signature}:\n    {body}\n"


KNOWN_KINDS, BAD_OUTPUT = "Known: image, sequence, tokens, vector", "It is a key, a field or an index."
NAME = "Lower case letters and digits, joined by single - or _, at most 48 characters."
SPEC, NO_IDENTITY = "A blueprint is declared with BlueprintSpec(...).", "adapts=True, starts_as_identity=False"


@pytest.mark.parametrize(
    ("name", "spec", "message", "hint"),
    [
        ("TinyConv", 'BlueprintSpec("vector")', "E216 {} with an invalid name: 'TinyConv'", NAME),
        ("a", "TaskSpec()", "E217 {} \"a\" with an invalid specification: TaskSpec(summary='', settings=None)", SPEC),
        ("a", 'BlueprintSpec("imgae")', "E217 BlueprintSpec with accepts='imgae', which is not", '"image"?'),
        ("a", 'BlueprintSpec("vector", version="2")', "E217 {} \"a\" with version='2'", "a value of type int."),
        ("a", 'BlueprintSpec("image", adapts=True)', f'E217 {{}} "a" with {NO_IDENTITY}', "An adapter"),
    ],
)
def test_invalid_blueprint_is_refused_at_the_line_that_adds_it(
    load, report, workshop, name, spec, message, hint
) -> None:
    package = workshop.package(hook(body=f'registry.add("{name}", build, {spec})'))
    first, place, last = report(package).splitlines()
    assert first.startswith(message.replace(" {}", f" {PLUGIN} adds the blueprint"))
    assert place == "  esper_extra.py:5"
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
        ('HostSpec(slots={"s": SlotPlace("m", output=0.5)})', "slot 's' on output 0.5", BAD_OUTPUT),
    ],
)
def test_invalid_specification_of_another_kind_is_refused(report, workshop, spec: str, fault: str, hint: str) -> None:
    text = report(workshop.package(hook("esper_register_hosts(registry)", f'registry.add("a", build, {spec})')))
    assert text == f'E217 {PLUGIN} adds the host "a" with {fault}\n  esper_extra.py:5\n  {hint}'


@pytest.mark.parametrize("raised", ["1 / 0", "raise SystemExit", "build(build(1, 2))"])
def test_registration_hook_that_raises_breaks_only_its_plugin(load, workshop, raised: str) -> None:
    plugins = load(workshop.package(hook(body=raised)), workshop.blueprints("tiny", plugin="good"))
    assert [record.status for record in plugins.records] == ["broken", "active"]
    assert [(problem.code, problem.line) for problem in plugins.problems] == [("E221", 5)]
    assert plugins.problems[0].message.startswith(f"{PLUGIN} failed in esper_register_blueprints: ")


def test_registration_hook_that_returns_a_value_is_refused(report, workshop) -> None:
    assert report(workshop.package(hook(body="return [build]"))) == (
        f"E221 {PLUGIN} returns list from esper_register_blueprints, which returns nothing\n"
        "  esper_extra.py:3\n"
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


# --- hooks that would never be called as intended

ARGUMENTS = "The hook is esper_register_tasks(registry); arguments are passed by name, and may be left out."
TASKS = f'E214 {PLUGIN} has an argument "%s" in esper_register_tasks'


@pytest.mark.parametrize(
    ("signature", "fault", "hint"),
    [
        ("esper_register_tasks(registrar)", TASKS % "registrar" + " that the hook does not have", ARGUMENTS),
        ("esper_register_tasks(registry=None)", TASKS % "registry" + " with a default, so", ARGUMENTS),
        ("esper_register_tasks(*, registry)", TASKS % "registry" + " that is keyword-only, which", ARGUMENTS),
    ],
)
def test_hook_that_would_not_be_called_as_intended_is_refused(load, report, workshop, signature, fault, hint) -> None:
    package = workshop.package(hook(signature))
    message, *lines = report(package).splitlines()
    assert message.startswith(fault)
    assert lines == ["  esper_extra.py:3", f"  {hint}"]
    assert [record.status for record in load(package).records] == ["broken"]


def test_generator_and_async_hooks_are_refused(report, workshop) -> None:
    source = hook("esper_register_tasks(registry)", "yield") + "@hookimpl\nasync def esper_register_hosts(): pass\n"
    assert report(workshop.package(source)) == (
        f"E214 {PLUGIN} has an async hook esper_register_hosts, which is never awaited\n"
        "  esper_extra.py:6\n"
        "  Write def.\n"
        f"E214 {PLUGIN} has a hook esper_register_tasks that yields, so its body would never run\n"
        "  esper_extra.py:3\n"
        "  Return instead."
    )


@pytest.mark.parametrize(
    ("source", "hooks"),
    [
        (hook("esper_of_the_future(x)", marker="@hookimpl(optionalhook=True)"), ()),
        (hook("esper_register_tasks()"), ("esper_register_tasks",)),
        (hook("esper_register_hosts(registry, later=None)"), ("esper_register_hosts",)),
        ("from elsewhere import esper_help\nimport elsewhere as esper_elsewhere\nesper_x = 1\n", ()),
    ],
)
def test_optional_hooks_fewer_arguments_and_imported_functions_are_accepted(load, workshop, source, hooks) -> None:
    workshop.write("elsewhere", "def esper_help(): pass\n")
    (record,) = load(workshop.package(source)).records
    assert (record.status, record.hooks, record.problems) == ("active", hooks, ())


def test_unmarked_hook_function_is_a_warning(load, report, workshop) -> None:
    package = workshop.package(
        "def esper_register_blueprints(registry): pass\ndef esper_regster_tasks(registry): pass\n"
    )
    assert [record.status for record in load(package).records] == ["active"]
    rename = "Put @hookimpl above it, or give it another name."
    assert report(package) == (
        f"E222 {PLUGIN} has a function esper_register_blueprints that is not marked as a hook, so it is never called\n"
        f"  esper_extra.py:1\n  {rename}\n"
        f"E222 {PLUGIN} has a function esper_regster_tasks that is not marked as a hook, so it is never called\n"
        f'  esper_extra.py:2\n  {rename}\n  Did you mean "esper_register_tasks"?'
    )


def test_an_object_whose_names_cannot_be_listed_is_a_broken_plugin(load, report, workshop) -> None:
    source = "class Plugin:\n    def __dir__(self): raise SystemExit(1)\nplugin = Plugin()\n"
    package = workshop.package(source, target="esper_extra:plugin")
    assert [record.status for record in load(package).records] == ["broken"]
    head, place, *_ = report(package).splitlines()
    assert head.startswith(f"E221 {PLUGIN} failed while its hooks were looked up: SystemExit: 1")
    assert place == "  esper_extra.py:2"


def test_two_functions_for_one_hook_are_refused(load, workshop) -> None:
    source = hook("esper_register_tasks()") + "@hookimpl(specname='esper_register_tasks')\ndef tasks(): pass\n"
    (problem,) = load(workshop.package(source)).problems
    assert problem.message == f"{PLUGIN} has two functions for esper_register_tasks"
