"""Contradictions between options."""

from __future__ import annotations

import pytest

from esper_core.config import parse_config


def read(small: str, more: str):
    return parse_config(f"{small}{more}\n".encode(), file="f.yaml")


@pytest.mark.parametrize("gates", ["strict", "permissive"])
def test_episode_that_ends_before_a_gate_judges_is_refused(small, problems, gates) -> None:
    text = f"growth: {{gates: {gates}}}\nepisode: {{steps: %d}}\n"
    (problem,) = problems(small + text % 3)
    assert (problem.code, problem.path, problem.line, problem.column) == ("E114", "episode.steps", 8, 18)
    assert problem.message.endswith("received 3 steps")
    assert 'gates: "off"' in problem.hint
    assert read(small, text % 4).config.episode.steps == 4
    assert read(small, "episode: {steps: 1}").config.episode.steps == 1


def test_nursery_beyond_the_limit_on_seeds_is_refused(small, problems) -> None:
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
def test_two_arms_that_save_to_the_same_folder_are_refused(small, problems, other) -> None:
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
def test_environments_must_be_a_multiple_of_the_rewards(small, problems, said, place, fitting):
    (problem,) = problems(f"{small}{REWARDS}environments: {said}\n")
    assert (problem.code, problem.path, problem.line, problem.column) == ("E114", "environments", *place)
    assert problem.message == f"environments must be a multiple of the number of rewards (3), received {said}"
    assert problem.hint == f"Use {fitting}."
    assert read(small, f"{REWARDS}environments: 6").config.instances == 2


def test_default_environments_that_are_no_multiple_are_reported_at_the_rewards(small, problems) -> None:
    (problem,) = problems(f"{small}{REWARDS}")
    assert (problem.code, problem.path, problem.line) == ("E114", "rewards", 7)
    assert problem.message.endswith("received 8")
    assert read(small, "rewards: [one]").config.instances == read(small, "").config.instances == 8


@pytest.mark.parametrize("names", [("capacity",), ("a", "capacity-of-a")])
def test_arm_with_the_name_of_a_control_is_refused(small, problems, names) -> None:
    arms = ", ".join(f"{name}: {{policy: static}}" for name in names)
    text = small.replace("policy: schedule\n", f"arms: {{{arms}}}\n")
    (problem,) = problems(text)
    assert (problem.code, problem.path) == ("E114", f"arms.{names[-1]}")
    assert problem.message == f'an arm is named "{names[-1]}", which is the name of a control'
    assert read(text, "capacity: false").config.arms.keys() == set(names)


# --- compute


@pytest.mark.parametrize(("more", "limit", "micro_batches"), [("", 100, 101), ("episode: {batch_size: 1}\n", 1, 2)])
def test_more_micro_batches_than_examples_are_refused(small, problems, more, limit, micro_batches) -> None:
    (problem,) = problems(f"{small}compute: {{micro_batches: {micro_batches}}}\n{more}")
    assert (problem.code, problem.path, problem.line) == ("E114", "compute.micro_batches", 7)
    assert problem.message.endswith(f"larger than episode.batch_size ({limit}), received {micro_batches}")
    assert "compute.micro_batches" in problem.hint
    assert read(small, f"compute: {{micro_batches: {limit}}}\n{more}").config.compute.micro_batches == limit
