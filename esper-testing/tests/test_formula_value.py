"""Is a formula read as arithmetic, and is nothing in it executed?"""

from __future__ import annotations

import pytest

from esper_testing.formula import formula_value


@pytest.mark.parametrize(
    ("formula", "value"),
    [("7", 7), ("c", 8), ("2*(5**n*c*c + c)", 656), ("c*c//3 - -1", 22), (" c % 3 ", 2)],
)
def test_arithmetic_over_the_site_is_computed(formula, value):
    assert formula_value(formula, {"c": 8, "n": 1}) == value


@pytest.mark.parametrize(
    "formula", ["k", "__import__('os')", "c.real", "c/2", "1.5*c", "True", "c if c else 1", "", "c +", "[c]", "'c'"]
)
def test_anything_else_is_refused(formula):
    with pytest.raises(ValueError, match="Received: "):
        formula_value(formula, {"c": 8})
