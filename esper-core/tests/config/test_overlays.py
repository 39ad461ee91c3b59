"""Overlays: partial configuration files merged over a file, in order, before ``--set``."""

from __future__ import annotations

import pytest

from esper_core.config import explain, load_config, parse_config
from esper_core.leyline import ConfigError

BELOW = """\
task: {use: mnist1d, settings: {noise: 0.1}}
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, norm]}
policy: static
episode: {steps: 3, batches: 4}
"""


@pytest.fixture
def files(tmp_path):
    """``files(*texts)``: the paths of a configuration and of its overlays, which are called 1.yaml, 2.yaml …"""

    def write(*texts):
        (tmp_path / "below.yaml").write_text(BELOW)
        for number, text in enumerate(texts, 1):
            (tmp_path / f"{number}.yaml").write_text(text)
        return tmp_path / "below.yaml", [tmp_path / f"{number}.yaml" for number in range(1, len(texts) + 1)]

    return write


@pytest.fixture
def merged(files):
    """``merged(*texts)``: the configuration with these overlays."""

    def load(*texts, overrides=()):
        file, overlays = files(*texts)
        return load_config(file, overrides, overlays)

    return load


def refused(merged, *texts, overrides=()):
    with pytest.raises(ConfigError) as caught:
        merged(*texts, overrides=overrides)
    return caught.value.problems


def test_mappings_merge_and_anything_else_replaces(merged):
    config = merged("slots:\n  early: {blueprints: [mlp]}\n  late: {blueprints: [norm]}\nepisode: {steps: 5}\n").config
    assert config.slots["early"].blueprints == ("mlp",)
    assert list(config.slots) == ["early", "late"]
    assert (config.episode.steps, config.episode.batches) == (5, 4)


def test_later_overlays_win_and_set_wins_over_all(merged):
    assert merged("seed: 1\nmargin: 0.5", "seed: 2").config.seed == 2
    loaded = merged("seed: 1\nmargin: 0.5", "seed: 2", overrides=["seed=3"])
    assert (loaded.config.seed, loaded.config.margin) == (3, 0.5)


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("task: {settings: {width: 3}}", "mnist1d", {"noise": 0.1, "width": 3}),
        ("task: {use: tasks/mnist1d, settings: {noise: null}}", "tasks/mnist1d", {"noise": None}),
        ("task: {use: stripes, settings: {width: 3}}", "stripes", {"width": 3}),
        ("task: stripes", "stripes", {}),
        ("task: mnist1d", "mnist1d", {}),
    ],
)
def test_settings_merge_unless_the_component_is_another(merged, text, name, settings):
    task = merged(text).config.task
    assert (task.use, task.settings) == (name, settings)


def test_settings_can_be_given_to_a_component_that_is_its_name_alone(merged):
    loaded = merged("policy: {settings: {patience: 2}}")
    assert (loaded.config.policy.use, loaded.config.policy.settings) == ("static", {"patience": 2})
    assert loaded.origin(("policy", "use")).endswith("below.yaml:5:9")


def test_each_value_is_explained_with_the_file_that_sets_it(merged, tmp_path):
    loaded = merged("episode: {steps: 5}", "seed: 2", overrides=["margin=0.5"])
    origins = {one.path: one.origin for one in explain(loaded)}
    assert origins["episode.steps"] == f"{tmp_path}/1.yaml:1:18"
    assert origins["episode.batches"] == f"{tmp_path}/below.yaml:6:30"
    assert origins["seed"] == f"{tmp_path}/2.yaml:1:7"
    assert origins["margin"] == "--set margin=0.5"
    assert origins["rounds"] == "default"


def test_problems_name_the_file_that_sets_the_value_in_the_order_of_the_files(merged, tmp_path):
    problems = refused(merged, "episode: {batches: x}", "slots: {late: {stack: 1}}", overrides=["seed=x"])
    assert [(one.code, one.file, one.line, one.column, one.path) for one in problems] == [
        ("E111", f"{tmp_path}/1.yaml", 1, 20, "episode.batches"),
        ("E113", f"{tmp_path}/2.yaml", 1, 15, "slots.late.blueprints"),
        ("E111", "--set seed=x", None, None, "seed"),
    ]


def test_an_overlay_may_repair_the_file(files):
    file, overlays = files("episode: {steps: 3}")
    file.write_text(BELOW.replace("steps: 3", "steps: many"))
    assert load_config(file, (), overlays).config.episode.steps == 3


def test_an_overlay_that_cannot_be_read_is_reported(files, tmp_path):
    file, overlays = files("a: [", "seed: 1")
    with pytest.raises(ConfigError) as caught:
        load_config(file, (), [*overlays, tmp_path / "missing.yaml"])
    assert [(one.code, one.file) for one in caught.value.problems] == [("E101", f"{tmp_path}/missing.yaml")]
    with pytest.raises(ConfigError) as caught:
        load_config(file, (), overlays)
    assert [(one.code, one.file, one.line) for one in caught.value.problems] == [("E104", f"{tmp_path}/1.yaml", 1)]


def test_paths_of_plugins_are_relative_to_the_file_that_names_them(merged, tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "own.yaml").write_text("plugins: {local: [own_plugin.py, /absolute.py]}")
    loaded = load_config(merged().file, (), [tmp_path / "inner" / "own.yaml"])
    assert loaded.config.plugins.local == ("inner/own_plugin.py", "/absolute.py")
    assert merged("plugins: {local: [./own_plugin.py]}").config.plugins.local == ("./own_plugin.py",)


def test_an_overlay_in_another_folder_with_a_plugin_that_is_no_path_is_refused_as_it_was_written(merged, tmp_path):
    (tmp_path / "inner").mkdir()
    overlay = tmp_path / "inner" / "own.yaml"
    overlay.write_text("plugins: {local: [own_plugin.py, 3, '']}")
    with pytest.raises(ConfigError) as caught:
        load_config(merged().file, (), [overlay])
    assert [(one.code, one.file, one.path, one.message.split("; ")[1]) for one in caught.value.problems] == [
        ("E111", str(overlay), "plugins.local[1]", "received 3"),
        ("E112", str(overlay), "plugins.local[2]", 'received ""'),
    ]


def test_a_file_with_a_base_is_refused_with_a_hint_and_nothing_of_the_other_file_is_shown(small, problems, tmp_path):
    secret = tmp_path / "secret.yaml"
    secret.write_text("password: hunter2\n")
    (problem,) = problems(f"base: {secret}\n{small}")
    assert (problem.code, problem.path, problem.line) == ("E110", "base", 1)
    assert "--overlay" in problem.hint
    assert "hunter2" not in str(problem)


def test_policy_of_the_file_and_arms_of_an_overlay_contradict_each_other(merged):
    (problem,) = refused(merged, "arms: {a: {policy: static}}")
    assert problem.code == "E114"
    assert "policy: null" in problem.hint
    assert list(merged("policy: null\narms: {a: {policy: static}}").config.arms) == ["a"]


def test_the_example_for_reproducible_numbers_is_an_overlay(small, request):
    examples = request.config.rootpath / "examples"
    before = load_config(examples / "plan.yaml").config
    after = load_config(examples / "plan.yaml", (), [examples / "exact.yaml"]).config
    assert (after.device, after.optimizer.host.implementation, after.optimizer.seed.implementation) == (
        "cpu",
        "plain",
        "plain",
    )
    assert after.model_copy(update={"device": before.device, "optimizer": before.optimizer}) == before


def test_a_configuration_without_overlays_has_none(small):
    assert parse_config(small.encode(), file="f.yaml").overlays == ()
