"""Contradictions between options."""

from typing import NamedTuple

import pytest

from tests.support.configurations import SMALL, parse, problem_in


class Row(NamedTuple):
    """Lines that contradict each other or the small file, and similar lines that do not.

    ``without``: what is removed from the small file; ``position``: code, line, column and path of the problem.
    """

    lines: str
    position: tuple[str, int, int, str | None]
    says: str
    hint: str
    fine: tuple[str, ...]
    without: str = "nothing"


POLICY = "policy: schedule\n"
CONTROL = "which is the name of a control"
MANY = "10,000,000 episodes (rounds × environments × arms), received "
SAVES = "arms:\n  a: {policy: {use: ppo, settings: {save: mine}}}\n  b: {policy: {use: ppo, settings: {save: %s}}}\n"
PARTS = "compute: {micro_batches: %d}\n"

ROWS = {
    "a nursery beyond the limit on seeds": Row(
        "growth: {seeds: 2, nursery: 3}\n", ("E114", 7, 29, "growth.nursery"),
        "growth.nursery is larger than growth.seeds (2), received 3", "Use growth.seeds: 3 or more, or a smaller",
        ("growth: {seeds: 3, nursery: 3}\n", "growth: {seeds: null, nursery: 3}\n", "growth: {seeds: 1}\n"),
    ),
    **{
        f"arms that save to mine and {other}": Row(
            SAVES % other, ("E114", 8, 43, "arms.b.policy.settings.save"),
            f'the arms "a" and "b" save to the same folder, received "{other}" for both', "a folder of its own",
            tuple(SAVES % fine for fine in ("yours", "mine/yours", "null", "3")), POLICY,
        )
        for other in ("mine", "./mine", "here/../mine/")
    },
    "an arm with the name of its control": Row(
        "arms: {capacity: {policy: x}}\n", ("E114", 6, 8, "arms.capacity"), CONTROL, "capacity: false",
        ("arms: {capacity: {policy: x}}\ncapacity: false\n",), POLICY,
    ),
    "an arm with the name of another's control": Row(
        "arms: {a: {policy: x}, capacity-of-a: {policy: x}}\n", ("E114", 6, 24, "arms.capacity-of-a"), CONTROL,
        "Rename", (), POLICY,
    ),
    "an arm with the name of the twin": Row(
        "arms:\n  twin: {policy: x}\n", ("E114", 7, 3, "arms.twin"), "the name of the arm without growth",
        "twin: false", ("arms:\n  twin: {policy: x}\ntwin: false\n",), POLICY,
    ),
    "more parts than a batch": Row(
        PARTS % 101, ("E114", 7, 26, "compute.micro_batches"), "larger than episode.batch_size (100), received 101",
        "compute.micro_batches", (PARTS % 100,),
    ),
    "more episodes than a run can have": Row(
        "rounds: 1000000\n", ("E114", 7, 9, "rounds"), f"{MANY}16,000,000", "Use fewer rounds", ("rounds: 600000\n",)
    ),
    "too many environments": Row(
        "rounds: 1000000\ntwin: false\nenvironments: 11\n", ("E114", 7, 9, "rounds"), f"{MANY}11,000,000", "",
        ("rounds: 1000000\ntwin: false\nenvironments: 10\n",),
    ),
    "both policy and arms": Row(
        "arms: {a: {policy: x}}\n", ("E114", 7, 1, "arms"), 'either "policy" or "arms", received both', "policy: null",
        ("arms: {}\n",),
    ),
    "neither policy nor arms": Row(
        "", ("E113", 1, 1, None), "received neither: only the twin would run", "policy: static",
        ("policy: null\narms: {a: {policy: x}}\n",), POLICY,
    ),
    "nothing that runs": Row("twin: false\n", ("E113", 1, 1, None), "nothing would run", "", (), POLICY),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_contradiction_is_reported_at_its_place_and_similar_files_are_accepted(row: Row) -> None:
    below = SMALL.replace(row.without, "")
    problem = problem_in(below + row.lines)
    assert (problem.code, problem.line, problem.column, problem.path) == row.position
    assert row.says in problem.message
    assert row.hint in problem.hint
    assert all(parse(below + fine) for fine in row.fine)


@pytest.mark.parametrize("more", ["reward: team", "environments: 3", "growth: {}"])
def test_b8_drl_09_no_arm_can_have_a_reward_of_its_own(more) -> None:
    """Reward, task and growth settings belong to the run; arms differ in their policy only."""
    problem = problem_in(SMALL.replace(POLICY, f"arms: {{a: {{policy: static, {more}}}}}\n"))
    assert (problem.code, problem.path) == ("E110", f"arms.a.{more.partition(':')[0]}")
