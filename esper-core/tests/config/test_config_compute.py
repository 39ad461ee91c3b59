"""Which ways of computing are refused when the file is read?"""

from __future__ import annotations

import pytest

from esper_core.config import parse_config


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            "compute: {micro_batches: 101}\n",
            "episode.batch_size (100), received 101",
        ),
        (
            "compute: {micro_batches: 2}\nepisode: {batch_size: 1}\n",
            "episode.batch_size (1), received 2",
        ),
    ],
)
def test_more_parts_than_examples_are_refused(small, problems, more, told) -> None:
    (problem,) = problems(small + more)
    assert (problem.code, problem.path, problem.line) == ("E114", "compute.micro_batches", 7)
    assert problem.message == f"compute.micro_batches is larger than {told}"
    assert "compute.micro_batches" in problem.hint


def test_as_many_parts_as_examples_are_fine_and_a_batch_need_not_be_divisible(small) -> None:
    for more in ("compute: {micro_batches: 100}", "compute: {micro_batches: 7}", "compute: {micro_batches: 1}"):
        assert parse_config(f"{small}{more}\n".encode(), file="f.yaml").config.compute.micro_batches


@pytest.mark.parametrize("said", ["0", "-1", "1.5", "two"])
def test_a_number_of_parts_that_is_none_is_told_once(small, problems, said) -> None:
    assert len(problems(f"{small}compute: {{micro_batches: {said}}}\n")) == 1
