"""Each check of schedules fails for its own fault, and passes for a correct schedule."""

import pytest

from esper_testing import check_schedule


def schedule(factor):
    """Return a schedule of ``factor(step, steps)``."""
    return type("Schedule", (), {"factor": lambda schedule, step, steps: factor(step, steps)})


FallsLinearly = schedule(lambda step, steps: max(0.0, 1.0 - step / (steps or 100)))
FallsBelowZero = schedule(lambda step, steps: 1.0 - step / 20)
NeedsTheEnd = schedule(lambda step, steps: 1.0 - step / steps if step < steps else 0.0)
DividesAtTheEnd = schedule(lambda step, steps: 1.0 if steps is None or step < steps else float("nan"))
Sleeps = schedule(lambda step, steps: 0.0)


class Counts:
    asked = 0

    def factor(self, step, steps):
        self.asked += 1
        return 1.0 / self.asked


def failed(factory):
    return {one.check: one.message for one in check_schedule(factory) if one.status == "failed"}


def test_a_schedule_without_a_fault_passes_every_check():
    assert failed(FallsLinearly) == {}


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
