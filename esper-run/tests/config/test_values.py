"""Key paths are written and parsed alike."""

import pytest
from hypothesis import given, settings, strategies as st

from esper_run.config import parse_path
from esper_run.config.values import MAX_DEPTH, MAX_SHOWN, path_text

KEYS = st.text(max_size=MAX_SHOWN)
STEPS = st.lists(KEYS | st.integers(0, 99_999), max_size=4)


@settings(max_examples=50)
@given(KEYS, STEPS)
def test_written_path_is_parsed_to_the_same_path(first, steps):
    path = (first, *steps)
    assert parse_path(path_text(path)) == path


def test_path_deeper_than_any_file_is_refused_and_control_characters_are_escaped():
    assert len(parse_path(".".join("a" * MAX_DEPTH))) == MAX_DEPTH
    with pytest.raises(ValueError, match="deep"):
        parse_path(".".join("a" * (MAX_DEPTH + 1)))
    assert path_text(("\x1b[31m",)) == '["\\u001b[31m"]'
