"""Each check of schedules fails for its own fault, and passes for a correct schedule."""

import pytest

from esper_testing import check_schedule


class Right:
    """Falls linearly."""

    def factor(self, step, steps):
        return max(0.0, 1.0 - step / (steps or 100))


class FallsBelowZero(Right):
    def factor(self, step, steps):
        return 1.0 - step / 20


class NeedsTheEnd(Right):
    def factor(self, step, steps):
        return 1.0 - step / steps if step < steps else 0.0


class DividesAtTheEnd(Right):
    def factor(self, step, steps):
        return 1.0 if steps is None or step < steps else float("nan")


class Counts(Right):
    def __init__(self):
        self.asked = 0

    def factor(self, step, steps):
        self.asked += 1
        return 1.0 / self.asked


class Sleeps(Right):
    def factor(self, step, steps):
        return 0.0


def failed(factory):
    return {one.check: one.message for one in check_schedule(factory) if one.status == "failed"}


def test_a_schedule_without_a_fault_passes_every_check():
    assert failed(Right) == {}


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (FallsBelowZero, "gives_a_factor_for_every_step", "returns -0.9"),
        (NeedsTheEnd, "gives_a_factor_for_every_step", "TypeError"),
        (DividesAtTheEnd, "gives_a_factor_for_every_step", "returns nan for step 39 of 1"),
        (Counts, "is_pure", "for step 0 of 1"),
        (Sleeps, "lets_something_be_learnt", "returns 0 for every step"),
    ],
)
def test_a_fault_is_found_by_its_check(factory, check, says):
    found = failed(factory)
    assert says in found[check]
    assert set(found) <= {check, "is_pure"}
