"""Trained policies are saved and loaded, and refused where they cannot be used."""

import json
import logging
import math
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from esper_core.leyline import SettingError
from esper_policies.ppo.policy import Ppo
from esper_policies.ppo.trained_policies import NUMBERS, WORDS
from tests.support.games import delayed, learn, play

TINY = {"width": 8, "together": 4, "passes": 2, "minibatch": 16, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A policy that has learnt the delayed game for two rounds, saved in the folder ``trained.settings.save``."""
    game = delayed()
    policy = Ppo(game.space, **TINY, speed=2, save=str(tmp_path_factory.mktemp("trained") / "kept"))
    learn(policy, game, 2, 4)
    return policy


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the folder of ``trained``."""
    return Path(shutil.copytree(trained.settings.save, tmp_path / "kept"))


def alike(first, second):
    pairs = zip(first.network.parameters(), second.network.parameters(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def test_it_is_saved_as_safetensors_and_json(folder):
    assert sorted(file.name for file in folder.iterdir()) == [WORDS, NUMBERS]
    words = json.loads((folder / WORDS).read_text())
    assert words["policy"] == "ppo"
    assert words["names"] == ["games/daisy", "games/oak", "games/weed"]
    assert words["settings"]["width"] == 8
    assert not {"load", "save"} & set(words["settings"])
    assert all(name.startswith(("network/", "scales/")) for name in load_file(folder / NUMBERS))
    assert not any(pickle.PROTO in file.read_bytes()[:2] for file in folder.iterdir())


def test_a_loaded_policy_decides_as_the_trained_one(folder, trained):
    game = delayed()
    judge = Ppo(game.space, **TINY, speed=2, learn=False)
    judge.load_state_dict(trained.state_dict())
    loaded = Ppo(game.space, load=str(folder), speed=2, learn=False, together=4)
    assert play(loaded, game, 4, 900) == play(judge, game, 4, 900)
    assert loaded.scales.state_dict().plain == trained.scales.state_dict().plain
    assert alike(loaded, trained)


@pytest.mark.parametrize("name", ["file", "file/under/it"])
def test_an_invalid_save_folder_is_refused_before_training(name, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SettingError, match="file is not a folder") as caught:
        Ppo(delayed().space, save=str(tmp_path / name))
    assert [problem.path for problem in caught.value.problems] == ["save"]
    Ppo(delayed().space, save=str(tmp_path / "new" / "and deep"))
    assert not (tmp_path / "new").exists()


def test_settings_that_differ_from_training_are_reported(folder, caplog):
    with caplog.at_level(logging.WARNING, logger="esper"):
        Ppo(delayed().space, load=str(folder), speed=2)
        assert caplog.messages == []
        Ppo(delayed().space, load=str(folder), speed=2, decide_every=3, last=0.5)
    assert caplog.messages == [
        "ppo: the loaded policy was trained with decide_every: 1, but the configuration has 3",
        "ppo: the loaded policy was trained with last: 1.0, but the configuration has 0.5",
    ]


def test_the_size_of_the_trained_network_is_kept(folder, tmp_path):
    game, again = delayed(), str(tmp_path / "again")
    loaded = Ppo(game.space, load=str(folder), speed=2, width=32, memory=False, names=3, together=4, save=again)
    assert loaded.network.width == 8
    assert loaded.network.memory is not None
    learn(loaded, game, 1, 4)
    twice = Ppo(game.space, load=again, speed=2, learn=False, together=4)
    assert alike(twice, loaded)


def refused(folder, **settings):
    with pytest.raises(SettingError) as caught:
        Ppo(delayed().space, load=str(folder), **settings)
    return str(caught.value)


def changed(folder, **words):
    file = folder / WORDS
    metadata = json.loads(file.read_text()) | words
    file.write_text(json.dumps({key: value for key, value in metadata.items() if value is not ...}, default=str))
    return folder


@pytest.mark.parametrize("name", ["no\0where", "../..", "a" * 300])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(SettingError, match="there is no trained policy of this name"):
        Ppo(delayed().space, load=name)


@pytest.mark.parametrize("words", [{"schema": 99}, {"format": 0}, {"columns": {"whole": ["progress"]}}])
def test_a_policy_of_another_observation_schema_is_refused(folder, words):
    assert "it was trained on observations of schema" in refused(changed(folder, **words))


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        *(("whole", {key: ...}) for key in ("names", "columns", "format")),
        *(("whole", words) for words in ({"names": 7}, {"scales": {}}, {"settings": []})),
        *(("settings", words) for words in ({"width": "wide"}, {"width": 16}, {"memory": False}, {"nonsense": 1})),
        *(("scales", {"returns": number}) for number in (0, -1.0, math.nan, "wide")),  # which divides
    ],
    ids=str,
)
def test_incomplete_or_inconsistent_metadata_is_refused_as_damaged(folder, part, changes):
    words = changes if part == "whole" else {part: json.loads((folder / WORDS).read_text())[part] | changes}
    assert "it is damaged" in refused(changed(folder, **words))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *((WORDS, content) for content in (None, b"{", b"[1, 2]", b"\xff\xfe")),
        *((NUMBERS, content) for content in (None, b"", b"\x80\x04N.")),
    ],
)
def test_missing_files_are_reported_and_unreadable_ones_refused_as_damaged(folder, file, content):
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    assert ("there is no trained policy" if content is None else "it is damaged") in refused(folder)


def test_incomplete_tensors_and_other_shapes_are_refused_as_damaged(folder):
    tensors = load_file(folder / NUMBERS)
    for name in ("network/value.0.weight", "scales/whole_mean"):
        for other in ({}, {name: torch.zeros(2, 3)}, {name: torch.full_like(tensors[name], float("nan"))}):
            save_file({key: tensor for key, tensor in tensors.items() if key != name} | other, folder / NUMBERS)
            assert "it is damaged" in refused(folder)
