"""Lookup errors: unknown, ambiguous and unusable names are explained, with a suggestion."""

from __future__ import annotations

from dataclasses import replace

import pytest

from esper_core.leyline import ConfigError, PluginError
from esper_core.leyline.specs import COMPONENT_KINDS
from esper_core.plugins import UnknownComponent, UnusableComponent
from esper_core.plugins.records import KINDS

TASK = "from esper_core import TaskSpec, hookimpl\n@hookimpl\ndef esper_register_tasks(registry):\n    {body}\n"


@pytest.fixture
def refusal(workshop):
    """``refusal(look)``: the error that ``look()`` raises, and its text."""

    def catch(look) -> tuple[type, str]:
        with pytest.raises((ConfigError, PluginError)) as caught:
            look()
        return type(caught.value), str(caught.value).replace(f"{workshop.folder}/", "")

    return catch


def test_misspelt_name_suggests_the_nearest_with_its_package(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("conv3x3", "wide")).registry
    assert refusal(lambda: registry.find("blueprint", "conv3x3s", context='slot "early"')) == (
        UnknownComponent,
        'E201 unknown blueprint "conv3x3s" in slot "early"\n'
        '  Did you mean "conv3x3" (esper-extra 0.2.0)?\n'
        "  List them:  esper components list blueprint",
    )


def test_caller_can_add_the_place_to_the_problem(load, workshop) -> None:
    registry = load(workshop.blueprints("conv3x3")).registry
    with pytest.raises(UnknownComponent) as caught:
        registry.find("blueprint", "conv3x3s")
    (problem,) = caught.value.problems
    assert str(replace(problem, file="plugins.yaml", line=16, column=26)).splitlines()[1] == "  plugins.yaml:16:26"


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("Tiny", "tiny"), ("tinny", "tiny"), ("extra/tinny", "extra/tiny"), ("exrta/tiny", "extra/tiny")],
)
def test_suggested_name_can_be_found(load, workshop, refusal, name: str, suggested: str) -> None:
    registry = load(workshop.blueprints("tiny", "enormous")).registry
    _, text = refusal(lambda: registry.find("blueprint", name))
    assert f'Did you mean "{suggested}" (esper-extra 0.2.0)?' in text
    assert registry.find("blueprint", suggested)


def test_suggestion_for_an_ambiguous_name_is_a_full_id(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny", plugin="one"), workshop.blueprints("tiny", plugin="two")).registry
    _, text = refusal(lambda: registry.find("blueprint", "one/tny"))
    assert 'Did you mean "one/tiny" (esper-one 0.2.0)?' in text


@pytest.mark.parametrize(
    ("kind", "code", "package"),
    [
        ("blueprint", "E201", "esper-blueprints"),
        ("host", "E202", "esper-tasks"),
        ("policy", "E203", "esper-policies"),
        ("reward", "E204", "esper-rewards"),
        ("task", "E205", "esper-tasks"),
    ],
)
def test_kind_without_components_names_the_pip_command(load, refusal, kind, code, package) -> None:
    assert refusal(lambda: load().registry.find(kind, "x")) == (
        UnknownComponent,
        f'{code} unknown {kind} "x"\n'
        f"  No {kind} is installed. Install some:  pip install {package}\n"
        f"  List them:  esper components list {kind}",
    )


@pytest.mark.parametrize("kind", COMPONENT_KINDS)
def test_every_kind_has_an_error_code(kind: str) -> None:
    assert len({*(one.code for one in KINDS.values()), "E206", "E207", "E208", "E209"}) == len(KINDS) + 4
    assert kind in KINDS


def test_known_names_are_listed_if_none_is_near(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints(*(f"b{number:02}" for number in range(14)))).registry
    _, text = refusal(lambda: registry.find("blueprint", "zzz"))
    assert text.splitlines()[1] == "  Known: b00, b01, b02, b03, b04, b05, b06, b07, b08, b09, b10, b11, …"


def test_missing_first_party_plugin_names_the_pip_command(load, workshop, refusal) -> None:
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
        (
            "extar/zzz",
            'E201 unknown blueprint "extar/zzz": there is no plugin "extar"',
            'Did you mean "extra" (esper-extra 0.2.0)?',
        ),
        ("nowhere/*", 'E207 no blueprint matches "nowhere/*"', "Plugins: extra"),
        ("extra/zzz", 'E201 unknown blueprint "extra/zzz": "extra" has no blueprint "zzz"', "Known: tiny"),
    ],
)
def test_unknown_plugin_and_unknown_name_have_their_own_messages(
    load, workshop, refusal, name: str, message: str, hint: str
) -> None:
    registry = load(workshop.blueprints("tiny")).registry
    _, text = refusal(lambda: registry.match("blueprint", name))
    assert text == f"{message}\n  {hint}\n  List them:  esper components list blueprint"


def test_name_of_another_kind_is_explained(load, workshop, refusal) -> None:
    found = load(
        workshop.blueprints("tiny"),
        workshop.package(TASK.format(body='registry.add("signals", "m:S", TaskSpec())'), plugin="data"),
    )
    assert refusal(lambda: found.registry.find("blueprint", "signals")) == (
        UnknownComponent,
        'E201 unknown blueprint "signals"\n'
        '  "data/signals" is a task (esper-data 0.2.0).\n'
        "  Known: tiny\n"
        "  List them:  esper components list blueprint",
    )


def test_ambiguous_short_name_is_refused(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny", plugin="one"), workshop.blueprints("tiny", plugin="two")).registry
    assert refusal(lambda: registry.find("blueprint", "tiny", context='slot "early"')) == (
        UnknownComponent,
        'E206 several plugins have a blueprint "tiny" in slot "early"\n'
        '  Write which one:  "one/tiny" (esper-one 0.2.0) or "two/tiny" (esper-two 0.2.0)',
    )
    assert registry.find("blueprint", "two/tiny").plugin == "two"


def test_glob_without_matches_is_reported(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny")).registry
    assert refusal(lambda: registry.match("blueprint", "conv*", context='slot "early"')) == (
        UnknownComponent,
        'E207 no blueprint matches "conv*" in slot "early"\n'
        "  Known: tiny\n"
        "  List them:  esper components list blueprint",
    )


def test_name_of_a_disabled_plugin_is_explained(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny"), disable=["extra"]).registry
    expected = (
        UnknownComponent,
        'E209 blueprint "extra/tiny" in slot "early" belongs to plugin "extra" (esper-extra 0.2.0), which is disabled\n'
        '  Take "extra" out of plugins.disable.',
    )
    assert refusal(lambda: registry.find("blueprint", "extra/tiny", context='slot "early"')) == expected


def test_name_left_out_by_safe_mode_is_explained(load, workshop, refusal) -> None:
    registry = load(workshop.blueprints("tiny"), safe_mode=True).registry
    assert refusal(lambda: registry.match("blueprint", "extra/*")) == (
        UnknownComponent,
        'E209 blueprint "extra/*" belongs to plugin "extra" (esper-extra 0.2.0), which is left out in safe mode\n'
        "  Unset ESPER_SAFE_MODE.",
    )


def test_duplicate_left_out_by_safe_mode_does_not_hide_the_active_plugin(load, workshop, refusal) -> None:
    ours = workshop.blueprints("tiny", plugin="blueprints")
    rival = workshop.blueprints("tiny", plugin="blueprints", name="evil")
    registry = load(ours, rival, safe_mode=True).registry
    assert refusal(lambda: registry.find("blueprint", "blueprints/tny"))[1].startswith("E201 ")


def test_name_of_a_broken_plugin_is_reported_with_the_cause(load, workshop, refusal) -> None:
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


def test_short_name_of_a_broken_plugin_is_recognised(load, workshop, refusal) -> None:
    package = workshop.package(
        TASK.format(body='registry.add("good", "m:S", TaskSpec()); registry.add("Bad", 1, None)')
    )
    kind, text = refusal(lambda: load(package).registry.find("task", "good"))
    assert kind is UnusableComponent
    assert text.startswith('E209 task "good" belongs to plugin "extra" (esper-extra 0.2.0), which is broken\n  E216 ')


def test_unknown_name_lists_the_plugins_that_were_not_searched(load, workshop, refusal) -> None:
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
        "  List them:  esper components list blueprint"
    )
