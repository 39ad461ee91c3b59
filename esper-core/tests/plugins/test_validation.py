"""Validation: hooks that would never be called as intended are reported at the author's line."""

import pytest

IMPORTS = "from esper_core import BlueprintSpec, hookimpl\n"


def hook(signature: str, body: str = "pass", marker: str = "@hookimpl") -> str:
    return f"{IMPORTS}{marker}\ndef {signature}:\n    {body}\n"


PLUGIN = 'plugin "extra" (esper-extra 0.2.0)'
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
    assert lines == ["  esper_extra.py:2", f"  {hint}"]
    assert [record.status for record in load(package).records] == ["broken"]


def test_generator_and_async_hooks_are_refused(report, workshop) -> None:
    source = hook("esper_register_tasks(registry)", "yield") + "@hookimpl\nasync def esper_register_hosts(): pass\n"
    assert report(workshop.package(source)) == (
        f"E214 {PLUGIN} has an async hook esper_register_hosts, which is never awaited\n"
        "  esper_extra.py:5\n"
        "  Write def.\n"
        f"E214 {PLUGIN} has a hook esper_register_tasks that yields, so its body would never run\n"
        "  esper_extra.py:2\n"
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


WILD = "class Plugin:\n    def __dir__(self): raise SystemExit(1)\nplugin = Plugin()\n"


def test_an_object_whose_names_cannot_be_listed_is_a_broken_plugin(load, report, workshop) -> None:
    package = workshop.package(WILD, target="esper_extra:plugin")
    assert [record.status for record in load(package).records] == ["broken"]
    head, place, *_ = report(package).splitlines()
    assert head.startswith(f"E221 {PLUGIN} failed while its hooks were looked up: SystemExit: 1")
    assert place == "  esper_extra.py:2"


def test_two_functions_for_one_hook_are_refused(load, workshop) -> None:
    source = hook("esper_register_tasks()") + "@hookimpl(specname='esper_register_tasks')\ndef tasks(): pass\n"
    (problem,) = load(workshop.package(source)).problems
    assert problem.message == f"{PLUGIN} has two functions for esper_register_tasks"
