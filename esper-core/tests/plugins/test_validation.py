"""Validation: hooks that would never be called as intended are reported at the author's line."""

from __future__ import annotations

import pytest

IMPORTS = "from esper_core import BlueprintSpec, PluginInfo, hookimpl\n"


def hook(signature: str, body: str = "pass", marker: str = "@hookimpl") -> str:
    return f"{IMPORTS}{marker}\ndef {signature}:\n    {body}\n"


PLUGIN = 'plugin "extra" (esper-extra 0.2.0)'
ARGUMENTS = "The hook is esper_register_tasks(registry); arguments are passed by name, and may be left out."


@pytest.mark.parametrize(
    ("signature", "fault", "hint"),
    [
        (
            "esper_register_blueprint(registry)",
            "E213 {} implements a hook that does not exist: esper_register_blueprint",
            'Did you mean "esper_register_blueprints"?',
        ),
        (
            "esper_register_tasks(registrar)",
            'E214 {} has an argument "registrar" in esper_register_tasks that the hook does not have',
            ARGUMENTS,
        ),
        (
            "esper_register_tasks(registry=None)",
            'E214 {} has an argument "registry" in esper_register_tasks with a default,'
            " so its value would never be passed",
            ARGUMENTS,
        ),
        (
            "esper_register_tasks(*, registry)",
            'E214 {} has an argument "registry" in esper_register_tasks that is keyword-only,'
            " which pluggy does not support",
            ARGUMENTS,
        ),
        (
            "esper_run(context)",
            "E214 {} has a hook esper_run that is not a wrapper, so it is never called",
            "Mark it with @hookimpl(wrapper=True), and yield where the run is to be.",
        ),
    ],
)
def test_hook_that_would_not_be_called_as_intended_is_refused(load, told, workshop, signature, fault, hint) -> None:
    package = workshop.package(hook(signature))
    assert told(package) == f"{fault.format(PLUGIN)}\n  esper_extra.py:2\n  {hint}"
    assert [record.status for record in load(package).records] == ["broken"]


def test_optional_unknown_hook_is_accepted(load, workshop) -> None:
    package = workshop.package(hook("esper_of_the_future(x)", marker="@hookimpl(optionalhook=True)"))
    (record,) = load(package).records
    assert (record.status, record.hooks, record.problems) == ("active", (), ())


def test_generator_and_async_hooks_are_refused(told, workshop) -> None:
    source = hook("esper_register_tasks(registry)", "yield") + "@hookimpl\nasync def esper_register_hosts(): pass\n"
    assert told(workshop.package(source)) == (
        f"E214 {PLUGIN} has an async hook esper_register_hosts, which is never awaited\n"
        "  esper_extra.py:5\n"
        "  Write def.\n"
        f"E214 {PLUGIN} has a hook esper_register_tasks that yields, so its body would never run\n"
        "  esper_extra.py:2\n"
        "  Return instead, or mark it with @hookimpl(wrapper=True)."
    )


def test_fewer_arguments_and_extra_defaults_are_accepted(load, workshop) -> None:
    source = hook("esper_register_tasks()") + "@hookimpl\ndef esper_register_hosts(registry, later=None): pass\n"
    assert [record.status for record in load(workshop.package(source)).records] == ["active"]


def test_unmarked_hook_function_is_a_warning(load, told, workshop) -> None:
    package = workshop.package(
        "def esper_register_blueprints(registry): pass\ndef esper_regster_tasks(registry): pass\n"
    )
    assert [record.status for record in load(package).records] == ["active"]
    rename = "Put @hookimpl above it, or give it another name."
    assert told(package) == (
        f"E222 {PLUGIN} has a function esper_register_blueprints that is not marked as a hook, so it is never called\n"
        f"  esper_extra.py:1\n  {rename}\n"
        f"E222 {PLUGIN} has a function esper_regster_tasks that is not marked as a hook, so it is never called\n"
        f'  esper_extra.py:2\n  {rename}\n  Did you mean "esper_register_tasks"?'
    )


def test_imported_functions_are_not_unmarked_hooks(load, workshop) -> None:
    workshop.write("esper_elsewhere", "def esper_help(): pass\n")
    package = workshop.package("from esper_elsewhere import esper_help\nimport esper_elsewhere\nesper_x = 1\n")
    assert load(package).problems == ()


def test_all_faults_of_a_plugin_are_reported_together(load, workshop) -> None:
    source = hook("esper_register_tasks(x)") + "@hookimpl\ndef esper_nope(): pass\ndef esper_mine(): pass\n"
    assert sorted(problem.code for problem in load(workshop.package(source)).problems) == ["E213", "E214", "E222"]


def test_specname_names_the_hook(load, workshop) -> None:
    source = hook(
        "my_blueprints(registry)",
        'registry.add("tiny", "m:T", BlueprintSpec("vector", "c"))',
        "@hookimpl(specname='esper_register_blueprints')",
    )
    (record,) = load(workshop.package(source)).records
    assert (record.hooks, record.components) == (("esper_register_blueprints",), ("extra/tiny",))


OBJECT = f"""{IMPORTS}
class Plugin:
    __hash__ = None
    def __eq__(self, other): raise ValueError("not comparable")
    @property
    def esper_trap(self): raise ValueError("not to be read")
    @hookimpl
    def esper_register_blueprints(self, registry):
        registry.add("tiny", Plugin, BlueprintSpec("vector", "c"))
    @staticmethod
    @hookimpl
    def esper_plugin_info():
        return PluginInfo()
plugin = Plugin()
"""


def test_plugin_can_be_an_object_that_is_neither_hashable_nor_comparable(load, workshop) -> None:
    packages = [workshop.package(OBJECT, plugin=name, target=f"esper_{name}:plugin") for name in ("one", "two")]
    found = load(*packages)
    assert found.problems == ()
    assert [component.id for component in found.registry.components()] == ["one/tiny", "two/tiny"]


def test_plugin_whose_dir_raises_is_broken(told, workshop) -> None:
    source = "class Plugin:\n    def __dir__(self): raise SystemExit(1)\nplugin = Plugin()\n"
    assert told(workshop.package(source, target="esper_extra:plugin")).splitlines()[:2] == [
        f"E221 {PLUGIN} failed while its hooks were looked up: SystemExit: 1",
        "  esper_extra.py:2",
    ]


def test_unsupported_api_level_is_rejected(load, told, workshop) -> None:
    package = workshop.package(hook("esper_plugin_info()", "return PluginInfo(api=2)"))
    assert [(record.status, record.api) for record in load(package).records] == [("rejected", 2)]
    assert told(package) == (
        f"E215 {PLUGIN} was written for API level 2; esper-core 0.1.0 supports 1\n"
        "  esper_extra.py:2\n"
        "  Bring them together:  pip install --upgrade esper-core"
    )


OTHERS = "summary='', homepage=''"


@pytest.mark.parametrize(
    ("returned", "received"),
    [
        ("None", "None"),
        ("{'api': 1}", "{'api': 1}"),
        ("PluginInfo(api='1')", f"PluginInfo(api='1', {OTHERS})"),
        ("PluginInfo(api=True)", f"PluginInfo(api=True, {OTHERS})"),
        ("PluginInfo(api=0)", f"PluginInfo(api=0, {OTHERS})"),
    ],
)
def test_invalid_plugin_info_breaks_the_plugin(load, told, workshop, returned: str, received: str) -> None:
    package = workshop.package(hook("esper_plugin_info()", f"return {returned}"))
    assert [record.status for record in load(package).records] == ["broken"]
    assert told(package) == (
        f"E215 {PLUGIN} does not describe itself: esper_plugin_info returned {received}\n"
        "  esper_extra.py:2\n"
        "  Return PluginInfo(api=1, summary=...)."
    )


def test_plugin_info_that_raises_breaks_the_plugin(told, workshop) -> None:
    assert told(workshop.package(hook("esper_plugin_info()", "return 1 / 0"))).splitlines()[:2] == [
        f"E221 {PLUGIN} failed in esper_plugin_info: ZeroDivisionError: division by zero",
        "  esper_extra.py:4",
    ]


NO_MODEL = "E217 {} has settings that are not a pydantic model: esper_settings_model returned"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("int", f"{NO_MODEL} <class 'int'>"),
        ("{}", f"{NO_MODEL} {{{{}}}}"),
        ("1 / 0", "E221 {} failed in esper_settings_model: ZeroDivisionError: division by zero"),
    ],
)
def test_invalid_settings_model_breaks_the_plugin(load, told, workshop, returned: str, message: str) -> None:
    package = workshop.package(hook("esper_settings_model()", f"return {returned}"))
    assert [record.status for record in load(package).records] == ["broken"]
    head, place, *_ = told(package).splitlines()
    assert head == message.format(PLUGIN)
    assert place in ("  esper_extra.py:2", "  esper_extra.py:4")


def test_two_functions_for_one_hook_are_refused(load, workshop) -> None:
    source = hook("esper_register_tasks()") + "@hookimpl(specname='esper_register_tasks')\ndef tasks(): pass\n"
    (problem,) = load(workshop.package(source)).problems
    assert problem.message == f"{PLUGIN} has two functions for esper_register_tasks"
