"""Parameter formulas: right where they are right, and refused quickly where they are hostile."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_core.plugins import FormulaError, evaluate_formula
from esper_core.plugins.formula import DEEPEST, LARGEST, LONGEST

SITE = {"c": 8, "n": 2, "h": 6, "w": 5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("9*c*c", 576),
        ("2*(5**n*c*c + c)", 3216),
        (" c\t+ 1 ", 9),
        ("-c**2", -64),
        ("2**3**2", 512),
        ("2**-0", 1),
        ("7//2*2", 6),
        ("-7//2", -4),
        ("10-3-2", 5),
        ("--3", 3),
        ("min(c, h, w)", 5),
        ("max(c//4, 1)", 2),
        ("10**18", LARGEST),
        ("0**0", 1),
    ],
)
def test_a_formula_means_what_it_means_in_python(text: str, value: int) -> None:
    assert evaluate_formula(text, SITE) == value
    assert eval(text.strip(), dict(SITE)) == value


EXPRESSIONS = st.recursive(
    st.integers(0, 9).map(str) | st.sampled_from(["c", "n"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" + ", "-", "*", " // "]), inner).map("".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        st.tuples(inner, inner).map(lambda pair: f"min({pair[0]}, {pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: f"max({pair[0]},{pair[1]})"),
        st.tuples(inner, st.integers(0, 3)).map(lambda pair: f"({pair[0]})**{pair[1]}"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_whatever_is_evaluated_equals_what_python_makes_of_it(text: str) -> None:
    try:
        value = evaluate_formula(text, SITE)
    except FormulaError:
        return
    assert value == eval(text, dict(SITE))


@given(st.text(alphabet="cnhw0123456789+-*/() ,minax_.[]\"'\\\n", max_size=LONGEST + 5))
def test_no_text_does_anything_but_give_a_whole_number_or_a_formula_error(text: str) -> None:
    try:
        value: object = evaluate_formula(text, SITE)
    except FormulaError as error:
        value = str(error)
    assert type(value) is int or "eceived" in value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            'expected a number, a name or an opening parenthesis where the formula ends, at character 1. Received: ""',
        ),
        ("9*c*k", 'unknown name "k" at character 5; known here: c, h, n, w. Received: "9*c*k"'),
        ("c/2", "'/' at character 2 has no meaning in a formula. Use // for division. Received: \"c/2\""),
        ("c//0", 'division by zero at character 2. Received: "c//0"'),
        ("c//(n-2)", 'division by zero at character 2. Received: "c//(n-2)"'),
        ("9**9**9**9", "an exponent must be from 0 to 64, and at character 5 it is 387420489."),
        ("c**-1", "an exponent must be from 0 to 64, and at character 2 it is -1."),
        ("10**18*c", 'the value at "*", character 7, is beyond 1e+18.'),
        ("9" * 100, "the number at character 1 is too large."),
        ("(c", "the parenthesis at character 1 is not closed."),
        ("c)", 'expected an operator at character 2, found ")".'),
        ("9c", 'expected an operator at character 2, found "c".'),
        ("min", "min at character 1 needs its arguments in parentheses."),
        ("min()", 'expected a number, a name or an opening parenthesis where ")" stands, at character 5.'),
        ("max(7)", "max at character 1 needs two values or more."),
        ("c.real", "'.' at character 2 has no meaning in a formula."),
        ("c\n", "'\\n' at character 2 has no meaning in a formula."),
        ("__import__('os')", '"\'" at character 12 has no meaning in a formula.'),
        ("c if c else n", 'expected an operator at character 3, found "if".'),
        ("٣", "'٣' at character 1 has no meaning in a formula."),
        ("c" * (LONGEST + 1), f"the formula has {LONGEST + 1} characters, {LONGEST} are allowed; received"),
    ],
)
def test_what_is_no_formula_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(FormulaError) as caught:
        evaluate_formula(text, SITE)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("received", [9, None, ["c"], True])
def test_a_formula_that_is_no_text_is_a_formula_error(received: object) -> None:
    with pytest.raises(FormulaError, match=f"received {type(received).__name__}"):
        evaluate_formula(received, SITE)


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9",
        "**".join("9" * 60),
        "(" * 100 + "c" + ")" * 99,
        "-" * 199 + "c",
        "+-" * 99 + "c",
        "min(" * 49,
        "c**64**64",
        "99**64*99**64",
        "((((10**18)*10**18)*10**18)*10**18)",
        "9" * 200,
    ],
)
def test_a_hostile_formula_is_refused_at_once(text: str) -> None:
    started = time.perf_counter()
    with pytest.raises(FormulaError):
        evaluate_formula(text, SITE)
    assert time.perf_counter() - started < 0.05


def test_nesting_is_allowed_just_as_deep_as_is_said() -> None:
    assert evaluate_formula("(" * DEEPEST + "c" + ")" * DEEPEST, SITE) == 8
    with pytest.raises(FormulaError, match=f"more than {DEEPEST} levels"):
        evaluate_formula("(" * (DEEPEST + 1) + "c" + ")" * (DEEPEST + 1), SITE)
