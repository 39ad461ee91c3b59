"""Each named reward is the sum of its documented terms, per step and per episode."""

import inspect
import math
import re
from importlib import import_module
from pathlib import Path

import pytest
from pydantic import ValidationError

from esper_core import cli, read_events
from esper_core.leyline import Metric
from esper_core.leyline.events import EpisodeFinished, StepFinished
from esper_rewards.dense import Basic, BasicPlus, Shaped
from esper_rewards.plugin import REWARDS
from esper_rewards.potentials import Escrow, Loss, Team
from esper_rewards.terminal import Minimal, Simplified, Sparse
from esper_testing.reward_episodes import AGAIN, PROBES, STEPS, Brings, Move, earned, play, probed, random_episode

ACCURACY = Metric("accuracy", "up", "%")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rewards.md"
CLASSES = {
    name: getattr(import_module(f"esper_rewards.{place.partition(':')[0]}"), place.partition(":")[2])
    for name, (place, _) in REWARDS.items()
}
SANE = PROBES["sane"].moves


def told(reward, moves=SANE, term=None):
    """Return the reward of each step, or one term of it."""
    course = play(ACCURACY, moves)
    found = [reward.score(one.now, one.before, one.twin, one.twin_before) for one in course]
    return [one.total if term is None else one.terms[term] for one in found]


@pytest.mark.parametrize("name", REWARDS)
def test_a_setting_out_of_bounds_is_refused(name):
    for setting in set(inspect.signature(CLASSES[name]).parameters) - {"metric"}:
        for value in (-1.0, math.nan, math.inf, "1"):
            with pytest.raises(ValidationError, match=setting):
                CLASSES[name](metric=ACCURACY, **{setting: value})


@pytest.mark.parametrize("name", REWARDS)
def test_a_step_before_without_its_twin_is_refused(name):
    one = play(ACCURACY, SANE)[3]
    with pytest.raises(ValueError, match="Received: before without twin_before"):
        CLASSES[name](metric=ACCURACY).score(one.now, one.before, one.twin, None)


@pytest.mark.parametrize("make", [Escrow, Sparse])
@pytest.mark.parametrize("seed", range(5))
def test_delayed_rewards_add_up_to_those_of_team(make, seed):
    """This holds if something was kept, whatever happened before."""
    course = random_episode(ACCURACY, seed)
    assert course[-1].now.fossils > 0
    wanted = earned(Team(metric=ACCURACY), course)
    assert earned(make(metric=ACCURACY), course) == pytest.approx(wanted)


def test_simplified_adds_up_to_team_less_churn():
    team, busy = told(Team(metric=ACCURACY)), told(Simplified(metric=ACCURACY, churn=0.3))
    assert math.fsum(busy) == pytest.approx(math.fsum(team) - 0.3)


def test_sparse_pays_at_the_end_only():
    *steps, end = told(Sparse(metric=ACCURACY))
    assert steps == [0.0] * STEPS
    assert end == pytest.approx(10.0 - 20.0 * 0.12 - 2.0)


def test_escrow_pays_for_fossils_and_charges_rent_at_once():
    credits = told(Escrow(metric=ACCURACY), term="improvement")
    rents = told(Escrow(metric=ACCURACY), term="rent")
    assert credits[:11] == [0.0] * 11
    assert credits[11] > 0.0
    assert rents[1] == pytest.approx(-2.4)


def test_minimal_charges_for_pruning_young_seeds_only():
    def hasty(prune, young):
        moves = [Move(0, "germinate"), Move(prune, "prune")]
        return math.fsum(told(Minimal(metric=ACCURACY, young=young), moves, "haste"))

    assert (hasty(2, 5), hasty(6, 5), hasty(6, 7)) == (-0.5, 0.0, -0.5)
    moves = [Move(0, "germinate"), Move(2, "prune")]
    assert math.fsum(told(Minimal(metric=ACCURACY, haste=1.25), moves, "haste")) == -1.25


def test_a_bonus_is_the_measured_gain_at_fossilisation():
    bonuses = told(Basic(metric=ACCURACY, bonus=1.0), term="bonus")
    assert [step for step, bonus in enumerate(bonuses) if bonus] == [11]
    assert bonuses[11] == pytest.approx(100 * 0.25 * 10 / 12)


def test_basic_plus_pays_the_rest_later_while_the_gain_lasts():
    reward = BasicPlus(metric=ACCURACY, bonus=1.0, later=0.4, over=10)
    at_once, later = told(reward, term="bonus"), told(reward, term="bonus_later")
    assert at_once[11] == pytest.approx(0.6 * 100 * 0.25 * 10 / 12)
    assert later[:11] == [0.0] * 11
    assert later[20] == pytest.approx(0.4 * 100 * 0.25 / 10)
    assert later[-1] == 0.0
    harm = play(ACCURACY, SANE, {"useful": Brings(metric=0.1, nats=-0.25)})[20]
    terms = reward.score(harm.now, harm.before, harm.twin, harm.twin_before).terms
    assert terms["bonus_later"] == pytest.approx(-0.4 * 100 * 0.25 / 10)


def test_shaped_also_pays_for_incubating_seeds():
    reward = Shaped(metric=ACCURACY, contribution=1.0)
    isolated = told(reward, [Move(0, "germinate", slot) for slot in range(3)], "contribution")
    assert isolated[12] == pytest.approx(3 * 25.0)
    assert told(reward, term="contribution")[20] == pytest.approx(25.0)


def test_loss_does_not_depend_on_the_metric():
    for direction in ("up", "down"):
        course = play(Metric("any", direction), SANE)
        assert earned(Loss(metric=Metric("other", direction)), course) == pytest.approx(25.0 - 2.4 - 2.0)


@pytest.mark.parametrize("name", ["team", "loss", "escrow", "sparse", "minimal", "simplified"])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_no_probe_beats_the_sane_script(name, direction):
    found = probed(CLASSES[name], Metric("judged", direction))
    sane = found.pop("sane")
    assert sane > 0.0
    assert {probe: value for probe, value in found.items() if value >= sane} == {}


@pytest.mark.parametrize("name", ["team", "loss"])
@pytest.mark.parametrize("brings", [(0.07, 0.07), (0.2, 0.05), (0.5, 3.0)])
@pytest.mark.parametrize("price", [1.0, 5.0, 25.0])
def test_no_probe_beats_the_sane_script_at_other_gains_and_prices(name, brings, price):
    """As long as one seed pays. Six seeds earn more only if the other five are worth their price."""
    garden, reward = {"useful": Brings(*brings)}, CLASSES[name](metric=ACCURACY, price=price)
    found = {probe: earned(reward, play(ACCURACY, one.moves, garden)) for probe, one in PROBES.items()}
    sane, hoarder = found.pop("sane"), found.pop("hoarder")
    points = 100 * (brings[1] if name == "loss" else brings[0])
    assert (sane > 0.0) == (points > price * 0.22)
    assert (hoarder > sane) == (5 * AGAIN * points > 5 * price * 0.22)
    assert {probe: value for probe, value in found.items() if value >= max(sane, 1e-9)} == {}


def test_shaped_declares_the_exploit_that_beats_it():
    found = probed(Shaped)
    assert found["germinate-and-abandon"] > found["sane"]
    assert set(Shaped.exploitable) == {"abandoning_does_not_pay"}


def test_the_reference_page_has_every_reward_and_term():
    shown = re.findall(r"^::: (esper_rewards\.\w+)\.(\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = [(f"esper_rewards.{module}", name) for module, name in (place.split(":") for place, _ in REWARDS.values())]
    terms = [
        (module.__name__, name)
        for module in map(import_module, ("esper_rewards.terms", "esper_rewards.terminal"))
        for name, one in vars(module).items()
        if getattr(one, "__module__", "") == module.__name__ and "Formula: " in (one.__doc__ or "")
    ]
    assert len(terms) > 10
    assert sorted(shown) == sorted({*named, *terms})
    for module, name in shown:
        text = inspect.getdoc(getattr(import_module(module), name))
        assert re.findall(r"^(\w+): ", text, re.MULTILINE) == ["Formula", "Range", "Direction", "Incentive"], name


def test_the_reference_page_has_the_table_of_probes():
    text = PAGE.read_text(encoding="utf-8")
    for name, make in CLASSES.items():
        figures = [f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−") for value in probed(make).values()]
        assert f"| `{name}` | {' | '.join(figures)} |" in text
    assert "".join(f"| {name} | {probe.does} |\n" for name, probe in PROBES.items()) in text


RUN = """\
task: stripes
host: cnn1d
slots: {early: {blueprints: [norm]}, late: {blueprints: [norm]}}
environments: 1
capacity: false
growth: {gates: "off"}
episode: {steps: 12, batches: 1, batch_size: 20}
reward: {use: simplified, settings: {churn: 1, shaping: 0}}
policy:
  use: schedule
  settings:
    plan:
      - {step: 0, op: germinate, slot: early, blueprint: norm}
      - {step: 2, op: prune, slot: early}
      - {step: 3, op: germinate, slot: late, blueprint: norm, speed: 1}
      - {step: 4, op: advance, slot: late}
      - {step: 8, op: fossilise, slot: late}
"""


def test_simplified_is_paid_at_the_end_of_a_run(tmp_path):
    """Before the end, only two germinations and a prune are charged for."""
    (tmp_path / "run.yaml").write_text(RUN)
    with pytest.raises(SystemExit) as end:
        cli.main(["run", str(tmp_path / "run.yaml"), "--runs-dir", str(tmp_path / "runs"), "--quiet"])
    assert end.value.code in (0, None)
    (file,) = (tmp_path / "runs").glob("*/events.jsonl")
    events = [one for one in read_events(file) if getattr(one, "arm", "twin") != "twin"]
    steps = [one.reward for one in events if isinstance(one, StepFinished)]
    (last,) = (one for one in events if isinstance(one, EpisodeFinished))
    assert [one["fossil_fee"] for one in steps] == [0.0] * 12
    assert last.closing["fossil_fee"] == -2.0
    assert [one["churn"] for one in steps if one["churn"]] == [-1.0, -1.0, -1.0]
    assert last.reward == pytest.approx(math.fsum(last.closing.values()) - 3.0)
