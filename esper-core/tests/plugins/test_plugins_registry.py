"""Names: found where they are plain, and told apart, explained or suggested where they are not."""

from __future__ import annotations

import pickle

import pytest

from esper_core.leyline import ConfigError, PluginError
from esper_core.leyline.specs import COMPONENT_KINDS
from esper_core.plugins import UnknownComponent, UnusableComponent
from esper_core.plugins.lookup_errors import CODES, PLURALS

TASK = "from esper_core import TaskSpec, hookimpl\n@hookimpl\ndef esper_register_tasks(registry):\n    {body}\n"


@pytest.fixture
def refusal(workshop):
    """``refusal(look)``: the error that ``look()`` raises, and its text."""

    def catch(look) -> tuple[type, str]:
        with pytest.raises((ConfigError, PluginError)) as caught:
            look()
        return type(caught.value), str(caught.value).replace(f"{workshop.folder}/", "")

    return catch


def test_a_component_is_found_by_its_short_name_and_by_its_id(load, workshop) -> None:
    registry = load(workshop.blueprints("tiny", "wide")).registry
    assert registry.find("blueprint", "tiny") is registry.find("blueprint", "extra/tiny")


def test_a_misspelt_name_is_told_with_the_nearest_and_its_package(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("conv3x3", "wide")).registry
    assert refusal(lambda: registry.find("blueprint", "conv3x3s", context='slot "early"')) == (
        UnknownComponent,
        'E201 unknown blueprint "conv3x3s" in slot "early"\n'
        '  Did you mean "conv3x3" (esper-extra 0.2.0)?\n'
        "  All blueprints:  esper components list blueprint",
    )


def test_the_callers_place_goes_into_the_problem(load, workshop) -> None:
    registry = load(workshop.blueprints("conv3x3")).registry
    with pytest.raises(UnknownComponent) as caught:
        registry.find("blueprint", "conv3x3s")
    (problem,) = caught.value.problems
    assert str(problem.at(file="plugins.yaml", line=16, column=26)).splitlines()[1] == "  plugins.yaml:16:26"


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("Tiny", "tiny"), ("tinny", "tiny"), ("extra/tinny", "extra/tiny"), ("exrta/tiny", "extra/tiny")],
)
def test_a_suggestion_is_a_name_that_works(load, workshop, refusal, name: str, suggested: str) -> None:
    registry = load(workshop.blueprints("tiny", "enormous")).registry
    _, text = refusal(lambda: registry.find("blueprint", name))
    assert f'Did you mean "{suggested}" (esper-extra 0.2.0)?' in text
    assert registry.find("blueprint", suggested)


def test_a_suggestion_for_a_name_that_two_have_is_a_full_id(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny", plugin="one"), workshop.blueprints("tiny", plugin="two")).registry
    _, text = refusal(lambda: registry.find("blueprint", "one/tny"))
    assert 'Did you mean "one/tiny" (esper-one 0.2.0)?' in text


@pytest.mark.parametrize(
    ("kind", "code", "package", "plural"),
    [
        ("blueprint", "E201", "esper-blueprints", "blueprints"),
        ("host", "E202", "esper-tasks", "hosts"),
        ("policy", "E203", "esper-policies", "policies"),
        ("reward", "E204", "esper-rewards", "rewards"),
        ("task", "E205", "esper-tasks", "tasks"),
    ],
)
def test_where_nothing_is_installed_the_pip_line_is_told(load, refusal, kind, code, package, plural) -> None:
    assert refusal(lambda: load().registry.find(kind, "x")) == (
        UnknownComponent,
        f'{code} unknown {kind} "x"\n'
        f"  No {kind} is installed. Install some:  pip install {package}\n"
        f"  All {plural}:  esper components list {kind}",
    )


@pytest.mark.parametrize("kind", COMPONENT_KINDS)
def test_every_kind_has_its_code_and_its_plural(kind: str) -> None:
    assert len({*CODES.values(), "E206", "E207", "E208", "E209"}) == len(CODES) + 4
    assert (kind in CODES, kind in PLURALS) == (True, True)


def test_where_nothing_is_near_the_known_names_are_told(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints(*(f"b{number:02}" for number in range(14)))).registry
    _, text = refusal(lambda: registry.find("blueprint", "zzz"))
    assert text.splitlines()[1] == "  Known: b00, b01, b02, b03, b04, b05, b06, b07, b08, b09, b10, b11, …"


def test_a_first_party_plugin_that_is_not_installed_is_told_with_its_pip_line(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny")).registry
    _, text = refusal(lambda: registry.find("blueprint", "blueprints/zzz"))
    assert text.splitlines()[:2] == [
        'E201 unknown blueprint "blueprints/zzz": there is no plugin "blueprints"',
        "  Install it:  pip install esper-blueprints",
    ]


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("nowhere/zzz", 'E201 unknown blueprint "nowhere/zzz": there is no plugin "nowhere"', "Plugins: extra"),
        ("extar/zzz", 'E201 unknown blueprint "extar/zzz": there is no plugin "extar"', 'Did you mean plugin "extra"?'),
        ("nowhere/*", 'E207 no blueprint matches "nowhere/*"', "Plugins: extra"),
        ("extra/zzz", 'E201 unknown blueprint "extra/zzz": plugin "extra" has no blueprint "zzz"', "Known: tiny"),
    ],
)
def test_a_plugin_that_is_not_installed_is_told(load, workshop, refusal, name: str, message: str, hint: str) -> None:
    registry = load(workshop.blueprints("tiny")).registry
    _, text = refusal(lambda: registry.match("blueprint", name))
    assert text == f"{message}\n  {hint}\n  All blueprints:  esper components list blueprint"


def test_a_component_of_another_kind_is_told_as_what_it_is(load, workshop, refusal) -> None:
    found = load(
        workshop.blueprints("tiny"),
        workshop.package(TASK.format(body='registry.add("signals", "m:S", TaskSpec())'), plugin="data"),
    )
    assert refusal(lambda: found.registry.find("blueprint", "signals")) == (
        UnknownComponent,
        'E201 unknown blueprint "signals"\n'
        '  "data/signals" is a task (esper-data 0.2.0).\n'
        "  Known: tiny\n"
        "  All blueprints:  esper components list blueprint",
    )


def test_a_short_name_that_two_plugins_have_needs_its_plugin(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny", plugin="one"), workshop.blueprints("tiny", plugin="two")).registry
    assert refusal(lambda: registry.find("blueprint", "tiny", context='slot "early"')) == (
        UnknownComponent,
        'E206 2 blueprints are called "tiny" in slot "early"\n'
        '  Write which one:  "one/tiny" (esper-one 0.2.0) or "two/tiny" (esper-two 0.2.0)',
    )
    assert registry.find("blueprint", "two/tiny").plugin == "two"


def test_a_clash_with_a_plugin_that_is_not_active_is_none(load, workshop) -> None:
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
def test_a_glob_stands_for_what_it_matches(load, workshop, pattern: str, ids: list[str]) -> None:
    one = workshop.blueprints("conv_b", "conv_a", plugin="one")
    two = workshop.blueprints("norm", "conv_a", plugin="two")
    assert [component.id for component in load(two, one).registry.match("blueprint", pattern)] == ids


def test_a_glob_that_matches_nothing_is_told(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny")).registry
    assert refusal(lambda: registry.match("blueprint", "conv*", context='slot "early"')) == (
        UnknownComponent,
        'E207 no blueprint matches "conv*" in slot "early"\n  All blueprints:  esper components list blueprint',
    )


def test_a_glob_without_wildcards_is_a_name(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny")).registry
    assert refusal(lambda: registry.match("blueprint", "tinny"))[1].startswith('E201 unknown blueprint "tinny"')


def test_a_name_of_a_disabled_plugin_is_told_with_the_way_out(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny"), disable=["extra"]).registry
    expected = (
        UnknownComponent,
        'E209 blueprint "extra/tiny" in slot "early" belongs to plugin "extra" (esper-extra 0.2.0), which is disabled\n'
        '  Take "extra" out of plugins.disable.',
    )
    assert refusal(lambda: registry.find("blueprint", "extra/tiny", context='slot "early"')) == expected


def test_a_name_that_safe_mode_leaves_out_is_told_with_the_way_out(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny"), safe_mode=True).registry
    assert refusal(lambda: registry.match("blueprint", "extra/*")) == (
        UnknownComponent,
        'E209 blueprint "extra/*" belongs to plugin "extra" (esper-extra 0.2.0), which is left out in safe mode\n'
        "  Unset ESPER_SAFE_MODE.",
    )


def test_a_rival_that_is_left_out_does_not_speak_for_the_plugin_that_is_there(load, workshop, refusal) -> None:
    ours = workshop.blueprints("tiny", plugin="blueprints")
    rival = workshop.blueprints("tiny", plugin="blueprints", name="evil")
    registry = load(ours, rival, safe_mode=True).registry
    assert refusal(lambda: registry.find("blueprint", "blueprints/tny"))[1].startswith("E201 ")


def test_a_name_of_a_broken_plugin_is_a_plugin_error_with_its_cause(load, workshop, refusal) -> None:
    registry = load(workshop.package("import einops_not_there\n", requires=["einops-not-there"])).registry
    assert refusal(lambda: registry.find("blueprint", "extra/tiny")) == (
        UnusableComponent,
        'E209 blueprint "extra/tiny" belongs to plugin "extra" (esper-extra 0.2.0), which is broken\n'
        '  E210 plugin "extra" (esper-extra 0.2.0) cannot be imported:'
        " ModuleNotFoundError: No module named 'einops_not_there'\n"
        "    esper_extra.py:1\n"
        '    Install what is missing:  pip install "einops-not-there"\n'
        "  More:  esper plugins show extra",
    )
    assert UnusableComponent.exit_code == 3


def test_a_short_name_that_a_broken_plugin_would_have_brought_is_known(load, workshop, refusal) -> None:
    package = workshop.package(
        TASK.format(body='registry.add("good", "m:S", TaskSpec()); registry.add("Bad", 1, None)')
    )
    kind, text = refusal(lambda: load(package).registry.find("task", "good"))
    assert kind is UnusableComponent
    assert text.startswith('E209 task "good" belongs to plugin "extra" (esper-extra 0.2.0), which is broken\n  E216 ')


def test_an_unknown_name_tells_which_plugins_could_not_be_asked(load, workshop, refusal) -> None:
    found = load(
        workshop.blueprints("tiny"),
        workshop.package("1 / 0", plugin="bad"),
        workshop.package("", plugin="off"),
        disable=["off"],
    )
    assert refusal(lambda: found.registry.find("blueprint", "zzz"))[1] == (
        'E201 unknown blueprint "zzz"\n'
        "  Known: tiny\n"
        "  Not searched: bad (esper-bad 0.2.0, broken), off (esper-off 0.2.0, disabled)\n"
        "  All blueprints:  esper components list blueprint"
    )


def test_components_come_in_the_order_of_kinds_and_ids(load, workshop) -> None:
    found = load(
        workshop.package(TASK.format(body='registry.add("a", "m:A", TaskSpec())'), plugin="aa"),
        workshop.blueprints("b", "a"),
    )
    assert [one.id for one in found.registry.components()] == ["extra/a", "extra/b", "aa/a"]
    assert [one.id for one in found.registry.components("task")] == ["aa/a"]


BLOCKS = """
from pydantic import BaseModel
class Tiny: pass
class Settings(BaseModel):
    width: int = 3
NOTHING = None
"""


def component(load, workshop, target: str, spec: str = "TaskSpec()"):
    body = f'registry.add("signals", "{target}", {spec})'
    return load(workshop.package(TASK.format(body=body))).registry.find("task", "signals")


def test_a_target_is_imported_when_it_is_loaded_and_not_before(load, workshop) -> None:
    import sys

    workshop.write("my_blocks", BLOCKS)
    found = component(load, workshop, "my_blocks:Tiny")
    assert "my_blocks" not in sys.modules
    assert found.load() is sys.modules["my_blocks"].Tiny


def test_a_target_that_cannot_be_imported_is_told_with_its_package(load, workshop, refusal) -> None:
    workshop.write("my_blocks", "import math\n1 / 0\n")
    assert refusal(component(load, workshop, "my_blocks:Tiny").load) == (
        PluginError,
        'E219 task "extra/signals" (esper-extra 0.2.0) cannot be loaded: ZeroDivisionError: division by zero\n'
        "  my_blocks.py:2\n"
        "  Tell the author of esper-extra.",
    )


def test_a_target_that_is_not_there_is_told(load, workshop, refusal) -> None:
    workshop.write("my_blocks", BLOCKS)
    assert refusal(component(load, workshop, "my_blocks:Tinny").load) == (
        PluginError,
        'E219 task "extra/signals" (esper-extra 0.2.0) cannot be loaded:'
        " AttributeError: module 'my_blocks' has no attribute 'Tinny'\n"
        "  my_blocks:Tinny\n"
        "  Tell the author of esper-extra.",
    )


def test_a_target_that_cannot_be_called_is_told(load, workshop, refusal) -> None:
    workshop.write("my_blocks", BLOCKS)
    assert refusal(component(load, workshop, "my_blocks:NOTHING").load) == (
        PluginError,
        'E219 task "extra/signals" (esper-extra 0.2.0) cannot be called: my_blocks:NOTHING is of type NoneType\n'
        "  A target is a class or a function. Tell the author of esper-extra.",
    )


def test_settings_are_a_pydantic_model(load, workshop) -> None:
    workshop.write("my_blocks", BLOCKS)
    found = component(load, workshop, "my_blocks:Tiny", 'TaskSpec(settings="my_blocks:Settings")')
    assert found.settings_model()().width == 3


def test_a_component_without_settings_has_no_model(load, workshop) -> None:
    assert component(load, workshop, "my_blocks:Tiny").settings_model() is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            "my_blocks:Tiny",
            'E217 task "extra/signals" (esper-extra 0.2.0) declares settings that are not a pydantic model:'
            " my_blocks:Tiny\n"
            "  Settings are a class that derives from pydantic.BaseModel. Tell the author of esper-extra.",
        ),
        (
            "my_blocks:Nope",
            'E219 task "extra/signals" (esper-extra 0.2.0) has settings that cannot be loaded:'
            " AttributeError: module 'my_blocks' has no attribute 'Nope'\n"
            "  my_blocks:Nope\n"
            "  Tell the author of esper-extra.",
        ),
    ],
)
def test_settings_that_cannot_be_had_are_told(load, workshop, refusal, settings: str, text: str) -> None:
    workshop.write("my_blocks", BLOCKS)
    found = component(load, workshop, "my_blocks:Tiny", f'TaskSpec(settings="{settings}")')
    assert refusal(found.settings_model) == (PluginError, text)


def test_a_component_travels_to_another_process(load, workshop) -> None:
    found = component(load, workshop, "my_blocks:Tiny")
    assert pickle.loads(pickle.dumps(found)) == found
    assert hash(found) == hash(pickle.loads(pickle.dumps(found)))
