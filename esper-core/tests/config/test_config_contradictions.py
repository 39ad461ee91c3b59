"""Is what cannot mean anything refused when the file is read?"""

from __future__ import annotations

import pytest

from esper_core.config import parse_config


def read(small: str, more: str, *overrides: str):
    return parse_config(f"{small}{more}\n".encode(), file="f.yaml", overrides=overrides)


@pytest.mark.parametrize("gates", ["strict", "permissive"])
def test_an_episode_that_is_over_before_a_gate_looks_is_refused(small, problems, gates) -> None:
    text = f"growth: {{gates: {gates}}}\nepisode: {{steps: %d}}\n"
    (problem,) = problems(small + text % 3)
    assert (problem.code, problem.path, problem.line, problem.column) == ("E114", "episode.steps", 8, 18)
    assert problem.message.endswith("received 3 steps")
    assert 'gates: "off"' in problem.hint
    assert read(small, text % 4).config.episode.steps == 4
    assert read(small, "episode: {steps: 1}").config.episode.steps == 1


def test_a_nursery_that_the_network_may_not_fill_is_refused(small, problems) -> None:
    (problem,) = problems(f"{small}growth: {{seeds: 2, nursery: 3}}\n")
    assert (problem.code, problem.path, problem.line, problem.column) == ("E114", "growth.nursery", 7, 29)
    assert problem.message == "growth.nursery is larger than growth.seeds (2), received 3"
    assert problem.hint == "Use growth.seeds: 3 or more, or a smaller nursery."
    for fine in ("{seeds: 3, nursery: 3}", "{seeds: null, nursery: 3}", "{seeds: 1}"):
        assert read(small, f"growth: {fine}")


@pytest.mark.parametrize(
    "arm", ["{policy: static, reward: team}", "{policy: static, environments: 3}", "{policy: static, growth: {}}"]
)
def test_b8_drl_09_no_arm_can_have_a_reward_of_its_own(small, problems, arm) -> None:
    """Rewards, task and the way to grow are the run's: what differs between arms is who decides."""
    told = problems(small.replace("policy: schedule\n", f"arms: {{a: {arm}}}\n"))
    assert [problem.code for problem in told] == ["E110"]
    assert told[0].path == f"arms.a.{arm.split(', ')[1].partition(':')[0]}"


@pytest.mark.parametrize("other", ["mine", "./mine", "here/../mine/"])
def test_two_arms_that_save_into_one_folder_are_refused(small, problems, other) -> None:
    def arms(folder: str) -> str:
        homes = {"a": "mine", "b": folder}
        each = [f"  {arm}: {{policy: {{use: ppo, settings: {{save: {home}}}}}}}" for arm, home in homes.items()]
        return small.replace("policy: schedule", "\n".join(["arms:", *each]))

    (problem,) = problems(arms(other))
    assert (problem.code, problem.path) == ("E114", "arms.b.policy.settings.save")
    assert problem.message == f'the arms "a" and "b" save to the same folder, received "{other}" for both'
    for fine in ("yours", "mine/yours", "null", "3"):
        assert read(arms(fine), "")


REWARDS = "rewards: [one, {use: two}, three]\n"


@pytest.mark.parametrize(("said", "place", "fitting"), [("4", (8, 15), "3 or 6"), ("2", (8, 15), "3")])
def test_environments_in_which_not_every_seed_has_every_reward_are_refused(small, problems, said, place, fitting):
    (problem,) = problems(f"{small}{REWARDS}environments: {said}\n")
    assert (problem.code, problem.path, problem.line, problem.column) == ("E114", "environments", *place)
    assert problem.message == f"environments must be a multiple of the number of rewards (3), received {said}"
    assert problem.hint == f"Use {fitting}."
    assert read(small, f"{REWARDS}environments: 6").config.instances == 2


def test_so_are_those_that_nobody_wrote_with_the_place_of_the_rewards(small, problems) -> None:
    (problem,) = problems(f"{small}{REWARDS}")
    assert (problem.code, problem.path, problem.line) == ("E114", "rewards", 7)
    assert problem.message.endswith("received 8")
    assert read(small, "rewards: [one]").config.instances == read(small, "").config.instances == 8


def test_several_rewards_where_one_is_expected_are_told_where_they_go(small, problems) -> None:
    (problem,) = problems(f"{small}reward: [one, two]\n")
    assert (problem.code, problem.path) == ("E111", "reward")
    assert problem.hint == "Write several below rewards."


@pytest.mark.parametrize("names", [("capacity",), ("a", "capacity-of-a")])
def test_an_arm_that_is_called_like_a_control_is_refused(small, problems, names) -> None:
    arms = ", ".join(f"{name}: {{policy: static}}" for name in names)
    text = small.replace("policy: schedule\n", f"arms: {{{arms}}}\n")
    (problem,) = problems(text)
    assert (problem.code, problem.path) == ("E114", f"arms.{names[-1]}")
    assert problem.message == f'an arm is named "{names[-1]}", which is the name of a control'
    assert read(text, "capacity: false").config.arms.keys() == set(names)
