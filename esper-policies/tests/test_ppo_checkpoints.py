"""Trained policies are saved and loaded, and refused where they cannot be used."""

from __future__ import annotations

import json
import logging
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from esper_core.leyline import WAIT, SettingError
from esper_policies.ppo import checkpoints as keeping
from esper_policies.ppo.checkpoints import NUMBERS, WORDS
from esper_policies.ppo.learning import Diagnosis
from esper_policies.ppo.policy import Ppo
from esper_testing.games import contextual, delayed, learn, play
from esper_testing.policies import episode, space_of

TINY = {"width": 8, "together": 4, "passes": 2, "minibatch": 16, "learning_rate": 1e-2}


@pytest.fixture
def folder(tmp_path):
    """A policy that has learnt the delayed game for a round, in its folder."""
    game = delayed()
    learn(Ppo(game.space, **TINY, speeds=[2, 5], save=str(tmp_path / "kept")), game, 2, 4)
    return tmp_path / "kept"


def alike(one, other):
    pairs = zip(one.network.parameters(), other.network.parameters(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def actions(policy, game, seed=900):
    return [turn.action for one in play(policy, game, 4, seed).episodes for turn in one.turns]


def test_it_is_written_after_each_round_as_numbers_and_words(folder):
    assert sorted(file.name for file in folder.iterdir()) == [WORDS, NUMBERS]
    words = json.loads((folder / WORDS).read_text())
    assert words["policy"] == "ppo"
    assert words["rounds"] == 2
    assert words["names"] == ["games/daisy", "games/oak", "games/weed"]
    assert words["blueprints"]["games/oak"] == {"slot": "early", "parameters": 200, "flops": 400}
    assert words["settings"]["width"] == 8
    assert not {"load", "save"} & set(words["settings"])
    assert all(name.startswith(("network/", "scales/")) for name in load_file(folder / NUMBERS))
    assert not any(pickle.PROTO in file.read_bytes()[:2] for file in folder.iterdir())


def test_nothing_that_could_run_is_read(folder, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load runs what it reads"))
    monkeypatch.setattr(pickle, "loads", lambda *_, **__: pytest.fail("pickle runs what it reads"))
    Ppo(delayed().space, load=str(folder), speeds=[2, 5])


def test_who_loads_it_and_does_not_learn_decides_as_the_trained_one_did(folder, tmp_path):
    game = delayed()
    trained = Ppo(game.space, **TINY, speeds=[2, 5])
    learn(trained, game, 2, 4)
    judge = Ppo(game.space, **TINY, speeds=[2, 5], learn=False)
    judge.load_state_dict(trained.state_dict())
    loaded = Ppo(game.space, load=str(folder), speeds=[2, 5], learn=False, together=4)
    assert actions(loaded, game) == actions(judge, game)
    assert loaded.scales.state_dict().plain == trained.scales.state_dict().plain
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.network.parameters(), trained.network.parameters(), strict=True)
    )


@pytest.mark.parametrize("where", ["file", "file/under/it"])
def test_a_place_where_nothing_can_be_kept_is_refused_before_anything_is_learnt(where, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SettingError, match="file is no folder") as caught:
        Ppo(delayed().space, save=str(tmp_path / where))
    assert [one.path for one in caught.value.problems] == ["save"]
    Ppo(delayed().space, save=str(tmp_path / "new" / "and deep"))
    assert not (tmp_path / "new").exists()


def test_who_asks_it_otherwise_than_it_learnt_is_told(folder, caplog):
    with caplog.at_level(logging.WARNING, logger="esper"):
        Ppo(delayed().space, load=str(folder), speeds=[2, 5])
        assert caplog.messages == []
        Ppo(delayed().space, load=str(folder), speeds=[2, 5], decide_every=3, last=0.5)
    assert caplog.messages == [
        "ppo: the policy that it loads learnt with decide_every: 1, and here it is 3",
        "ppo: the policy that it loads learnt with last: 1.0, and here it is 0.5",
    ]


def test_who_blends_in_at_another_speed_than_it_learnt_is_told(tmp_path, caplog):
    Ppo(delayed().space, **TINY, speeds=[2]).save(str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="esper"):
        Ppo(delayed().space, load=str(tmp_path), speeds=[3])
    assert caplog.messages == ["ppo: the policy that it loads learnt with speeds: [2], and here it is [3]"]


def test_its_size_is_that_of_the_trained_one_whatever_the_settings_say_and_stays_so_when_it_is_kept_again(
    folder, tmp_path
):
    game, again = delayed(), str(tmp_path / "again")
    loaded = Ppo(game.space, load=str(folder), speeds=[2, 5], width=32, memory=False, names=3, together=4, save=again)
    assert loaded.network.width == 8
    assert loaded.network.memory is not None
    learn(loaded, game, 1, 4)
    twice = Ppo(game.space, load=again, speeds=[2, 5], learn=False, together=4)
    assert alike(twice, loaded)


def test_other_blueprints_and_slots_than_it_learnt_with_are_decided_upon(folder):
    space = space_of(3, "unheard-of")
    policy = Ppo(space, load=str(folder), speeds=[2, 5], learn=False)
    for scene in episode(space, 1, stranger=True):
        (action,) = policy.act([scene.observation], [scene.mask])
        assert scene.mask.allows(action)
    assert policy._names == ["games/daisy", "games/oak", "games/weed"]


def test_one_that_goes_on_learning_gets_to_know_new_names_behind_the_old_ones(folder):
    space = space_of(1, "new")
    assert Ppo(space, load=str(folder), speeds=[2, 5])._names == [
        "games/daisy",
        "games/oak",
        "games/weed",
        "new/blueprint-0",
    ]


def test_a_policy_that_is_shipped_is_found_by_its_name(folder, tmp_path, monkeypatch):
    (tmp_path / "package" / "trained").mkdir(parents=True)
    (tmp_path / "package" / "trained" / "oak-lover").symlink_to(folder, target_is_directory=True)
    monkeypatch.setattr(keeping.resources, "files", lambda name: tmp_path / "package")
    assert Ppo(delayed().space, load="oak-lover", speeds=[2, 5]).network.width == 8


# What is refused.


def refused(folder, **settings):
    with pytest.raises(SettingError) as caught:
        Ppo(delayed().space, load=str(folder), **{"speeds": [2, 5], **settings})
    return str(caught.value)


def changed(folder, **words):
    file = folder / WORDS
    told = json.loads(file.read_text())
    told |= words
    file.write_text(json.dumps({key: value for key, value in told.items() if value is not ...}, default=str))
    return folder


@pytest.mark.parametrize("name", ["nowhere", "no\0where", "../..", "a" * 300])
def test_a_name_of_nothing_is_refused(name):
    with pytest.raises(SettingError, match="there is no trained policy of this name"):
        Ppo(delayed().space, load=name)


@pytest.mark.parametrize("missing", [WORDS, NUMBERS])
def test_half_of_one_is_refused(folder, missing):
    (folder / missing).unlink()
    assert "there is no trained policy" in refused(folder)


@pytest.mark.parametrize("words", [{"schema": 99}, {"format": 0}, {"columns": {"whole": ["progress"]}}])
def test_one_that_learnt_from_other_columns_is_refused_and_not_misled(folder, words):
    assert "it learnt from observations of schema" in refused(changed(folder, **words))


@pytest.mark.parametrize(
    "words",
    [
        {"names": 7},
        {"names": None},
        {"scales": {}},
        {"scales": None},
        {"settings": []},
        {"settings": {"width": "wide"}},
        {"settings": {"width": 16}},
        {"settings": {"memory": False}},
        {"settings": {"nonsense": 1}},
        {"rounds": "many"},
    ],
)
def test_words_that_do_not_hold_together_are_refused_as_damaged(folder, words):
    if isinstance(words.get("settings"), dict):
        words = {"settings": json.loads((folder / WORDS).read_text())["settings"] | words["settings"]}
    assert "it is damaged" in refused(changed(folder, **words))


@pytest.mark.parametrize("key", ["names", "settings", "scales", "blueprints", "rounds", "columns", "schema", "format"])
def test_words_with_something_missing_are_refused_as_damaged(folder, key):
    told = json.loads((folder / WORDS).read_text())
    del told[key]
    (folder / WORDS).write_text(json.dumps(told))
    assert "it is damaged" in refused(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b"3"])
def test_files_that_are_none_are_refused_as_damaged(folder, content):
    (folder / WORDS).write_bytes(content)
    assert "it is damaged" in refused(folder)


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04N."])
def test_numbers_that_are_none_are_refused_as_damaged(folder, content):
    (folder / NUMBERS).write_bytes(content)
    assert "it is damaged" in refused(folder)


def test_numbers_with_something_missing_or_of_another_shape_are_refused_as_damaged(folder):
    tensors = load_file(folder / NUMBERS)
    for name in ("network/value.0.weight", "scales/whole_mean"):
        for other in ({}, {name: torch.zeros(2, 3)}, {name: torch.full_like(tensors[name], float("nan"))}):
            save_file({key: one for key, one in tensors.items() if key != name} | other, folder / NUMBERS)
            assert "it is damaged" in refused(folder)


@pytest.mark.parametrize(
    "own", [{"speeds": [2]}, {"blends": ["add", "gate"]}, {"speeds": [1, 2, 3]}, {"speeds": [7, 9]}]
)
def test_heads_that_do_not_fit_are_refused_with_both(folder, own):
    said = refused(folder, **own)
    assert "it chooses among {'speed': [" in said
    assert "the options that it was trained with" in said


# Signs, in words.


def heeded(rounds, **figures):
    own = Diagnosis()
    fine = {"explained_variance": 0.5, "kl": 0.01, "clipped": 0.1, "entropy_op": 0.7, "spread_of_returns": 1.0}
    return [own.heed({**fine, **figures}, unknown=0, episodes=4) for _ in range(rounds)]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"explained_variance": -0.5}, "foretold less than their mean"),
        ({"kl": 1e-8}, "nothing changed"),
        ({"clipped": 0.8}, "most of its decisions were clipped"),
        ({"entropy_op": 1e-5}, "tried nothing new"),
        ({"spread_of_returns": 0.0}, "every episode came to the same"),
    ],
)
def test_each_sign_is_told_in_words_once_after_some_rounds(figures, words):
    told = heeded(12, **figures)
    assert [len(one) for one in told] == [0, 0, 0, 0, 1, *[0] * 7]
    assert words in told[4][0]
    assert "5 rounds" in told[4][0]


def test_nothing_is_told_where_all_is_well_or_a_sign_passes():
    assert not any(heeded(12))
    own = Diagnosis()
    for number in range(20):
        figures = {"kl": 1e-9 if number % 5 else 0.1, "entropy_op": 0.4}
        assert own.heed(figures, unknown=0, episodes=4) == []


def test_rewards_that_nobody_knows_are_told_at_once_and_once():
    own = Diagnosis()
    (said,) = own.heed({}, unknown=3, episodes=0)
    assert "no reward is known" in said
    assert "twin: true" in said
    assert [own.heed({}, unknown=3, episodes=0) for _ in range(8)] == [[]] * 8
    assert Diagnosis().heed({}, unknown=1, episodes=3) == []


def test_one_episode_a_round_is_not_told_that_all_came_to_the_same():
    own = Diagnosis()
    figures = {"kl": 0.1, "entropy_op": 0.4, "spread_of_returns": 0.0}
    assert not any(own.heed(figures, unknown=0, episodes=1) for _ in range(9))


def test_what_is_told_is_told_with_the_arm(caplog):
    game = contextual()
    policy = Ppo(game.space, **TINY, entropy=0.0, entropy_end=0.0)
    with caplog.at_level(logging.WARNING, logger="esper"):
        for number in range(6):
            policy.update(play(Idle(), game, 4, 0, number))
    told = [record.getMessage() for record in caplog.records]
    assert any(one.startswith("arm contextual: for 5 rounds every episode came to the same") for one in told)
    assert len(told) == len(set(told))


class Idle:
    def act(self, observations, masks):
        return [WAIT] * len(masks)
