"""Alpha moves as it was told and arrives exactly."""

from __future__ import annotations

from hypothesis import given, strategies as st

from esper_core.growth.seeds import Alpha

strengths = st.floats(0, 1, allow_nan=False)


@given(start=strengths, target=strengths, ticks=st.integers(1, 400))
def test_alpha_moves_one_way_stays_in_range_and_ends_exactly_on_its_target(
    start: float, target: float, ticks: int
) -> None:
    alpha = Alpha(value=start)
    alpha.aim(target, ticks)
    path = [alpha.value]
    while alpha.moving:
        alpha.tick()
        path.append(alpha.value)
    assert path[0] == start
    assert path[-1] == target
    assert len(path) == ticks + 1
    assert path == sorted(path, reverse=target < start)
    assert all(0.0 <= value <= 1.0 for value in path)
    alpha.tick()
    assert alpha.value == target


def test_no_ticks_is_at_once() -> None:
    alpha = Alpha()
    alpha.aim(1.0, 0)
    assert alpha.value == 1.0
    assert not alpha.moving


def test_it_turns_back_from_where_it_is() -> None:
    alpha = Alpha()
    alpha.aim(1.0, 4)
    alpha.tick()
    alpha.aim(0.0, 2)
    alpha.tick()
    assert alpha.value == 0.125
