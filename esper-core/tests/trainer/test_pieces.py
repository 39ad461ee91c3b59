"""Batches, evaluation, the order of the pool, and random streams."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from esper_core.growth import RandomStream
from esper_core.growth.random_streams import derive_seed
from esper_core.trainer.batches import BatchOrder
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]


@given(examples=st.integers(1, 50), size=st.integers(1, 60), passes=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_each_example_comes_once_in_a_pass_and_no_batch_is_short(
    examples: int, size: int, passes: int, seed: int
) -> None:
    order = BatchOrder(examples, size, seed)
    batches = [order.next() for _ in range(-(-passes * examples // size))]
    assert {len(batch) for batch in batches} == {size}
    drawn = torch.cat(batches)[: passes * examples].reshape(passes, examples)
    assert torch.equal(drawn.sort(dim=1).values, torch.arange(examples).expand(passes, -1))


def test_the_order_depends_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    first = BatchOrder(30, 7, 5).next()
    torch.manual_seed(1)
    assert torch.equal(BatchOrder(30, 7, 5).next(), first)
    assert not torch.equal(BatchOrder(30, 7, 6).next(), first)


def test_evaluation_disturbs_nothing_and_is_the_mean_over_all_examples(make_recipe: Callable[..., Recipe]) -> None:
    environment = Environment(make_recipe(), arm="a", index=0)
    environment.reset(0, 1)
    state = {key: value.clone() for key, value in environment.model.state_dict().items()}
    random = torch.get_rng_state()
    loss, metric = environment.evaluate("validation").tolist()
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[key]) for key, value in environment.model.state_dict().items())
    assert environment.model.training
    environment.model.eval()
    split = environment.recipe.data["validation"]
    outputs = environment.model(split.inputs)
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(outputs, split.targets).item(), rel=1e-5)
    assert metric == pytest.approx((outputs.argmax(1) == split.targets).float().mean().item())


def test_sim_low_3_evaluation_keeps_no_graph_and_what_comes_of_it_can_be_learnt_from(make_recipe: Make) -> None:
    """It is in inference mode; its figures are ordinary tensors again, which a gradient may pass through."""
    seen: list[tuple[bool, bool]] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.ReLU())
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

        def forward(self, inputs: Tensor) -> Tensor:
            seen.append((self.training, torch.is_inference_mode_enabled()))
            outputs: Tensor = self.head(self.stem(inputs))
            return outputs

    environment = Environment(make_recipe(host=Watching, batches=1), arm="a", index=0)
    environment.reset(0, 1)
    environment.train()
    seen.clear()
    figures = environment.evaluate("validation")
    assert seen
    assert set(seen) == {(False, True)}
    assert not figures.is_inference()


def test_b8_drl_03_arms_are_interleaved_and_take_turns_in_being_first(make_recipe: Callable[..., Recipe]) -> None:
    pool = Pool(make_recipe(), ["a", "b", "twin"], 2)
    pool.reset(0, 4)
    assert [(e.arm, e.seed) for e in pool.environments] == [
        ("a", 4), ("b", 4), ("twin", 4), ("a", 5), ("b", 5), ("twin", 5),
    ]  # fmt: skip
    firsts = [pool.turns(step)[0].arm for step in range(6)]
    assert sorted(firsts) == ["a", "a", "b", "b", "twin", "twin"]


@given(st.integers(0, 2**62))
def test_a_stream_goes_on_where_it_stopped_and_leaves_the_default_generator_alone(seed: int) -> None:
    torch.manual_seed(11)
    expected_default = torch.rand(3)
    torch.manual_seed(seed)
    expected = torch.rand(6)
    torch.manual_seed(11)
    stream = RandomStream(seed)
    with stream:
        first = torch.rand(4)
    between = torch.rand(3)
    with stream:
        second = torch.rand(2)
    assert torch.equal(torch.cat([first, second]), expected)
    assert torch.equal(between, expected_default)


def test_a_stream_gives_the_generator_back_when_its_block_fails() -> None:
    torch.manual_seed(2)
    before = torch.get_rng_state()
    stream = RandomStream(1)
    with pytest.raises(RuntimeError), stream:
        torch.rand(1).reshape(2)
    assert torch.equal(torch.get_rng_state(), before)
    with stream:
        pass


def test_a_stream_feeds_one_block_at_a_time() -> None:
    stream = RandomStream(1)
    with stream, pytest.raises(RuntimeError, match="in use"), stream:
        pass


def test_derived_seeds_are_the_same_tomorrow() -> None:
    assert derive_seed(7, "order") == 666519070672927082
    assert len({derive_seed(seed, name) for seed in range(50) for name in ("host", "order", "training")}) == 150
