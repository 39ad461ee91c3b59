"""Does what is remembered come back as it was, and is nothing trained twice?"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest

from esper_core import Play, Remembered
from esper_core.app import sameness
from esper_core.app.moments import told_of_moment
from esper_core.leyline import WAIT, Action, LifecycleError, Op, State

pytestmark = pytest.mark.members

CONFIG = """
task: {use: mnist1d, settings: {samples: 500, validation: 150}}
host: {use: pointwise-mlp, settings: {channels: 4, hidden: 8}}
slots: {early: {blueprints: [pointwise]}}
policy: static
growth: {auto_advance: false}
episode: {steps: 5, batches: 1, batch_size: 20}
lanes: 1
"""
PLANT = Action(Op.GERMINATE, "early", "blueprints/pointwise", speed=1)
ADVANCE = Action(Op.ADVANCE, "early")
PRUNE = Action(Op.PRUNE, "early", speed=1)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prefixes") / "config.yaml"
    path.write_text(CONFIG)
    return path


def an_episode(play, actions, seed=3):
    return [play.begin(seed), *(play.act(action) for action in actions)]


PLANS = [
    (PLANT, WAIT, ADVANCE, WAIT, WAIT),
    (PLANT, WAIT, WAIT, WAIT, WAIT),
    (WAIT, PLANT, WAIT, ADVANCE, WAIT),
    (PLANT, WAIT, ADVANCE, WAIT, WAIT),
]


@pytest.mark.parametrize("states", [1, 2, 64])
def test_it_gives_what_play_gives_however_few_states_are_kept(file, states):
    remembered, plain = Remembered(Play.of(file), states=states), Play.of(file)
    for actions in PLANS:
        assert an_episode(remembered, actions) == an_episode(plain, actions)


def test_nothing_is_trained_twice(file):
    remembered = Remembered(Play.of(file))
    for actions in PLANS:
        an_episode(remembered, actions)
    different = {actions[:n] for actions in PLANS for n in range(len(actions) + 1)}
    assert remembered.trained == len(different)
    assert remembered.trained + remembered.recalled == sum(len(actions) + 1 for actions in PLANS)


def test_it_may_be_left_in_the_middle_and_seeds_do_not_mix(file):
    remembered, plain = Remembered(Play.of(file), states=3), Play.of(file)
    draw = random.Random(5)
    for _ in range(6):
        seed, actions = draw.randrange(2), draw.choice(PLANS)[: draw.randrange(6)]
        assert an_episode(remembered, actions, seed) == an_episode(plain, actions, seed)


def test_what_is_not_possible_is_refused_and_changes_nothing(file):
    remembered, plain = Remembered(Play.of(file)), Play.of(file)
    remembered.begin(3)
    for _ in range(2):
        with pytest.raises(LifecycleError):
            remembered.act(ADVANCE)
    assert remembered.act(PLANT) == an_episode(plain, [PLANT])[-1]


def test_what_somebody_else_plays_on_the_same_engine_is_not_mistaken_for_it(file):
    play, plain = Play.of(file), Play.of(file)
    remembered = Remembered(play)
    remembered.begin(1)
    remembered.act(PLANT)
    play.begin(5)
    assert remembered.act(WAIT) == an_episode(plain, [PLANT, WAIT], seed=1)[-1]


def test_an_episode_has_to_be_begun_and_there_has_to_be_room(file):
    with pytest.raises(RuntimeError, match="begin"):
        Remembered(Play.of(file)).act(WAIT)
    with pytest.raises(ValueError, match="room for one state"):
        Remembered(Play.of(file), states=0)


CODE_OF = sameness._code_of


@pytest.fixture(scope="module", autouse=True)
def code_that_stays():
    """Who edits a source while the tests run makes other code of it, which ``test_sameness`` looks at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sameness, "_code_of", lambda prepared: sameness._Code())
        yield


def a_process(file, home, *overrides, **more):
    """What a process of its own has: nothing in memory."""
    return Remembered(Play.of(file, overrides), home=home, **more)


def of(home, kind):
    return sorted(home.glob(f"*.{kind}"))


@pytest.fixture(scope="module")
def filled(file, tmp_path_factory):
    """A folder in which a process left all that it played."""
    home = tmp_path_factory.mktemp("filled")
    one = a_process(file, home)
    for actions in PLANS:
        an_episode(one, actions)
    return home


@pytest.fixture
def home(filled, tmp_path):
    """Such a folder, to do as one likes with."""
    own = tmp_path / "home"
    own.mkdir()
    for path in filled.iterdir():
        own.joinpath(path.name).write_bytes(path.read_bytes())
    return own


@pytest.fixture
def no_twin(monkeypatch):
    """No twin is trained any more."""

    def trained(self, seed):
        pytest.fail(f"the twin of seed {seed} was trained")

    monkeypatch.setattr(Play, "_undisturbed", trained)


def test_the_next_process_trains_nothing_of_what_one_played_and_no_twin(file, home, no_twin):
    again = a_process(file, home)
    told = [an_episode(again, actions) for actions in PLANS]
    assert (again.trained, again.recalled) == (0, sum(len(actions) + 1 for actions in PLANS))
    assert again.twin.ending.signals == told[-1][-1].observation.twin


def test_what_comes_from_the_folder_is_to_the_bit_what_play_gives(file, home):
    again, plain = a_process(file, home), Play.of(file)
    for actions in PLANS:
        recalled, own = an_episode(again, actions), an_episode(plain, actions)
        assert recalled == own
        assert [told_of_moment(one) for one in recalled] == [told_of_moment(one) for one in own]
        assert again.twin.signals == plain.twin.signals
        assert again.twin.ending == plain.twin.ending
        assert [one.tolist() for one in again.twin.losses] == [one.tolist() for one in plain.twin.losses]
    assert again.trained == 0


def test_a_new_action_goes_on_from_the_nearest_state_of_the_folder(file, home, no_twin):
    again = a_process(file, home)
    new = (PLANT, WAIT, ADVANCE, PRUNE, WAIT)
    told = an_episode(again, new)
    assert again.trained == 2
    (ours,) = {told[-1].ending.test_metric}
    later = a_process(file, home)
    assert an_episode(later, new)[-1].ending.test_metric == ours
    assert later.trained == 0


def test_a_new_action_after_it_comes_to_the_numbers_of_play(file, home):
    new = (PLANT, WAIT, ADVANCE, PRUNE, WAIT)
    assert an_episode(a_process(file, home), new) == an_episode(Play.of(file), new)


@pytest.mark.parametrize("kind", ["moment", "state", "twin"])
@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: data + b"x"])
def test_whatever_is_broken_is_trained_again_to_the_same_numbers(file, home, caplog, kind, damage):
    for path in of(home, kind):
        path.write_bytes(damage(path.read_bytes()))
    again = a_process(file, home)
    new = (PLANT, WAIT, ADVANCE, PRUNE, WAIT)
    assert an_episode(again, new) == an_episode(Play.of(file), new)
    assert "does not count, and is trained again" in caplog.text
    caplog.clear()
    later = a_process(file, home)
    an_episode(later, new)
    assert later.trained == 0
    assert not caplog.records


@pytest.mark.parametrize("kind", ["moment", "state", "twin"])
def test_what_is_whole_and_yet_no_moment_state_or_twin_is_trained_again(file, home, caplog, kind):
    again = a_process(file, home)
    for name, done in {"seed": (), "one": (PLANT,), "two": (PLANT, WAIT), "three": (PLANT, WAIT, ADVANCE)}.items():
        path = again._folder._path(kind, repr((3, done)))
        if path.exists():
            path.unlink()
            again._folder.write(kind, repr((3, done)), State({"told": name, "seed": 3, "step": 0}))
    new = (PLANT, WAIT, ADVANCE, PRUNE, WAIT)
    assert an_episode(again, new) == an_episode(Play.of(file), new)
    assert "does not count, and is trained again: " in caplog.text


@pytest.mark.parametrize("room", [1, 200_000, 1_000_000])
def test_however_little_room_there_is_the_numbers_are_the_same(file, tmp_path, room):
    plain = Play.of(file)
    for actions in PLANS:
        own = a_process(file, tmp_path, room=room, states=1, moments=1)
        assert an_episode(own, actions) == an_episode(plain, actions)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= room


def test_two_processes_at_once_profit_from_each_other(file, tmp_path):
    one, two = a_process(file, tmp_path), a_process(file, tmp_path)
    one.begin(3), two.begin(3)
    for action in PLANS[0]:
        assert one.act(action) == two.act(action)
    assert (one.trained, two.trained) == (6, 0)


@pytest.mark.parametrize("change", ["episode.batches=2", "optimizer.host.learning_rate=0.02", "reward=basic"])
def test_another_configuration_is_served_nothing(file, home, change):
    other = a_process(file, home, change)
    other.begin(3)
    assert (other.trained, other.recalled) == (1, 0)
    assert a_process(file, home).begin(3) == Play.of(file).begin(3)


def test_numbers_that_are_not_the_own_ones_are_not_used_for_long(file, home, caplog):
    """Whatever a key may miss: a step that is trained again is held against what stands there."""
    wrong = a_process(file, home)
    name = repr((3, (PLANT,)))
    wrong._folder._path("moment", name).unlink()
    wrong._folder.write("moment", name, told_of_moment(a_process(file, home).begin(3)))
    for path in of(home, "state"):
        path.unlink()
    again = a_process(file, home)
    new = (PLANT, WAIT, WAIT, ADVANCE)
    assert an_episode(again, new)[2:] == an_episode(Play.of(file), new)[2:]
    assert "came to other numbers than stand there" in caplog.text
    before = len(list(home.iterdir()))
    an_episode(again, (WAIT, WAIT, WAIT))
    assert len(list(home.iterdir())) == before


def test_a_folder_that_cannot_be_is_told_once_and_played_without(file, tmp_path, caplog):
    (tmp_path / "home").write_text("a file")
    own = a_process(file, tmp_path / "home")
    assert an_episode(own, PLANS[0]) == an_episode(Play.of(file), PLANS[0])
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        f"nothing more is kept in {tmp_path / 'home'}"
    ]


def test_code_that_was_written_after_the_process_began_is_not_trusted(file, install, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(sameness, "_code_of", CODE_OF)
    install("late", LATE)
    config = file.with_name("late.yaml")
    config.write_text(CONFIG.replace("pointwise]", "pointwise, late/shift]"))
    own = a_process(config, tmp_path / "home")
    own.begin(3)
    assert not (tmp_path / "home").exists()
    assert "esper_late.py was written after this process began, and may not be what runs" in caplog.text


def test_code_that_cannot_be_read_is_told_and_the_folder_left_alone(file, monkeypatch, caplog, tmp_path):
    def gone(place):
        raise FileNotFoundError(2, "No such file", "blocks.py")

    monkeypatch.setattr(sameness, "_code_of", CODE_OF)
    monkeypatch.setattr(sameness, "_files_at", gone)
    own = a_process(file, tmp_path / "home")
    assert own.begin(3) == Play.of(file).begin(3)
    assert not (tmp_path / "home").exists()
    assert "the code that runs cannot be read" in caplog.text


LATE = """
import torch
from torch import nn
from esper_core import BlueprintSpec, hookimpl

class Shift(nn.Module):
    def __init__(self, site):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, inputs):
        return inputs + self.shift

@hookimpl
def esper_register_blueprints(registry):
    registry.add("shift", Shift, BlueprintSpec(accepts="sequence", params="1", starts_as_identity=True))
"""

SCRIPT = """
import json, sys
from esper_core import Play, Remembered
from esper_core.app.moments import told_of_moment
from esper_core.leyline import WAIT, Action, Op

own = Remembered(Play.of(sys.argv[1]), home=sys.argv[2])
plant = Action(Op.GERMINATE, "early", "blueprints/pointwise", speed=1)
actions = [plant, WAIT, Action(Op.ADVANCE, "early"), WAIT, WAIT]
told = [own.begin(3), *map(own.act, actions)]
print(json.dumps([own.trained, [told_of_moment(one).plain for one in told], own.twin.ending.test_loss]))
"""


@pytest.mark.slow
def test_a_process_that_hashes_otherwise_recalls_all_of_it_and_one_that_computes_otherwise_nothing(file, tmp_path):
    def played(**environment):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(file), str(tmp_path)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    plain = Play.of(file)
    told = [told_of_moment(one).plain for one in an_episode(plain, PLANS[0])]
    for new, seed in ((6, "7"), (0, "8")):
        trained, moments, twin = played(PYTHONHASHSEED=seed)
        assert (trained, moments, twin) == (new, json.loads(json.dumps(told)), plain.twin.ending.test_loss)
    assert played(ATEN_CPU_CAPABILITY="default")[0] == 6
