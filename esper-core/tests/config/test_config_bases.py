"""Is a file that is built on others what it should be, and is each value's home known?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from esper_core.config import explain, load_config
from esper_core.config.limits import MAX_BASES
from esper_core.config.presets import needs, offered, preset
from esper_core.leyline import ConfigError, Problem

BELOW = """\
task: {use: mnist1d, settings: {noise: 0.1, size: {train: 100, test: 50}}}
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, mlp], stack: 2}
  late: {blueprints: [mlp]}
policy: {use: schedule, settings: {plan: []}}
growth: {nursery: 2, seeds: 4}
episode: {steps: 30, batches: 3}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with ``below.yaml`` in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below.yaml").write_text(BELOW)
    return tmp_path


@pytest.fixture
def over(folder: Path) -> Callable[..., object]:
    """``over("seed: 3")``: the configuration of a file with these lines above below.yaml."""

    def read(text: str, *overrides: str, base: str = "below.yaml"):
        (folder / "top.yaml").write_text(f"base: {base}\n{text}\n")
        return load_config(Path("top.yaml"), overrides)

    return read


def refused(act: Callable[[], object]) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        act()
    return list(caught.value.problems)


def one(act: Callable[[], object]) -> Problem:
    (problem,) = refused(act)
    return problem


# --- what is merged how


def test_a_file_without_a_word_of_its_own_is_its_base(over, folder) -> None:
    assert over("").config == load_config("below.yaml").config


def test_mappings_merge_and_scalars_and_lists_replace(over) -> None:
    config = over("slots: {early: {blueprints: [norm]}, last: {blueprints: [mlp]}}\nepisode: {steps: 9}").config
    assert list(config.slots) == ["early", "late", "last"]
    assert (config.slots["early"].blueprints, config.slots["early"].stack) == (("norm",), 2)
    assert (config.episode.steps, config.episode.batches) == (9, 3)


def test_null_takes_away_what_the_base_says(over) -> None:
    config = over("slots: {late: null}\nepisode: {batches: null}\ngrowth: null\npolicy: null\narms: {a: {policy: x}}")
    assert list(config.config.slots) == ["early"]
    assert (config.config.episode.steps, config.config.episode.batches) == (30, 32)
    assert (config.config.growth.nursery, config.config.policy) == (1, None)


def test_null_where_the_base_is_silent_is_a_value_like_in_any_file(over) -> None:
    assert over("growth: {parameters: null}").config.growth.parameters is None
    assert one(lambda: over("seed: null")).path == "seed"


def test_a_component_keeps_the_settings_of_its_base_as_long_as_it_is_the_same(over) -> None:
    assert over("task: {settings: {noise: 0.2}}").config.task.settings == {
        "noise": 0.2,
        "size": {"train": 100, "test": 50},
    }
    assert over("task: {use: mnist1d, settings: {size: {test: 1}}}").config.task.settings["size"] == {
        "train": 100,
        "test": 1,
    }
    assert over("task: {use: tasks/mnist1d, settings: {}}").config.task.settings["noise"] == 0.1


@pytest.mark.parametrize("task", ["mnist1d", "bytes", "{use: bytes}", "{use: other/mnist1d, settings: {}}"])
def test_a_component_that_is_named_anew_begins_without_settings(over, folder, task) -> None:
    (folder / "below.yaml").write_text(BELOW.replace("use: mnist1d", "use: tasks/mnist1d"))
    settings = over(f"task: {task}").config.task.settings
    assert settings == {}


def test_settings_go_over_a_base_that_names_a_component_alone(over) -> None:
    loaded = over("host: {settings: {width: 3}}")
    assert (loaded.config.host.use, loaded.config.host.settings) == ("pointwise-mlp", {"width": 3})
    assert loaded.origin(("host", "use")) == "below.yaml:2:7"


def test_below_settings_null_is_a_value(over) -> None:
    assert over("task: {settings: {noise: null}}").config.task.settings["noise"] is None


def test_set_goes_over_both(over) -> None:
    loaded = over("episode: {steps: 9}", "episode.steps=5", "task.settings.noise=0.3")
    assert (loaded.config.episode.steps, loaded.config.task.settings["noise"]) == (5, 0.3)


def test_a_base_may_have_a_base(over, folder) -> None:
    (folder / "mid.yaml").write_text("base: below.yaml\nepisode: {steps: 20, batch_size: 7}\n")
    loaded = over("episode: {steps: 10}", base="mid.yaml")
    episode = loaded.config.episode
    assert (episode.steps, episode.batch_size, episode.batches) == (10, 7, 3)
    assert [base.said for base in loaded.bases] == ["mid.yaml", "below.yaml"]
    assert loaded.bases[1].source == BELOW.encode()


def test_paths_are_relative_to_the_file_that_says_them(over, folder) -> None:
    inner = folder / "shared" / "deep"
    inner.mkdir(parents=True)
    (inner / "ground.yaml").write_text(f"{BELOW}plugins: {{local: [./own.py, /there/far.py]}}\n")
    (folder / "shared" / "mid.yaml").write_text("base: deep/ground.yaml\n")
    loaded = over("", base="shared/mid.yaml")
    assert loaded.config.plugins.local == ("shared/deep/own.py", "/there/far.py")
    assert [base.file for base in loaded.bases] == ["shared/mid.yaml", "shared/deep/ground.yaml"]


# --- where each value is from


def test_each_value_is_explained_with_the_file_that_says_it(over) -> None:
    loaded = over("episode:\n  steps: 9\ngrowth: {nursery: null}")
    origins = {found.path: found.origin for found in explain(loaded)}
    assert origins["base"] == "top.yaml:1:7"
    assert origins["episode.steps"] == "top.yaml:3:10"
    assert origins["episode.batches"] == "below.yaml:8:31"
    assert origins["growth.seeds"] == "below.yaml:7:29"
    assert origins["growth.nursery"] == origins["episode.batch_size"] == "default"


def test_the_base_itself_is_explained(over, folder) -> None:
    (found,) = explain(over(""), "base")
    assert (found.value, found.origin) == ("below.yaml", "top.yaml:1:7")
    (none,) = explain(load_config("below.yaml"), "base")
    assert (none.value, none.origin) == (None, "default")
    assert "base" not in [found.path for found in explain(load_config("below.yaml"))]
    assert "base" not in [found.path for found in explain(over(""), "episode")]


def test_a_problem_is_told_where_its_value_stands(over, folder) -> None:
    (folder / "below.yaml").write_text(BELOW.replace("batches: 3", "batches: many"))
    told = refused(lambda: over("seed: -1\nepisode: {steps: 0}", "rounds=0"))
    assert [(p.file, p.line, p.column, p.path) for p in told] == [
        ("top.yaml", 2, 7, "seed"),
        ("top.yaml", 3, 18, "episode.steps"),
        ("below.yaml", 8, 31, "episode.batches"),
        ("--set rounds=0", None, None, "rounds"),
    ]


def test_problems_are_told_in_the_order_of_the_files(over, folder) -> None:
    (folder / "below.yaml").write_text(f"seed: -1\n{BELOW}")
    (folder / "mid.yaml").write_text("base: below.yaml\n\n\nrounds: -1\n")
    told = refused(lambda: over("margin: -1", base="mid.yaml"))
    assert [(problem.file, problem.line) for problem in told] == [("top.yaml", 2), ("mid.yaml", 4), ("below.yaml", 1)]


@pytest.mark.parametrize("wrong", ["seed: 1e999", "seed: 1\nseed: 2", "7: x"])
def test_what_cannot_be_read_is_told_once_in_whichever_file(over, folder, wrong) -> None:
    """With a key that may have been meant to be it, no other is missing."""
    text = BELOW.replace("host: pointwise-mlp\n", "") if wrong == "7: x" else BELOW
    (folder / "below.yaml").write_text(f"{text}{wrong}\n")
    assert one(lambda: over("")).file == "below.yaml"
    (folder / "below.yaml").write_text(f"{text}environments: 3\n")
    assert one(lambda: over(f"environments: 2\n{wrong}")).file == "top.yaml"


def test_a_base_that_is_refused_as_a_value_is_told_once(over) -> None:
    assert refused(lambda: over(BELOW, base="1e999"))[0].code == "E112"
    assert len(refused(lambda: over(BELOW, base="1e999"))) == 1


def test_a_wrong_value_that_is_gone_over_is_no_problem(over, folder) -> None:
    (folder / "below.yaml").write_text(BELOW.replace("batches: 3", "batches: many"))
    assert over("episode: {batches: 4}").config.episode.batches == 4


def test_a_policy_below_arms_is_told_with_its_file_and_the_way_out(over) -> None:
    problem = one(lambda: over("arms: {a: {policy: static}}"))
    assert (problem.code, problem.file, problem.line) == ("E114", "top.yaml", 2)
    assert problem.hint == '"policy" is from the base: below.yaml:6:9. Write "policy: null" to take it away.'


# --- bases that cannot be taken


def test_a_circle_is_told_with_every_file_in_it(over, folder) -> None:
    (folder / "mid.yaml").write_text("seed: 1\nbase: ./top.yaml\n")
    problem = one(lambda: over("", base="mid.yaml"))
    assert (problem.code, problem.file, problem.line, problem.column) == ("E116", "mid.yaml", 2, 7)
    assert problem.message == "the bases go in a circle: top.yaml → mid.yaml → top.yaml"


def test_a_file_that_is_its_own_base_is_a_circle(over) -> None:
    assert one(lambda: over("", base="top.yaml")).message == "the bases go in a circle: top.yaml → top.yaml"


def test_a_circle_by_another_name_is_one_too(over, folder) -> None:
    (folder / "link.yaml").symlink_to("top.yaml")
    assert one(lambda: over("", base="link.yaml")).code == "E116"


def test_a_chain_has_an_end(folder) -> None:
    for number in range(MAX_BASES + 1):
        (folder / f"{number}.yaml").write_text(f"base: {number + 1}.yaml\n")
    (folder / f"{MAX_BASES + 1}.yaml").write_text(BELOW)
    problem = one(lambda: load_config("0.yaml"))
    assert (problem.code, problem.file) == ("E116", f"{MAX_BASES}.yaml")
    assert load_config("1.yaml").config.episode.steps == 30


@pytest.mark.parametrize(
    ("base", "code", "message", "hint"),
    [
        ("quik", "E116", 'there is no preset "quik"', 'Did you mean "quick"?'),
        ("nothing-like-it", "E116", 'there is no preset "nothing-like-it"', "Known: exact, "),
        ("below", "E116", 'there is no preset "below"', "A file is written with its ending: base: below.yaml"),
        ("belw.yaml", "E101", "the base belw.yaml: there is no such file", "Did you mean below.yaml?"),
        (".", "E116", 'there is no preset "."', "Known: exact, "),
        ("./", "E101", "the base .: expected a file, received a folder", None),
        ("[below.yaml]", "E111", "expected the path of a file, or the name of a preset, received [", "has one base"),
        ("3", "E111", "expected the path of a file, or the name of a preset, received 3", "Write base: ./other.yaml"),
        ("", "E111", "the name of a preset, received nothing", None),
        ("''", "E112", 'the name of a preset, received ""', None),
    ],
)
def test_a_base_that_cannot_be_taken_is_told_where_it_is_named(over, base, code, message, hint) -> None:
    problem = refused(lambda: over("task: x\nhost: y\nslots: {a: {blueprints: [b]}}\npolicy: z", base=base))[0]
    assert (problem.code, problem.file, problem.line, problem.path) == (code, "top.yaml", 1, "base")
    assert message in problem.message
    assert hint is None or hint in problem.hint


def test_what_is_wrong_above_is_told_beside_a_base_that_cannot_be_read(over, folder) -> None:
    (folder / "below.yaml").write_text("task: [\n")
    told = refused(lambda: over("seed: 1\nseed: 2"))
    assert [(problem.code, problem.file) for problem in told] == [("E105", "top.yaml"), ("E104", "below.yaml")]


def test_a_base_is_written_and_not_set(over) -> None:
    problem = one(lambda: over("", "base=quick"))
    assert (problem.code, problem.file, problem.path) == ("E115", "--set base=quick", "base")


@pytest.mark.parametrize(
    ("text", "hint"), [("bse: quick", 'Did you mean "base"?'), ("episode: {base: quick}", "at the top of the file")]
)
def test_a_base_at_the_wrong_place_is_told(small, problems, text, hint) -> None:
    (problem,) = problems(f"{small}{text}\n")
    assert problem.code == "E110"
    assert hint in problem.hint


# --- the presets


@pytest.mark.parametrize("name", ["quick", "strict", "exact"])
def test_a_preset_without_components_is_offered_everywhere(name) -> None:
    assert needs(preset(name).decode()) == set()
    assert len(offered()[name]) > 20


def test_a_preset_is_offered_only_where_its_plugins_are(monkeypatch) -> None:
    monkeypatch.setattr("esper_core.config.presets.entry_points", lambda group: [])
    assert set(offered()) == {"quick", "strict", "exact"}


def test_a_preset_lies_below_the_file(folder) -> None:
    (folder / "top.yaml").write_text(BELOW.replace("episode: {steps: 30, batches: 3}", "base: quick"))
    loaded = load_config("top.yaml")
    assert (loaded.config.environments, loaded.config.episode.steps) == (2, 12)
    assert loaded.origin(("environments",)) == "preset quick:2:15"
    (folder / "top.yaml").write_text(f"{BELOW}base: quick\n")
    assert load_config("top.yaml").config.episode.steps == 30


def test_a_name_that_leads_out_of_the_presets_is_none() -> None:
    assert preset("../presets/quick") is None
    assert preset("") is None


def test_laying_large_files_over_each_other_is_quick(over, folder) -> None:
    many = "".join(f"  key{number}: {number}\n" for number in range(4000))
    text = BELOW.replace("host: pointwise-mlp", f"host:\n use: h\n settings:\n{many}")
    (folder / "below.yaml").write_text(text)
    loaded = over(f"host:\n settings:\n{many}")
    assert loaded.origin(("host", "settings", "key3999")).startswith("top.yaml:")
