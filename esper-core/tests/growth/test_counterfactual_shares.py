"""What each seed does for the network: against games whose answers are known; what was not measured is absent."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper_core.growth.shares import (
    along,
    coalitions,
    dependence,
    drawn_orders,
    each_left_out,
    pairs_left_out,
    sampled_shapley,
    shapley,
    synergy,
)

NAMES = ["a", "b", "c", "d", "e", "f"]
BASE = frozenset({"always"})


def game(seeds: list[str], number: int, base: frozenset[str] = frozenset()) -> dict[frozenset[str], Tensor]:
    """A loss for five examples in every coalition, drawn at random."""
    generator = torch.Generator().manual_seed(number)
    subsets = [[name for place, name in enumerate(seeds) if bits >> place & 1] for bits in range(2 ** len(seeds))]
    return {base | set(some): torch.randn(5, generator=generator, dtype=torch.float64) for some in subsets}


def over_all_orders(losses: dict[frozenset[str], Tensor], seeds: list[str], base: frozenset[str]) -> dict[str, Tensor]:
    """The definition: what each lowers the loss by when it joins, over every order."""
    shares = {name: torch.zeros(5, dtype=torch.float64) for name in seeds}
    orders = list(permutations(seeds))
    for order in orders:
        here = base
        for name in order:
            shares[name] += (losses[here] - losses[here | {name}]) / len(orders)
            here = here | {name}
    return shares


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(0, 1000), st.sampled_from([frozenset(), BASE]))
def test_shapley_values_are_those_over_all_orders_and_sum_to_the_whole(count, number, base) -> None:
    seeds = NAMES[:count]
    losses = game(seeds, number, base)
    shares = shapley({one: losses[one] for one in coalitions(seeds, base)}, seeds, base)
    expected = over_all_orders(losses, seeds, base)
    assert shares.rows.keys() == expected.keys()
    assert all(torch.allclose(shares.rows[name], expected[name], atol=1e-12) for name in seeds)
    assert torch.allclose(sum(shares.rows.values()), losses[base] - losses[base | set(seeds)], atol=1e-12)
    assert shares.errors is None


def test_seeds_that_do_the_same_have_the_same_share_and_one_that_does_nothing_has_none() -> None:
    losses = {one: torch.tensor([4.0 - 2.0 * bool(one & {"a", "b"}), 1.0]) for one in coalitions(["a", "b", "c"])}
    rows = shapley(losses, ["a", "b", "c"]).rows
    assert torch.equal(rows["a"], rows["b"])
    assert rows["a"].tolist() == pytest.approx([1.0, 0.0])
    assert rows["c"].tolist() == [0.0, 0.0]


def test_more_than_four_seeds_are_not_evaluated_in_all_coalitions() -> None:
    assert len(coalitions(NAMES[:4])) == 16
    with pytest.raises(ValueError, match="Received: 5 seeds"):
        coalitions(NAMES[:5])


def test_left_out_alone_and_in_pairs() -> None:
    main = frozenset("abc")
    losses = game(["a", "b", "c"], 0)
    wanted = pairs_left_out(main)
    assert wanted[:4] == each_left_out(main)
    assert sorted(map(sorted, wanted)) == sorted(map(sorted, [*"abc", "ab", "ac", "bc", "abc"]))
    found = dependence(losses, main)
    assert all(torch.equal(found[name], losses[main - {name}] - losses[main]) for name in "abc")
    both = synergy({one: losses[one] for one in wanted}, main)
    assert both.keys() == {("a", "b"), ("a", "c"), ("b", "c")}
    # L(−a−b) = L(main) + what is lost with a + with b + what is lost beyond that
    assert torch.allclose(losses[main] + found["a"] + found["b"] + both["a", "b"], losses[frozenset("c")])


def test_seeds_that_stand_in_for_each_other_have_a_positive_synergy() -> None:
    losses = {one: torch.tensor([1.0 if one else 3.0]) for one in coalitions(["a", "b"])}
    assert synergy(losses, frozenset("ab"))["a", "b"].item() == 2.0


def test_run_11_what_was_not_measured_has_no_value() -> None:
    main, losses = frozenset("abc"), game(["a", "b", "c"], 1)
    without = {one: rows for one, rows in losses.items() if one != frozenset("bc")}
    assert dependence(without, main).keys() == {"b", "c"}
    assert synergy(without, main).keys() == {("b", "c")}
    assert shapley(without, main).rows == {}
    less = {one: rows for one, rows in losses.items() if one != main}
    assert dependence(less, main) == {}
    assert synergy(less, main) == {}
    orders = [("a", "b", "c"), ("b", "c", "a")]
    assert sampled_shapley(without, orders).rows.keys() == {"b"}
    assert sampled_shapley(without, orders).errors.keys() == {"b"}
    assert sampled_shapley({}, orders).rows == {}


def test_orders_are_drawn_anew_for_each_seed_and_alike_for_the_same() -> None:
    orders = drawn_orders(NAMES, 30, 1)
    assert orders == drawn_orders(NAMES[::-1], 30, 1)
    assert orders != drawn_orders(NAMES, 30, 2)
    assert all(sorted(order) == NAMES for order in orders)
    wanted = along(orders, BASE)
    assert len(wanted) == len(set(wanted)) <= 64
    assert {frozenset(order[:size]) | BASE for order in orders for size in range(7)} == set(wanted)
    with pytest.raises(ValueError, match="Received: 1"):
        drawn_orders(NAMES, 1, 1)


def test_what_is_sampled_is_as_near_to_the_truth_as_it_says() -> None:
    losses = game(NAMES, 5)
    truth = over_all_orders(losses, NAMES, frozenset())
    off = []
    for number in range(150):
        orders = drawn_orders(NAMES, 24, number)
        shares = sampled_shapley({one: losses[one] for one in along(orders)}, orders)
        off += [((shares.rows[name].mean() - truth[name].mean()) / shares.errors[name]).item() for name in NAMES]
    scores = torch.tensor(off)
    assert scores.mean().abs() < 0.15
    assert 0.85 < scores.std() < 1.25
    assert 0.90 < (scores.abs() < 2.0).double().mean() < 0.985


def test_an_order_accounts_for_the_whole() -> None:
    losses = game(NAMES, 6)
    shares = sampled_shapley(losses, drawn_orders(NAMES, 5, 0))
    assert torch.allclose(sum(shares.rows.values()), losses[frozenset()] - losses[frozenset(NAMES)], atol=1e-12)
