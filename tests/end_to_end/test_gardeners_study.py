"""Is the study of gardeners told as it was found, and is nothing chosen by what it is judged on?"""

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

from benchmarks.science.gardeners.careful import arm_of
from benchmarks.science.gardeners.fresh import FIRST_SEED, FRESH, SEEDS, summed_up, with_chance
from benchmarks.science.gardeners.page import page
from benchmarks.science.gardeners.players import HEADLINE
from benchmarks.science.gardeners.spending import living, spent
from benchmarks.science.gardeners.steps import SIDES, SIZES, compared
from benchmarks.science.gardeners.tuning import note, noted
from esper_core.leyline import WAIT, Action, Op
from esper_tasks.growbench.building import COLUMNS
from esper_tasks.growbench.plans import SPROUTS, Node, ends
from esper_tasks.growbench.playing import Bench, Match
from esper_tasks.growbench.puzzles import DECISIONS, STEPS, puzzle
from esper_tasks.growbench.regret import Fixed
from esper_tasks.growbench.table import shipped

STUDY = Path(__file__).parents[2] / "benchmarks" / "science" / "gardeners"


def line(size: float, *, to_tune: bool, **scores: float) -> dict[str, Any]:
    """What came of one size, of three seeds that differ by a hundredth; scores: by side, the same on both splits."""
    sides = {
        side: [{"seed": seed, "validation": scores[name] + seed / 100, "test": scores[name]} for seed in range(3)]
        for side, name in zip(SIDES.values(), ("grown", "whole", "twin"), strict=True)
    }
    return {"key": ["a cell", size, to_tune], "sides": sides}


def test_the_pages_tables_are_those_of_the_results() -> None:
    found = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    assert (STUDY / "results.md").read_text(encoding="utf-8") == page(found)


@pytest.mark.parametrize("which", ["again", "fresh"])
def test_what_is_shown_of_many_seeds_is_what_came_of_them(which: str) -> None:
    played = [json.loads(one) for one in (STUDY / f"{which}.jsonl").read_text(encoding="utf-8").splitlines()]
    found = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    luck = [json.loads(one) for one in (STUDY / "chance.jsonl").read_text(encoding="utf-8").splitlines()]
    played.sort(key=lambda one: one["problem"])
    assert summed_up(with_chance(played, luck)) == found[which]
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


def test_what_is_shown_of_caution_is_what_came_of_it() -> None:
    found = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    played = [json.loads(one) for one in (STUDY / "careful.jsonl").read_text(encoding="utf-8").splitlines()]
    careful = {one["cell"]: one["arms"] for one in played}
    usual = {one["cell"]: one["arms"] for one in found["live"]}
    assert set(careful) == {name for name in usual if name.startswith(("shuffled", "no deficit"))}
    for own in found["careful"]:
        for cell, several in own["controls"].items():
            for number, shown in enumerate(several):
                name = arm_of(f"ppo-{number}", own["sure"])
                episodes = (careful if own["sure"] else usual)[cell][name]
                assert mean(one["reward"] for one in episodes) == pytest.approx(shown["reward"]["mean"])
                assert sum(len(one["grown"]) for one in episodes) == shown["kept"]


def test_what_an_episode_took_is_what_lived_in_it() -> None:
    bench = Bench(shipped())
    match = Match(bench.table.of_part("held_out")[0], HEADLINE)
    host = bench.table.row(match.puzzle, Node(0))[COLUMNS.index("parameters")]
    for end in list(ends())[::7]:
        (episode,), (reached,) = (
            bench.play(Fixed(end), [match])[0].episodes,
            bench.play(Fixed(end), [match])[1],
        )
        left, _, _ = spent(bench, match, episode, reached)
        assert left == pytest.approx(bench.table.row(match.puzzle, end)[COLUMNS.index("parameters")] / host)
    assert spent(bench, match, bench.play(Fixed(Node(DECISIONS)), [match])[0].episodes[0], Node(DECISIONS)) == (1, 1, 1)


def test_a_seed_is_trained_while_it_is_looked_at_and_when_it_was_kept() -> None:
    plant, other = (Action(Op.GERMINATE, *SPROUTS[number]) for number in (1, 3))
    looked = [plant, Action(Op.PRUNE, *SPROUTS[1]), other, WAIT]
    assert living(looked) == [[1], [], [3], [3]]
    kept = [plant, WAIT, Action(Op.ADVANCE, *SPROUTS[1]), other]
    assert living(kept) == [[1], [1], [1], [1, 3]]
    assert living([WAIT, Action(Op.ADVANCE, *SPROUTS[1]), plant, other]) == [[], [], [1], [1]], "what is not possible"


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


def fresh_problem(number: int, ppo: list[list[float]], heuristic: list[float]) -> dict[str, Any]:
    """What two players came to in one problem: by controller and seed; on test a point more."""
    told = {"ppo": ppo, "heuristic": [heuristic]}
    players = {
        name: {"reward": own, "on_test": [[one + 1 for one in each] for each in own], "kept": [0.5] * len(own)}
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
    assert [one["mean"] for one in found["by_controller_less_heuristic"]] == pytest.approx([0.0, 0.2 / 3])
    assert found["problem_by_problem"] == {"better": 1, "worse": 1, "same_from_each_seed": 1}
    assert found["deviation"]["of_one_seed"] == pytest.approx(0.0, abs=1e-9)


def test_the_sizes_that_are_shown_are_those_of_the_walks() -> None:
    walked = [json.loads(one) for one in (STUDY / "steps.jsonl").read_text(encoding="utf-8").splitlines()]
    found = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))["steps"]
    order = [cell["cell"] for cell in found]
    walked.sort(key=lambda one: (order.index(one["key"][0]), SIZES.index(one["key"][1]), not one["key"][2]))
    assert compared(walked) == found


def test_each_side_takes_the_size_that_was_best_on_other_seeds() -> None:
    small, usual, large, huge = SIZES
    walks = [
        line(small, to_tune=True, grown=0.5, whole=0.6, twin=0.3),
        line(small, to_tune=False, grown=0.5, whole=0.6, twin=0.3),
        line(usual, to_tune=True, grown=0.6, whole=0.5, twin=0.3),
        line(usual, to_tune=False, grown=0.1, whole=0.5, twin=0.3),  # what it is judged on does not choose
        line(large, to_tune=True, grown=0.5, whole=0.5, twin=0.4),
        line(large, to_tune=False, grown=0.9, whole=0.9, twin=0.4),
        line(huge, to_tune=True, grown=0.1, whole=0.1, twin=0.1),
        line(huge, to_tune=False, grown=1.0, whole=1.0, twin=1.0),
    ]
    (cell,) = compared(walks)
    assert cell["sizes"] == dict(zip(SIDES.values(), (usual, small, large), strict=True))
    assert cell["tuned"]["trained from the start"]["mean"] == pytest.approx(100 * (0.1 - 0.6))
    assert cell["tuned"]["never grown"]["mean"] == pytest.approx(100 * (0.1 - 0.4))
    assert cell["untuned"]["trained from the start"]["mean"] == pytest.approx(100 * (0.1 - 0.5))


def lines_in(folder: Path) -> dict[str, list[str]]:
    """What was noted of each piece of work that is done, by file."""
    return {file.name: sorted(file.read_text(encoding="utf-8").splitlines()) for file in folder.glob("*.jsonl")}


@pytest.mark.slow
def test_the_one_command_does_everything_and_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.science.gardeners", "--quick", "--into", str(tmp_path)]
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
            "careful",
            "steps",
        } <= found.keys()
        done = lines_in(tmp_path)
