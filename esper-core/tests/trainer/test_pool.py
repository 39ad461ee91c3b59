"""The order of a pool's environments."""

from __future__ import annotations

from esper_core.trainer.pool import Pool


def test_b8_drl_03_arms_are_interleaved_and_take_turns_in_being_first(make_recipe):
    pool = Pool(make_recipe(), ["a", "b", "twin"], 2)
    pool.reset(0, 4)
    assert [(e.arm, e.seed) for e in pool.environments] == [
        ("a", 4), ("b", 4), ("twin", 4), ("a", 5), ("b", 5), ("twin", 5),
    ]  # fmt: skip
    firsts = [pool.turns(step)[0].arm for step in range(6)]
    assert sorted(firsts) == ["a", "a", "b", "b", "twin", "twin"]
