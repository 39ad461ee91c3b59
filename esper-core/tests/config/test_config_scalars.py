"""Does an unquoted word mean what the core schema of YAML 1.2 says, and nothing that YAML 1.1 made of it?"""

from __future__ import annotations

import math

import pytest

from esper_core.config.values import MAX_NUMBER
from esper_core.config.yaml import NumberError, parse_scalar


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *[(word, None) for word in ("", "~", "null", "Null", "NULL")],
        *[(word, True) for word in ("true", "True", "TRUE")],
        *[(word, False) for word in ("false", "False", "FALSE")],
        *[("0", 0), ("-0", 0), ("+12", 12), ("-12", -12), ("007", 7), ("0o17", 15), ("0x1F", 31), ("0xff", 255)],
        *[("1.", 1.0), (".5", 0.5), ("-.5", -0.5), ("1e-3", 0.001), ("1E3", 1000.0), ("+1.5e+2", 150.0), ("0e5", 0.0)],
        *[(".inf", math.inf), ("+.INF", math.inf), ("-.Inf", -math.inf)],
    ],
)
def test_words_with_a_meaning_have_the_one_of_yaml_1_2(word, value):
    assert parse_scalar(word) == value
    assert type(parse_scalar(word)) is type(value)


@pytest.mark.parametrize("word", [".nan", ".NaN", ".NAN"])
def test_not_a_number_is_a_float(word):
    assert math.isnan(parse_scalar(word))


@pytest.mark.parametrize(
    "word",
    [
        *("no", "No", "yes", "on", "off", "y", "n", "tRUE", "nULL", "~~", "=", "<<"),
        *("1_000", "1,000", "1:30", "190:20:30", "0b11", "0O17", "0o8", "0X1F", "0xg", "-0x1F", "+0o7"),
        *("2026-11-21", "2026-11-21T10:15:12Z", "1e", "e3", ".", "-", "+", "..5", "1.2.3", "1e3.5", "0.5f", "٣"),
        *("inf", "nan", ".Nan", "-.nan", "+.nan", "NaN", "Infinity", "1 2", "1\n", "0x", "0o"),
    ],
)
def test_other_words_are_text(word):
    assert parse_scalar(word) == word
    assert type(parse_scalar(word)) is str


@pytest.mark.parametrize("word", ["9" * 101, "0x" + "f" * 99, "0." + "1" * 99, "1" * 5000, "-" + "1" * 100])
def test_a_number_of_too_many_characters_is_refused(word):
    with pytest.raises(NumberError, match="at most 100"):
        parse_scalar(word)


def test_a_number_of_just_as_many_characters_is_read():
    assert parse_scalar("9" * MAX_NUMBER) == 10**MAX_NUMBER - 1


@pytest.mark.parametrize("word", ["1e400", "-1e400", "1e-400", "0.0001e-399"])
def test_a_float_that_would_silently_become_infinite_or_zero_is_refused(word):
    with pytest.raises(NumberError, match="than a float can be"):
        parse_scalar(word)
