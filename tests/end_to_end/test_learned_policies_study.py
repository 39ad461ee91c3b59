"""The study of learned policies reports what it found, and chooses nothing on held-out problems."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks.science.learned_policies import more
from benchmarks.science.learned_policies.careful import SURE, arm_of
from benchmarks.science.learned_policies.costs import living, passed, seconds, spent
from benchmarks.science.learned_policies.evaluation import points_on_test
from benchmarks.science.learned_policies.fresh import FIRST_SEED, FRESH, SEEDS, summed_up, with_chance
from benchmarks.science.learned_policies.page import page
from benchmarks.science.learned_policies.players import HEADLINE
from benchmarks.science.learned_policies.steps import SIZES, compared
from benchmarks.science.learned_policies.tuning import note, noted
from esper_core.leyline import WAIT, Action, Op
from esper_study.growbench import (
    CANDIDATES,
    COLUMNS,
    Bench,
    FixedPlan,
    Kept,
    Match,
    Node,
    end_nodes,
    puzzle,
    shipped_table,
)
from esper_study.growbench.puzzles import DECIDE_EVERY, DECISIONS, STEPS

STUDY = Path(__file__).parents[2] / "benchmarks" / "science" / "learned_policies"


def is_same(found: Any, stored: Any) -> bool:
    """Compare results; numbers to 1e-9, since intervals may round differently in the last bit."""
    if isinstance(found, dict) and isinstance(stored, dict):
        return found.keys() == stored.keys() and all(is_same(found[key], stored[key]) for key in found)
    if isinstance(found, list | tuple) and isinstance(stored, list | tuple):
        return len(found) == len(stored) and all(map(is_same, found, stored))
    return bool(found == (pytest.approx(stored, rel=1e-9) if isinstance(stored, float) else stored))


def results() -> dict[str, Any]:
    """What the study came to."""
    found: dict[str, Any] = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    return found


def lines_of(name: str) -> list[dict[str, Any]]:
    """What was written down of each piece of it, in one file."""
    return [json.loads(one) for one in (STUDY / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def rewards(problems: list[dict[str, Any]], player: str, price: str) -> list[float]:
    """By problem, the mean over controllers."""
    return [mean(one["players"][player][price]["reward"]) for one in problems]


def mean_of(differences: list[float]) -> Any:
    """Their mean, as close as what is written down lets one tell."""
    return pytest.approx(mean(differences), abs=1e-4)


def less(one: list[float], other: list[float]) -> list[float]:
    """Pair by pair."""
    return [a - b for a, b in zip(one, other, strict=True)]


def test_the_pages_tables_are_those_of_the_results() -> None:
    found = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    assert (STUDY / "results.md").read_text(encoding="utf-8") == page(found)


@pytest.mark.parametrize("which", ["again", "fresh"])
def test_what_is_shown_of_many_seeds_is_what_came_of_them(which: str) -> None:
    played = [json.loads(one) for one in (STUDY / f"{which}.jsonl").read_text(encoding="utf-8").splitlines()]
    found = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    luck = [json.loads(one) for one in (STUDY / "chance.jsonl").read_text(encoding="utf-8").splitlines()]
    played.sort(key=lambda one: one["problem"])
    assert is_same(summed_up(with_chance(played, luck)), found[which])
    known = found["problems"]["held_out"]
    problems = {"again": range(known), "fresh": range(known, known + FRESH)}[which]  # those of the table; behind them
    assert [one["problem"] for one in played] == list(problems)
    assert {len(own) for one in played for player in one["players"].values() for own in player["reward"]} == {20}


def test_what_is_shown_of_the_table_is_what_each_problem_came_to() -> None:
    found = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    problems = [json.loads(one) for one in (STUDY / "table.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len({one["problem"] for one in problems}) == len(problems) == found["problems"]["held_out"]
    for name, by_price in found["table"]["players"].items():
        for price, shown in by_price.items():
            own = [one["players"][name][price] for one in problems]
            for what in ("reward", "on_test"):
                assert mean(mean(one[what]) for one in own) == pytest.approx(shown[what]["mean"], abs=1e-4)
            kept = mean(len(each) for one in own for each in one["kept"])
            assert kept == pytest.approx(shown["seeds_kept"])


def test_the_table_that_was_played_is_the_one_that_is_shipped() -> None:
    assert results()["checksum"] == shipped_table().checksum


def test_accuracy_that_is_shown_of_the_table_is_that_of_what_was_kept_in_it() -> None:
    bench, problems = Bench(shipped_table()), lines_of("table")
    numbers = bench.table.of_part("held_out")
    assert [bench.table.puzzles[number].name for number in numbers] == [one["problem"] for one in problems]
    for name, by_price in results()["table"]["players"].items():
        points = [
            mean(
                points_on_test(bench, Match(number, HEADLINE), Node(DECISIONS, tuple(Kept(*one) for one in kept)))
                for kept in problem["players"][name][f"{HEADLINE:g}"]["kept"]
            )
            for number, problem in zip(numbers, problems, strict=True)
        ]
        assert mean(points) == pytest.approx(by_price[f"{HEADLINE:g}"]["points"]["mean"])


def test_what_is_shown_of_schools_is_what_each_problem_came_to() -> None:
    schooling, problems = results()["schooling"], lines_of("schools")
    known = lines_of("table")
    assert [one["problem"] for one in problems] == [one["problem"] for one in known]
    first, rules = (rewards(known, name, "40") for name in ("ppo", "heuristic"))
    assert len(schooling) == 1 + len(problems[0]["players"])
    for name in problems[0]["players"]:
        shown = schooling[name]
        for price, own in shown["reward"].items():
            assert own["mean"] == mean_of(rewards(problems, name, price))
        assert shown["less_first"]["mean"] == mean_of(less(rewards(problems, name, "40"), first))
        assert shown["less_heuristic"]["mean"] == mean_of(less(rewards(problems, name, "40"), rules))


def test_what_is_shown_of_newcomers_is_what_was_done_with_them() -> None:
    found, problems = results()["newcomers"], lines_of("newcomers")
    assert {one["blueprint"] for one in found} == {"blueprints/dilated"}
    dilated = [number for number, (_, blueprint) in enumerate(CANDIDATES) if blueprint == "blueprints/dilated"]
    first = found[0]["way"]

    def has(kept: list[list[int]]) -> bool:
        return any(sprout in dilated for sprout, _, _ in kept)

    assert [one["way"] for one in found] == [way for way in problems[0]["players"] if way != "oracle"]
    for shown in found:
        for price, (bought, due) in shown["by_price"].items():
            best = [one for one in problems if has(one["players"]["oracle"][price]["kept"][0])]
            each = [has(kept) for one in best for kept in one["players"][shown["way"]][price]["kept"]]
            assert (sum(each), len(each)) == (bought, due)
            beside = less(rewards(problems, shown["way"], price), rewards(problems, first, price))
            assert shown["less_first"][price]["mean"] == mean_of(beside)
            assert shown["reward"][price]["mean"] == mean_of(rewards(problems, shown["way"], price))


def test_what_is_shown_of_the_problems_to_learn_on_is_what_each_came_to() -> None:
    found, problems = results(), lines_of("home")
    assert len({one["problem"] for one in problems}) == len(problems) == found["problems"]["learnt_on"]
    best = mean(rewards(problems, "oracle", "40"))
    for name, shown in found["at_home"].items():
        assert shown["regret"] == pytest.approx((best - mean(rewards(problems, name, "40"))) / best, abs=1e-4)
    for price, shown in found["look_at_home"]["blueprints/dilated"].items():
        usual = rewards(problems, "without blueprints/dilated", price)
        assert shown["mean"] == mean_of(
            less(rewards(problems, "without blueprints/dilated, looks first", price), usual)
        )
    for own in found["careful"]:
        careful, as_it_is = (rewards(problems, arm_of("ppo", sure), "40") for sure in (own["sure"], 0.0))
        assert own["at_home"]["mean"] == mean_of(careful)
        assert own["at_home_less"]["mean"] == mean_of(less(careful, as_it_is))


def test_what_is_shown_of_caution_is_what_came_of_it() -> None:
    found = results()
    careful = {one["cell"]: one["arms"] for one in lines_of("careful")}
    usual = {one["cell"]: one["arms"] for one in found["live"]}
    assert set(careful) == {name for name in usual if name.startswith(("shuffled", "no deficit"))}
    assert [own["sure"] for own in found["careful"]] == [0.0, *SURE]
    for own in found["careful"]:
        for cell, several in own["controls"].items():
            for number, shown in enumerate(several):
                name = arm_of(f"ppo-{number}", own["sure"])
                episodes = (careful if own["sure"] else usual)[cell][name]
                assert mean(one["reward"] for one in episodes) == pytest.approx(shown["reward"]["mean"])
                assert sum(len(one["grown"]) for one in episodes) == shown["kept"]


def test_what_is_shown_of_further_seeds_is_what_came_of_them() -> None:
    played = {one["cell"]: one for one in lines_of("more")}
    found = results()
    assert more.summed_up([played[one["cell"]] for one in found["live"]]) == found["more"]
    for cell in found["live"]:
        before = {one["seed"] for own in cell["arms"].values() for one in own}
        assert all(one["seed"] not in before for own in played[cell["cell"]]["arms"].values() for one in own)


def test_what_an_episode_took_is_what_lived_in_it() -> None:
    bench = Bench(shipped_table())
    match = Match(bench.table.of_part("held_out")[0], HEADLINE)
    host = bench.table.row(match.puzzle, Node(0))[COLUMNS.index("parameters")]
    for end in end_nodes()[::7]:
        (episode,), (reached,) = (
            bench.play(FixedPlan(end), [match])[0].episodes,
            bench.play(FixedPlan(end), [match])[1],
        )
        left, *_ = spent(bench, match, episode, reached)
        assert left == pytest.approx(bench.table.row(match.puzzle, end)[COLUMNS.index("parameters")] / host)
    assert spent(bench, match, bench.play(FixedPlan(Node(DECISIONS)), [match])[0].episodes[0], Node(DECISIONS)) == (
        1,
        1,
        1,
        1,
    )


def test_operations_over_the_steps_count_the_copy_of_the_host_beside_which_a_seed_incubates() -> None:
    bench = Bench(shipped_table())
    match = Match(bench.table.of_part("held_out")[0], HEADLINE)
    place = next(iter(bench.table.places[match.puzzle].values()))
    sprout, length = 0, STEPS - 1
    slot, blueprint = CANDIDATES[sprout]
    own = bench.table.places[match.puzzle][slot].candidate(blueprint)
    assert own is not None
    assert own.flops is not None
    assert place.host_flops is not None
    end = Node(DECISIONS, (Kept(sprout, 0, 1),))
    episode = bench.play(FixedPlan(end), [match])[0].episodes[0]
    _, _, left, work = spent(bench, match, episode, end)
    assert left == pytest.approx(1 + own.flops / place.host_flops)
    assert work == pytest.approx(1 + (length * own.flops / place.host_flops + DECIDE_EVERY) / STEPS), (
        "EVERY steps beside a copy"
    )


def test_a_seed_is_trained_while_it_is_looked_at_and_when_it_was_kept() -> None:
    plant, other = (Action(Op.GERMINATE, *CANDIDATES[number]) for number in (1, 3))
    looked = [plant, Action(Op.PRUNE, *CANDIDATES[1]), other, WAIT]
    assert living(looked) == [([], 1), ([], None), ([], 3), ([], 3)]
    kept = [plant, WAIT, Action(Op.ADVANCE, *CANDIDATES[1]), other]
    assert living(kept) == [([], 1), ([], 1), ([1], None), ([1], 3)]
    impossible = [WAIT, Action(Op.ADVANCE, *CANDIDATES[1]), plant, other]
    assert living(impossible) == [([], None), ([], None), ([], 1), ([], 1)]


def test_parameters_over_the_steps_are_those_of_the_host_and_of_what_lived() -> None:
    for line in (STUDY / "live.jsonl").read_text(encoding="utf-8").splitlines():
        arms = json.loads(line)["arms"]
        for one in arms["twin"]:
            assert one["parameter_steps"] == STEPS * one["host"]
        for one in arms["plan"]:  # it plants at once, before the second step, and keeps that
            assert one["parameter_steps"] == STEPS * one["host"] + (STEPS - 1) * (one["parameters"] - one["host"])


def test_what_a_kill_cut_short_is_left_out_and_spoils_no_other_line(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for number in range(2):
        note(log, {"number": number, "more": {"of": "it"}})
    whole = log.read_bytes()
    for end in range(len(whole) // 2 + 1, len(whole)):
        log.write_bytes(whole[:end])
        assert noted(log)[:1] == [{"number": 0, "more": {"of": "it"}}]
        note(log, {"number": 2})
        assert noted(log)[-1] == {"number": 2}


def test_no_seed_from_which_a_table_was_trained_is_played_again() -> None:
    again = range(FIRST_SEED, FIRST_SEED + SEEDS)
    assert [
        number for number in range(400) for part in ("train", "held_out") if puzzle(number, part).seed in again
    ] == []


class Clocked:
    """A course that took a second for each step that a seed was trained in beside the host, and half of one without."""

    def seconds(self, node: Node) -> float:
        return 1.0 if node.kept or node.pending else 0.5


def test_seconds_of_an_episode_are_those_of_where_it_came_by() -> None:
    plant = Action(Op.GERMINATE, *CANDIDATES[1])
    looked = [plant, Action(Op.PRUNE, *CANDIDATES[1]), WAIT, WAIT]
    assert passed(looked) == [Node(0), Node(0).planted(1), Node(2), Node(3), Node(4)]
    assert seconds(Clocked(), [WAIT] * DECISIONS) == 1.0
    assert seconds(Clocked(), looked) == pytest.approx((0.5 + 1.0 + 3 * 0.5) / 2.5)
    assert seconds(Clocked(), [plant, WAIT, WAIT, Action(Op.ADVANCE, *CANDIDATES[1])]) == pytest.approx(4.5 / 2.5)


def fresh_problem(number: int, ppo: list[list[float]], heuristic: list[float]) -> dict[str, Any]:
    """What two players came to in one problem: by controller and seed; on test a point more."""
    told = {"ppo": ppo, "heuristic": [heuristic]}
    players = {
        name: {
            "reward": own,
            "on_test": [[one + 1 for one in each] for each in own],
            "kept": [0.5] * len(own),
            "points": [float(number)] * len(own),
            "took": [[1.0 + number, 1.0, 1.0, 1.0, 2.0 + place] for place in range(len(own))],
        }
        for name, own in told.items()
    }
    return {"problem": number, "players": players}


def test_a_fresh_problem_counts_once_however_many_seeds_and_controllers_it_has() -> None:
    found = summed_up(
        [
            fresh_problem(0, [[2.0, 2.1, 2.2], [2.2, 2.3, 2.4]], [1.0, 1.1, 1.2]),
            fresh_problem(1, [[0.0, 0.1, 0.2], [0.0, 0.1, 0.2]], [1.0, 1.1, 1.2]),
            fresh_problem(2, [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [1.0, 1.0, 1.0]),
        ]
    )
    assert (found["problems"], found["seeds"]) == (3, 3)
    assert found["ppo_less"]["heuristic"]["reward"]["mean"] == pytest.approx((1.1 - 1.0 + 0.0) / 3)
    assert found["ppo_less"]["heuristic"]["reward"]["n"] == 3
    assert found["players"]["ppo"]["on_test"]["mean"] == pytest.approx(found["players"]["ppo"]["reward"]["mean"] + 1)
    assert found["players"]["ppo"]["by_controller"] == pytest.approx([(2.1 + 0.1 + 1.0) / 3, (2.3 + 0.1 + 1.0) / 3])
    assert found["players"]["ppo"]["points"]["mean"] == pytest.approx(1.0)
    assert found["players"]["ppo"]["points"]["n"] == 3
    assert (found["players"]["ppo"]["parameters"], found["players"]["ppo"]["seconds"]) == pytest.approx((2.0, 2.5))
    assert [one["mean"] for one in found["by_controller_less_heuristic"]] == pytest.approx([0.0, 0.2 / 3])
    assert found["problem_by_problem"] == {"better": 1, "worse": 1, "same_from_each_seed": 1}
    assert found["deviation"]["of_one_seed"] == pytest.approx(0.0, abs=1e-9)


def test_the_sizes_that_are_shown_are_those_of_the_walks() -> None:
    walked, replanted = lines_of("steps"), lines_of("from_the_start")
    found = results()
    order = [cell["cell"] for cell in found["steps"]]
    walked.sort(key=lambda one: (order.index(one["key"][0]), SIZES.index(one["key"][1]), not one["key"][2]))
    assert is_same(compared(walked, replanted, found["live"]), found["steps"])
    for cell in found["steps"]:
        for arm, own in cell["arms"].items():
            planted = [one["key"] for one in replanted if (one["key"][0], one["key"][3]) == (cell["cell"], arm)]
            assert {(size, to_tune) for _, size, to_tune, _ in planted} == {
                (own["grown"]["size"], True),
                (own["grown"]["size"], False),
            }, "what is put in from the start was grown at the size that is shown"


def scored(scores: float) -> list[dict[str, Any]]:
    """Three seeds that differ by a hundredth in validation, not on test."""
    return [{"seed": seed, "validation": scores + seed / 100, "test": scores} for seed in range(3)]


def test_each_side_takes_the_size_that_was_best_on_other_seeds() -> None:
    small, usual, large, huge = SIZES
    grown = {small: (0.5, 0.5), usual: (0.6, 0.1), large: (0.5, 0.9), huge: (0.1, 1.0)}  # to tune on, and judged
    twin = {small: (0.3, 0.3), usual: (0.3, 0.3), large: (0.4, 0.4), huge: (0.1, 1.0)}
    whole = {small: (0.6, 0.6), usual: (0.5, 0.5), large: (0.5, 0.9), huge: (0.1, 1.0)}
    walked = [
        {
            "key": ["a cell", size, to_tune],
            "arms": {"rules": scored(grown[size][part]), "twin": scored(twin[size][part])},
        }
        for size in SIZES
        for part, to_tune in enumerate((True, False))
    ]
    replanted = [
        {
            "key": ["a cell", usual, to_tune, "rules"],
            "by_size": {f"{size:g}": scored(whole[size][part]) for size in SIZES},
        }
        for part, to_tune in enumerate((True, False))
    ]
    live = [{"cell": "a cell", "arms": {"rules": scored(0.3), "capacity-of-rules": scored(0.2)}}]
    (cell,) = compared(walked, replanted, live)
    own = cell["arms"]["rules"]
    assert (own["grown"]["size"], own["from_the_start"]["size"], cell["twin"]["size"]) == (usual, small, large)
    assert own["less_from_the_start"]["mean"] == pytest.approx(100 * (0.1 - 0.6)), (
        "what it is judged on chooses nothing"
    )
    assert own["less_twin"]["mean"] == pytest.approx(100 * (0.1 - 0.4))
    assert own["untuned"]["mean"] == pytest.approx(100 * (0.3 - 0.2))
    nothing = [{**one, "by_size": {size: [] for size in one["by_size"]}} for one in replanted]
    assert "from_the_start" not in compared(walked, nothing, live)[0]["arms"]["rules"], "nothing had grown"


def episode(seed: int, reward: float, test: float) -> dict[str, Any]:
    """As it is written down of a further seed; what pays was kept."""
    return {"seed": seed, "reward": reward, "test": test, "kept": int(reward != 0)}


def test_further_seeds_are_held_against_the_rules_seed_by_seed() -> None:
    arms = {
        "heuristic": [episode(0, 1.0, 0.5), episode(1, 3.0, 0.7)],
        "ppo-0": [episode(0, 2.0, 0.6), episode(1, 3.0, 0.6)],
        "ppo-1": [episode(0, 0.0, 0.4), episode(1, 6.0, 0.8)],
        "ppo-2": [episode(0, 1.0, 0.5), episode(1, 3.0, 0.7)],
        "twin": [episode(0, 0.0, 0.4), episode(1, 0.0, 0.5)],
    }
    (cell,) = more.summed_up([{"cell": "a cell", "arms": arms}])
    own = cell["arms"]
    assert [own[f"ppo-{number}"]["less_rules"]["mean"] for number in range(3)] == pytest.approx([0.5, 1.0, 0.0])
    assert own["mean of the three"]["less_rules"]["mean"] == pytest.approx(0.5)
    assert own["ppo-1"]["points_less_rules"]["mean"] == pytest.approx(0.0)
    assert own["heuristic"]["over_twin"]["mean"] == pytest.approx(15.0)
    assert [own[name]["kept"] for name in ("heuristic", "ppo-1", "mean of the three")] == [2, 1, None]


def lines_in(folder: Path) -> dict[str, list[str]]:
    """What was noted of each piece of work that is done, by file."""
    return {file.name: sorted(file.read_text(encoding="utf-8").splitlines()) for file in folder.glob("*.jsonl")}


@pytest.mark.slow
def test_the_one_command_does_everything_and_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.science.learned_policies", "--quick", "--into", str(tmp_path)]
    first = subprocess.Popen(command, cwd=STUDY.parents[2], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while first.poll() is None and not lines_in(tmp_path).get("live.jsonl"):
            time.sleep(0.2)
        assert first.poll() is None, "it was done before it could be killed"
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    done = lines_in(tmp_path)
    for _ in range(2):  # the rest; and then nothing is left
        told = subprocess.run(command, cwd=STUDY.parents[2], capture_output=True, text=True, check=True).stderr
        assert "gardener-0" not in told, "what had learnt learns no more"
        assert all(set(own) <= set(lines_in(tmp_path)[name]) for name, own in done.items())
        found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
        assert (tmp_path / "results.md").read_text(encoding="utf-8") == page(found)
        assert (tmp_path / "figure.svg").read_text(encoding="utf-8").startswith("<svg")
        assert {
            "table",
            "again",
            "fresh",
            "newcomers",
            "schooling",
            "at_home",
            "live",
            "more",
            "careful",
            "steps",
        } <= found.keys()
        done = lines_in(tmp_path)
