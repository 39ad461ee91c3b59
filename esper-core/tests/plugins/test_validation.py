"""Validation: hooks that would never be called as intended are reported at the author's line."""

from __future__ import annotations

import pytest

IMPORTS = "from esper_core import BlueprintSpec, PluginInfo, hookimpl\n"


def hook(signature: str, body: str = "pass", marker: str = "@hookimpl") -> str:
    return f"{IMPORTS}{marker}\ndef {signature}:\n    {body}\n"


def test_unknown_hook_suggests_the_nearest(load, told, workshop) -> None:
    package = workshop.package(hook("esper_register_blueprint(registry)"))
    assert told(package) == (
        'E213 plugin "extra" (esper-extra 0.2.0) implements a hook that does not exist: esper_register_blueprint\n'
        "  esper_extra.py:2\n"
        '  Did you mean "esper_register_blueprints"?'
    )
    assert [record.status for record in load(package).records] == ["broken"]


def test_optional_unknown_hook_is_accepted(load, workshop) -> None:
    package = workshop.package(hook("esper_of_the_future(x)", marker="@hookimpl(optionalhook=True)"))
    (record,) = load(package).records
    assert (record.status, record.hooks, record.problems) == ("active", (), ())


def test_unknown_hook_argument_is_reported(told, workshop) -> None:
    assert told(workshop.package(hook("esper_register_blueprints(registrar)"))) == (
        'E214 plugin "extra" (esper-extra 0.2.0) has an argument "registrar" in esper_register_blueprints'
        " that the hook does not have\n"
        "  esper_extra.py:2\n"
        "  The hook is esper_register_blueprints(registry); arguments are passed by name, and may be left out."
    )


@pytest.mark.parametrize(
    ("signature", "fault"),
    [
        (
            "esper_register_tasks(registry=None)",
            'has an argument "registry" in esper_register_tasks with a default, so its value would never be passed',
        ),
        (
            "esper_register_tasks(*, registry)",
            'has an argument "registry" in esper_register_tasks that is keyword-only, which pluggy does not support',
        ),
        ("esper_plugin_info(self)", 'has an argument "self" in esper_plugin_info that the hook does not have'),
    ],
)
def test_argument_that_would_get_no_value_is_reported(told, workshop, signature: str, fault: str) -> None:
    first = told(workshop.package(hook(signature))).splitlines()[0]
    assert first == f'E214 plugin "extra" (esper-extra 0.2.0) {fault}'


def test_generator_and_async_hooks_are_refused(told, workshop) -> None:
    source = (
        f"{IMPORTS}@hookimpl\ndef esper_register_tasks(registry):\n    yield\n"
        "@hookimpl\nasync def esper_register_hosts(registry):\n    pass\n"
    )
    assert told(workshop.package(source)) == (
        'E214 plugin "extra" (esper-extra 0.2.0) has an async hook esper_register_hosts, which is never awaited\n'
        "  esper_extra.py:5\n"
        "  Write def.\n"
        'E214 plugin "extra" (esper-extra 0.2.0) has a hook esper_register_tasks that yields,'
        " so its body would never run\n"
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
    assert told(package) == (
        'E222 plugin "extra" (esper-extra 0.2.0) has a function esper_register_blueprints that is not marked as a hook,'
        " so it is never called\n"
        "  esper_extra.py:1\n"
        "  Put @hookimpl above it, or give it another name.\n"
        'E222 plugin "extra" (esper-extra 0.2.0) has a function esper_regster_tasks that is not marked as a hook,'
        " so it is never called\n"
        "  esper_extra.py:2\n"
        "  Put @hookimpl above it, or give it another name.\n"
        '  Did you mean "esper_register_tasks"?'
    )


def test_imported_functions_are_not_unmarked_hooks(load, workshop) -> None:
    workshop.write("esper_elsewhere", "def esper_help(): pass\n")
    package = workshop.package("from esper_elsewhere import esper_help\nimport esper_elsewhere\nesper_x = 1\n")
    assert load(package).problems == ()


def test_all_faults_of_a_plugin_are_reported_together(load, workshop) -> None:
    source = hook("esper_register_tasks(x)") + "@hookimpl\ndef esper_nope(): pass\ndef esper_mine(): pass\n"
    assert sorted(problem.code for problem in load(workshop.package(source)).problems) == ["E213", "E214", "E222"]


def test_two_functions_for_one_hook_are_refused(load, workshop) -> None:
    source = hook("esper_register_tasks()") + "@hookimpl(specname='esper_register_tasks')\ndef tasks(): pass\n"
    (problem,) = load(workshop.package(source)).problems
    assert problem.message == 'plugin "extra" (esper-extra 0.2.0) has two functions for esper_register_tasks'


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


def test_two_plugins_can_share_one_object(load, workshop) -> None:
    one = workshop.package(OBJECT, plugin="one", target="esper_one:plugin")
    two = workshop.package(plugin="two", target="esper_one:plugin")
    assert [component.id for component in load(one, two).registry.components()] == ["one/tiny", "two/tiny"]


def test_entry_point_that_names_a_class_is_refused(told, workshop) -> None:
    assert told(workshop.package(OBJECT, target="esper_extra:Plugin")) == (
        'E214 plugin "extra" (esper-extra 0.2.0) has an argument "self" in esper_register_blueprints'
        " that the hook does not have\n"
        "  esper_extra.py:8\n"
        "  The hook is esper_register_blueprints(registry); arguments are passed by name, and may be left out."
    )


def test_plugin_whose_dir_raises_is_broken(told, workshop) -> None:
    source = "class Plugin:\n    def __dir__(self): raise SystemExit(1)\nplugin = Plugin()\n"
    assert told(workshop.package(source, target="esper_extra:plugin")) == (
        'E221 plugin "extra" (esper-extra 0.2.0) failed while its hooks were looked up: SystemExit: 1\n'
        "  esper_extra.py:2\n"
        "  Tell the author of esper-extra, or leave it out:  plugins.disable: [extra]"
    )


def test_plugin_info_is_recorded(load, workshop) -> None:
    silent = workshop.package("", plugin="silent")
    (told, untold) = load(workshop.package(hook("esper_plugin_info()", "return PluginInfo(api=1)")), silent).records
    assert (told.api, told.hooks, untold.api, untold.hooks) == (1, ("esper_plugin_info",), 1, ())


def test_unsupported_api_level_is_rejected(load, told, workshop) -> None:
    package = workshop.package(hook("esper_plugin_info()", "return PluginInfo(api=2)"))
    assert [(record.status, record.api) for record in load(package).records] == [("rejected", 2)]
    assert told(package) == (
        'E215 plugin "extra" (esper-extra 0.2.0) was written for API level 2; esper-core 0.1.0 supports 1\n'
        "  esper_extra.py:2\n"
        "  Bring them together:  pip install --upgrade esper-core"
    )


@pytest.mark.parametrize(
    ("returned", "received"),
    [
        ("None", "None"),
        ("{'api': 1}", "{'api': 1}"),
        ("PluginInfo(api='1')", "PluginInfo(api='1', summary='', homepage='')"),
        ("PluginInfo(api=True)", "PluginInfo(api=True, summary='', homepage='')"),
        ("PluginInfo(api=0)", "PluginInfo(api=0, summary='', homepage='')"),
    ],
)
def test_invalid_plugin_info_breaks_the_plugin(load, told, workshop, returned: str, received: str) -> None:
    package = workshop.package(hook("esper_plugin_info()", f"return {returned}"))
    assert [record.status for record in load(package).records] == ["broken"]
    assert told(package) == (
        f'E215 plugin "extra" (esper-extra 0.2.0) does not describe itself: esper_plugin_info returned {received}\n'
        "  esper_extra.py:2\n"
        "  Return PluginInfo(api=1, summary=...)."
    )


def test_plugin_info_that_raises_breaks_the_plugin(told, workshop) -> None:
    assert told(workshop.package(hook("esper_plugin_info()", "return 1 / 0"))) == (
        'E221 plugin "extra" (esper-extra 0.2.0) failed in esper_plugin_info: ZeroDivisionError: division by zero\n'
        "  esper_extra.py:4\n"
        "  Tell the author of esper-extra, or leave it out:  plugins.disable: [extra]"
    )


def test_esper_run_without_wrapper_is_refused(told, workshop) -> None:
    package = workshop.package("from esper_core import hookimpl\n@hookimpl\ndef esper_run(context): return []\n")
    assert told(package) == (
        'E214 plugin "extra" (esper-extra 0.2.0) has a hook esper_run that is not a wrapper, so it is never called\n'
        "  esper_extra.py:2\n"
        "  Mark it with @hookimpl(wrapper=True), and yield where the run is to be."
    )


@pytest.mark.parametrize(
    ("given", "told_of", "code"),
    [
        ("int", "has settings that are not a pydantic model: esper_settings_model returned <class 'int'>", "E217"),
        ("{}", "has settings that are not a pydantic model: esper_settings_model returned {}", "E217"),
        ("1 / 0", "failed in esper_settings_model: ZeroDivisionError: division by zero", "E221"),
    ],
)
def test_invalid_settings_model_breaks_the_plugin(load, workshop, given, told_of, code) -> None:
    package = workshop.package(
        f"from esper_core import hookimpl\n@hookimpl\ndef esper_settings_model(): return {given}\n"
    )
    (record,) = load(package).records
    assert record.status == "broken"
    assert str(record.problems[0]).splitlines()[0] == f'{code} plugin "extra" (esper-extra 0.2.0) {told_of}'
    assert record.problems[0].line in (2, 3)
