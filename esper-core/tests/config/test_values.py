"""Key paths: written and parsed back."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from esper_core.config import parse_path
from esper_core.config.values import MAX_DEPTH, MAX_SHOWN, path_text

KEYS = st.text(max_size=MAX_SHOWN)
PATHS = st.lists(KEYS | st.integers(0, 99_999), min_size=1, max_size=MAX_DEPTH).filter(
    lambda path: isinstance(path[0], str)
)


@given(PATHS.map(tuple))
def test_a_path_that_is_written_is_read_back(path):
    assert parse_path(path_text(path)) == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a", ("a",)),
        ("slots.early.blueprints[0]", ("slots", "early", "blueprints", 0)),
        ("a[0][1].b", ("a", 0, 1, "b")),
        ('a["b.c"].d', ("a", "b.c", "d")),
        ('["a b"].c', ("a b", "c")),
        ("a-b_1.2", ("a-b_1", "2")),
    ],
)
def test_paths_are_read(text, path):
    assert parse_path(text) == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a[",
        "a[]",
        "a[x]",
        "a[-1]",
        "a[1234567]",
        "[0]",
        "a b",
        "a=b",
        'a["x]',
    ],
)
def test_what_is_no_path_is_refused(text):
    with pytest.raises(ValueError, match=r"unexpected|begin"):
        parse_path(text)


def test_a_path_that_is_deeper_than_any_file_is_refused():
    assert len(parse_path(".".join("a" * MAX_DEPTH))) == MAX_DEPTH
    with pytest.raises(ValueError, match="deep"):
        parse_path(".".join("a" * (MAX_DEPTH + 1)))


def test_a_long_key_is_cut_where_it_is_printed():
    assert len(path_text(("a", "x" * 10_000))) < 80


def test_a_key_that_a_terminal_would_obey_is_escaped():
    assert path_text(("\x1b[31m",)) == '["\\u001b[31m"]'
