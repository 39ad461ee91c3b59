"""The step cache: the same records as a plain ``Episode``, nothing trained twice, and nothing old after a change."""

import os
import random
import shutil
import sqlite3
import sys

import numpy as np
import pytest

from esper_core.app.episode import Episode
from esper_core.leyline import WAIT, Action, LifecycleError, Op
from esper_study import step_cache
from esper_study.step_cache import FILE, CachedPlay, fingerprint

CONFIG = """
task: {{use: npz, settings: {{path: {data}}}}}
host: {{use: mlp, settings: {{hidden: 4}}}}
slots: {{first: {{blueprints: [mlp]}}}}
policy: static
growth: {{auto_advance: false}}
episode: {{steps: 5, batches: 1, batch_size: 20}}
"""
PLANT = Action(Op.GERMINATE, "first", "blueprints/mlp", speed=1)
ADVANCE = Action(Op.ADVANCE, "first")
PLANS = [
    (PLANT, WAIT, ADVANCE, WAIT, WAIT),
    (PLANT, WAIT, WAIT, WAIT, WAIT),
    (WAIT, PLANT, WAIT, ADVANCE, WAIT),
    (PLANT, WAIT, ADVANCE, WAIT, WAIT),
]
DIFFERENT = len({plan[:n] for plan in PLANS for n in range(6)})


@pytest.fixture(autouse=True)
def stable_sources(monkeypatch):
    """Editing a source file while the tests run must not fail them."""
    monkeypatch.setattr(step_cache, "_own_sources", list)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_data(folder / "data.npz", seed=0)
    (folder / "config.yaml").write_text(CONFIG.format(data=folder / "data.npz"))
    return folder / "config.yaml"


def write_data(path, seed):
    draw = np.random.default_rng(seed)
    np.savez(path, inputs=draw.normal(size=(200, 6)), targets=np.arange(200) % 3)


def describe(moment):
    """Return all measurements; a repr distinguishes floats to the last bit."""
    return {"observation": repr(moment.observation), "reward": repr(moment.reward), "ending": repr(moment.ending)}


def cached(file, home=None):
    return CachedPlay(Episode.of(file), describe, home)


def episode(play, actions, seed=3):
    records = [play.begin(seed), *(play.act(action) for action in actions)]
    return [one if isinstance(one, dict) else describe(one) for one in records]


@pytest.fixture(scope="module")
def plain(file):
    return Episode.of(file)


@pytest.fixture(scope="module")
def filled(file, tmp_path_factory):
    """A cache that has every step of the plans."""
    folder = tmp_path_factory.mktemp("filled") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_cache, "_own_sources", list)
        one = cached(file, folder)
        for plan in PLANS:
            episode(one, plan)
    assert one.trained == DIFFERENT
    return folder


@pytest.fixture
def home(filled, tmp_path):
    """A copy of the cache that another process has filled."""
    return shutil.copytree(filled, tmp_path / "home")


@pytest.mark.parametrize("states", [1, 64])
def test_records_equal_those_of_a_play_and_no_step_is_trained_twice(file, plain, tmp_path, monkeypatch, states):
    monkeypatch.setattr(step_cache, "STATES_KEPT", states)
    one = cached(file, tmp_path)
    for plan in PLANS:
        assert episode(one, plan) == episode(plain, plan)
    if states == 64:
        assert one.trained == DIFFERENT
        assert one.trained + one.recalled == sum(len(plan) + 1 for plan in PLANS)


def test_another_process_trains_nothing_that_is_cached(file, home, plain, monkeypatch):
    monkeypatch.setattr(Episode, "begin", lambda *_: pytest.fail("the engine is not needed"))
    two = cached(file, home)
    found = [episode(two, plan) for plan in PLANS]
    assert two.trained == 0
    monkeypatch.undo()
    assert found == [episode(plain, plan) for plan in PLANS]


def test_episodes_may_be_left_and_taken_up_with_new_actions(file, home, plain):
    two, draw = cached(file, home), random.Random(5)
    for _ in range(8):
        seed, actions = draw.choice([3, 4]), [*draw.choice(PLANS)[: draw.randrange(4)], WAIT]
        assert episode(two, actions, seed) == episode(plain, actions, seed)


def test_an_impossible_action_is_rejected_and_changes_nothing(file, plain, tmp_path):
    one = cached(file, tmp_path)
    with pytest.raises(RuntimeError, match="no episode has begun"):
        one.act(WAIT)
    one.begin(3)
    for _ in range(2):
        with pytest.raises(LifecycleError):
            one.act(ADVANCE)
    assert one.act(PLANT) == episode(plain, [PLANT])[-1]


def test_settings_data_packages_and_torch_are_part_of_the_fingerprint(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(data=tmp_path / "data.npz"))

    def key(*changes, seed=0):
        write_data(tmp_path / "data.npz", seed)
        return fingerprint(Episode.of(path, changes))

    before = key()
    assert key() == before
    changes = ["seed=1", "optimizer.seed.learning_rate=0.1", "host.settings.hidden=5", "reward=basic"]
    assert len({before, *map(key, changes), key("reward={use: team, settings: {price: 3}}"), key(seed=1)}) == 7
    with monkeypatch.context() as patch:
        patch.setenv("MKL_CBWR", "COMPATIBLE")
        assert key() != before
    monkeypatch.setattr(step_cache, "_packages", lambda: ["torch==1.0"])
    assert key() != before


def test_source_code_is_part_of_the_fingerprint_unless_it_changed_too_late(file, tmp_path, monkeypatch, caplog):
    source = tmp_path / "plugin.py"
    source.write_text("A = 1\n")
    os.utime(source, (1e9, 1e9))
    play = Episode.of(file)
    without = fingerprint(play)
    monkeypatch.setattr(step_cache, "_own_sources", lambda: [source])
    assert fingerprint(play) not in (None, without)
    os.utime(source, (4e9, 4e9))
    assert fingerprint(play) is None
    assert "changed after this process began" in caplog.text
    one = cached(file, tmp_path / "home")
    episode(one, PLANS[0])
    episode(one, PLANS[0])
    assert (one.trained, one.recalled) == (12, 0)


def test_loaded_code_of_the_user_counts_with_its_whole_package(tmp_path, monkeypatch):
    monkeypatch.undo()  # that of the fixture
    package = tmp_path / "my_package_for_cache"
    (package / "sub").mkdir(parents=True)
    for name in ("__init__.py", "sub/lazy.py"):
        (package / name).write_text("")
    (tmp_path / "my_module_for_cache.py").write_text("import my_package_for_cache\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("my_module_for_cache")
    try:
        found = set(step_cache._own_sources())
    finally:
        for name in ("my_module_for_cache", "my_package_for_cache"):
            del sys.modules[name]
    assert {package / "__init__.py", package / "sub" / "lazy.py", tmp_path / "my_module_for_cache.py"} <= found
    assert not [path for path in found if "site-packages" in path.parts or path.name == "json"]


@pytest.mark.parametrize("damage", ["no database", "a folder"])
def test_an_unusable_file_is_a_warning_and_steps_are_trained(file, plain, home, caplog, damage):
    (home / FILE).unlink()
    if damage == "a folder":
        (home / FILE).mkdir()
    else:
        (home / FILE).write_text("this is no database")
    two = cached(file, home)
    assert episode(two, PLANS[0]) == episode(plain, PLANS[0])
    assert (two.trained, two.recalled) == (6, 0)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"{home / FILE} is not used any more, and steps are trained instead"
    ]


def test_a_database_that_fails_later_is_a_warning_and_steps_are_trained(file, plain, home, caplog):
    two = cached(file, home)
    two.begin(3)
    with sqlite3.connect(home / FILE) as database:
        database.execute("DROP TABLE steps")
    assert [two.act(action) for action in PLANS[0]] == episode(plain, PLANS[0])[1:]
    assert len(caplog.records) == 1
