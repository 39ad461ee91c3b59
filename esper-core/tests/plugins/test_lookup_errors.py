"""Lookup errors: unknown, ambiguous and unusable names are explained, with a suggestion."""

import pytest

from esper_core.leyline.errors import ConfigError, PluginError

LIST = "List them:  esper components list blueprint"
KNOWN = "Known: conv3x3, tiny"


def did_you_mean(name: str) -> str:
    return f'Did you mean "{name}" (esper-extra 0.2.0)?'


@pytest.fixture
def registry(load, workshop):
    """Two blueprints, and a task of another plugin."""
    task = workshop.tasks('registry.add("signals", "m:S", TaskSpec())', plugin="data")
    return load(workshop.blueprints("tiny", "conv3x3"), task).registry


@pytest.mark.parametrize(
    ("name", "reason", "hints"),
    [
        ("conv3x3s", "", [did_you_mean("conv3x3")]),
        ("Tiny", "", [did_you_mean("tiny")]),
        ("zzz", "", [KNOWN]),
        ("signals", "", ['"data/signals" is a task (esper-data 0.2.0).', KNOWN]),
        ("extra/tinny", ': "extra" has no blueprint "tinny"', [did_you_mean("extra/tiny")]),
        ("extra/zzz", ': "extra" has no blueprint "zzz"', [KNOWN]),
        ("exrta/tiny", ': there is no plugin "exrta"', [did_you_mean("extra/tiny")]),
        ("extar/zzz", ': there is no plugin "extar"', [did_you_mean("extra")]),
        ("blueprints/zzz", ': there is no plugin "blueprints"', ["Install it:  pip install esper-blueprints"]),
        ("nowhere/zzz", ': there is no plugin "nowhere"', ["Install the package that provides it."]),
    ],
)
def test_unknown_name_is_explained(registry, refusal, name: str, reason: str, hints: list[str]) -> None:
    lines = [f'E201 unknown blueprint "{name}" in slot "early"{reason}', *hints, LIST]
    explanation = refusal(lambda: registry.find("blueprint", name, context='slot "early"'))
    assert explanation == (ConfigError, "\n  ".join(lines))
    assert refusal(lambda: registry.match("blueprint", name))[1] == explanation[1].replace(' in slot "early"', "")


@pytest.mark.parametrize(("glob", "hint"), [("norm*", KNOWN), ("nowhere/*", "Install the package that provides it.")])
def test_glob_without_matches_is_explained(registry, refusal, glob: str, hint: str) -> None:
    text = f'E207 no blueprint matches "{glob}" in slot "early"\n  {hint}\n  {LIST}'
    explanation = refusal(lambda: registry.match("blueprint", glob, context='slot "early"'))
    assert explanation == (ConfigError, text)


def test_ambiguous_short_name_is_refused(load, workshop, refusal) -> None:
    registry = load(*(workshop.blueprints("same", plugin=plugin) for plugin in ("one", "two"))).registry
    assert refusal(lambda: registry.find("blueprint", "same", context='slot "early"')) == (
        ConfigError,
        'E206 several plugins have a blueprint "same" in slot "early"\n'
        '  Write one of:  "one/same" (esper-one 0.2.0) or "two/same" (esper-two 0.2.0)',
    )
    assert registry.find("blueprint", "two/same").plugin == "two"
    assert 'Did you mean "one/same" (esper-one' in refusal(lambda: registry.find("blueprint", "one/samx"))[1]
    assert "Known: one/same, two/same" in refusal(lambda: registry.find("blueprint", "zzz"))[1]


@pytest.mark.parametrize(("kind", "code"), [("host", "E202"), ("task", "E205")])
def test_kind_without_components_names_the_pip_command(load, refusal, kind: str, code: str) -> None:
    text = f'{code} unknown {kind} "x"\n  No {kind} is installed. Install some:  pip install esper-tasks\n'
    explanation = refusal(lambda: load().registry.find(kind, "x"))
    assert explanation == (ConfigError, f"{text}  List them:  esper components list {kind}")


@pytest.mark.parametrize(
    ("settings", "reason", "hint"),
    [
        ({"disable": ["extra"]}, "disabled", 'Take "extra" out of plugins.disable.'),
        ({"safe_mode": True}, "left out in safe mode", "Unset ESPER_SAFE_MODE."),
    ],
)
def test_name_of_an_inactive_plugin_is_explained(load, workshop, refusal, settings, reason: str, hint: str) -> None:
    registry = load(workshop.blueprints("tiny"), **settings).registry
    belongs = f'belongs to plugin "extra" (esper-extra 0.2.0), which is {reason}'
    for name in ("extra/tiny", "extra/*"):
        explanation = refusal(lambda name=name: registry.match("blueprint", name, context='slot "early"'))
        assert explanation == (ConfigError, f'E209 blueprint "{name}" in slot "early" {belongs}\n  {hint}')


def test_name_of_a_broken_plugin_is_reported_with_the_cause(load, workshop, refusal) -> None:
    requires = ['Einops-Not-There>=0.7; python_version>"3"']
    registry = load(workshop.package("import einops_not_there.layers\n", requires=requires)).registry
    assert refusal(lambda: registry.find("blueprint", "extra/tiny")) == (
        PluginError,
        'E209 blueprint "extra/tiny" belongs to plugin "extra" (esper-extra 0.2.0), which is broken\n'
        '  E210 plugin "extra" (esper-extra 0.2.0) cannot be imported:'
        " ModuleNotFoundError: No module named 'einops_not_there'\n"
        "    esper_extra.py:1\n"
        '    Install what is missing:  pip install "Einops-Not-There>=0.7"\n'
        "  More:  esper plugins show extra",
    )


def test_short_name_of_a_broken_plugin_is_recognised(load, workshop, refusal) -> None:
    package = workshop.tasks('registry.add("good", "m:S", TaskSpec())', 'registry.add("Bad", 1, None)')
    kind, text = refusal(lambda: load(package).registry.find("task", "good"))
    assert kind is PluginError
    assert text.startswith('E209 task "good" belongs to plugin "extra" (esper-extra 0.2.0), which is broken\n  E216 ')


def test_duplicate_left_out_by_safe_mode_does_not_hide_the_active_plugin(load, workshop, refusal) -> None:
    first_party = workshop.blueprints("tiny", plugin="blueprints")
    rival = workshop.blueprints("tiny", plugin="blueprints", name="evil")
    registry = load(first_party, rival, safe_mode=True).registry
    assert refusal(lambda: registry.find("blueprint", "blueprints/tny"))[1].startswith("E201 ")
