"""Overlays: partial configuration files merged over a file, in order, before ``--set``."""

import pytest

from esper_core.leyline import ConfigError
from esper_run.config import load_config

BELOW = """\
task: {use: mnist1d, settings: {noise: 0.1}}
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, norm]}
policy: static
episode: {steps: 3, batches: 4}
"""


@pytest.fixture
def merged(tmp_path):
    """``merged(*texts)``: return below.yaml merged with these overlays, 1.yaml, 2.yaml, …"""

    def load(*texts, overrides=(), below=BELOW):
        overlays = [tmp_path / f"{number}.yaml" for number in range(1, len(texts) + 1)]
        for path, text in zip([tmp_path / "below.yaml", *overlays], [below, *texts], strict=True):
            path.write_text(text)
        return load_config(tmp_path / "below.yaml", overrides, overlays)

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


def test_later_overlays_win_and_set_wins(merged):
    texts = ["seed: 1\nmargin: 0.2\nepisode: {steps: 5}", "seed: 2"]
    assert merged(*texts).config.margin == 0.2
    loaded = merged(*texts, overrides=["margin=0.5"])
    assert (loaded.config.seed, loaded.config.margin) == (2, 0.5)
    assert loaded.config.episode.steps == 5


def test_problems_name_the_file_that_sets_the_value_in_the_order_of_the_files(merged, tmp_path):
    problems = refused(merged, "episode: {batches: x}", "slots: {late: {stack: 1}}", overrides=["seed=x"])
    assert [(problem.code, problem.file, problem.line, problem.column, problem.path) for problem in problems] == [
        ("E111", f"{tmp_path}/1.yaml", 1, 20, "episode.batches"),
        ("E113", f"{tmp_path}/2.yaml", 1, 15, "slots.late.blueprints"),
        ("E111", "--set seed=x", None, None, "seed"),
    ]


def test_overlay_that_cannot_be_read_is_reported(merged, tmp_path):
    (problem,) = refused(merged, "a: [", "seed: 1")
    assert (problem.code, problem.file, problem.line) == ("E104", f"{tmp_path}/1.yaml", 1)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "below.yaml", (), [tmp_path / "2.yaml", tmp_path / "missing.yaml"])
    assert [(problem.code, problem.file) for problem in caught.value.problems] == [("E101", f"{tmp_path}/missing.yaml")]


def test_paths_of_plugins_are_relative_to_the_file_that_names_them(merged, tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "own.yaml").write_text("plugins: {local: [own_plugin.py, /absolute.py]}")
    loaded = load_config(merged().file, (), [tmp_path / "inner" / "own.yaml"])
    assert loaded.config.plugins.local == ("inner/own_plugin.py", "/absolute.py")
    assert merged("plugins: {local: [./own_plugin.py]}").config.plugins.local == ("./own_plugin.py",)


def test_plugin_of_an_overlay_that_is_no_path_is_reported_as_it_was_written(merged, tmp_path):
    overlay = tmp_path / "inner" / "own.yaml"
    overlay.parent.mkdir()
    overlay.write_text("plugins: {local: [own_plugin.py, 3, '']}")
    with pytest.raises(ConfigError) as caught:
        load_config(merged().file, (), [overlay])
    assert [
        (problem.code, problem.file, problem.path, problem.message.split("; ")[1]) for problem in caught.value.problems
    ] == [
        ("E111", str(overlay), "plugins.local[1]", "received 3"),
        ("E112", str(overlay), "plugins.local[2]", 'received ""'),
    ]


def test_example_for_reproducible_numbers_is_an_overlay(request):
    examples = request.config.rootpath / "examples"
    before = load_config(examples / "plan.yaml").config
    after = load_config(examples / "plan.yaml", (), [examples / "exact.yaml"]).config
    implementations = (after.optimizer.host.implementation, after.optimizer.seed.implementation)
    assert (after.device, *implementations) == ("cpu", "plain", "plain")
    assert after.model_copy(update={"device": before.device, "optimizer": before.optimizer}) == before
