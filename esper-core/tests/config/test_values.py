"""Key paths: written and parsed back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from esper_core.config import parse_path
from esper_core.config.values import MAX_DEPTH, MAX_SHOWN, path_text

KEYS = st.text(max_size=MAX_SHOWN)
STEPS = st.lists(KEYS | st.integers(0, 99_999), max_size=4)


@settings(max_examples=50)
@given(KEYS, STEPS)
def test_written_path_is_parsed_to_the_same_path(first, steps):
    path = (first, *steps)
    assert parse_path(path_text(path)) == path


PATHS = {
    "a": ("a",),
    "slots.early.blueprints[0]": ("slots", "early", "blueprints", 0),
    "a[0][1].b": ("a", 0, 1, "b"),
    'a["b.c"].d': ("a", "b.c", "d"),
    '["a b"].c': ("a b", "c"),
    "a-b_1.2": ("a-b_1", "2"),
}
INVALID = ["", ".", "a.", ".a", "a..b", "a[", "a[]", "a[x]", "a[-1]", "a[1234567]", "[0]", "a b", "a=b", 'a["x]']


def test_path_is_parsed_or_refused():
    assert {text: parse_path(text) for text in PATHS} == PATHS
    for text in INVALID:
        with pytest.raises(ValueError, match=r"unexpected|begin"):
            parse_path(text)


def test_path_deeper_than_any_file_is_refused_and_control_characters_are_escaped():
    assert len(parse_path(".".join("a" * MAX_DEPTH))) == MAX_DEPTH
    with pytest.raises(ValueError, match="deep"):
        parse_path(".".join("a" * (MAX_DEPTH + 1)))
    assert path_text(("\x1b[31m",)) == '["\\u001b[31m"]'
