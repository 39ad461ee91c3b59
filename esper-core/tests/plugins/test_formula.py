"""Parameter formulas: they equal Python's arithmetic, and anything else is refused."""

import pytest
from hypothesis import given, strategies as st

from esper_core.plugins.formula import MAX_LENGTH, MAX_VALUE, FormulaError, evaluate_formula

SITE = {"c": 8, "n": 2, "h": 6, "w": 5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*(5**n*c*c + c)", 3216),
        (" c\t+ 1 ", 9),
        ("-c**2", -64),
        ("2**3**2", 512),
        ("2**-0", 1),
        ("10**18", MAX_VALUE),
        ("0**0", 1),
        ("1_0 + 0x10", 26),
        ("(" * 99 + "c" + ")" * 99, 8),
        ("-" * 199 + "c", -8),
    ],
)
def test_formula_equals_python_arithmetic(text: str, value: int) -> None:
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
def test_random_formula_equals_python_arithmetic(text: str) -> None:
    try:
        value = evaluate_formula(text, SITE)
    except FormulaError:
        return
    assert value == eval(text, dict(SITE))


@given(st.text(alphabet="cnhw0123456789+-*/() ,minax_.[]\"'\\\n", max_size=MAX_LENGTH + 5))
def test_any_text_gives_an_integer_or_a_formula_error(text: str) -> None:
    try:
        value: object = evaluate_formula(text, SITE)
    except FormulaError as error:
        value = str(error)
    assert type(value) is int or "eceived" in value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'this is not a valid formula (invalid syntax). Received: ""'),
        ("9*c*k", 'unknown name "k"; known here: c, h, n, w. Received: "9*c*k"'),
        ("c/2", '"c / 2" is not allowed. Allowed are whole numbers, names, + - * // ** ( ), min and max'),
        ("c//0", 'division by zero in "c // 0". Received: "c//0"'),
        ("9**9**9", 'an exponent must be from 0 to 64, not 387420489. Received: "9**9**9"'),
        ("9" * 100, f'"{"9" * 60}…" is beyond 1e+18.'),
        ("007", "this is not a valid formula ("),
        ("min", 'unknown name "min"; known here: c, h, n, w.'),
        ("abs(c, n)", '"abs(c, n)" is not allowed.'),
        ("min(*c)", '"min(*c)" is not allowed.'),
        ("True", '"True" is not allowed.'),
        ("1e5", '"100000.0" is not allowed.'),
        ("c if c else n", '"c if c else n" is not allowed.'),
        ("c\n", "'\\n' is not allowed in a formula."),
        ("__import__('os')", '"\'" is not allowed in a formula.'),
        ("٣", "'٣' is not allowed in a formula."),
        ("**".join("9" * 60), "an exponent must be from 0 to 64"),
        ("c**64**64", '"64 ** 64" is beyond 1e+18.'),
        ("(" * 100 + "c" + ")" * 99, "this is not a valid formula ("),
        ("min(" * 49, "this is not a valid formula ("),
        ("c" * (MAX_LENGTH + 1), f"the formula has {MAX_LENGTH + 1} characters, {MAX_LENGTH} are allowed. Received: "),
    ],
)
def test_invalid_formula_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(FormulaError) as caught:
        evaluate_formula(text, SITE)
    assert str(caught.value).startswith(message)
