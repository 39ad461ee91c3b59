"""Reading YAML 1.2: values and their places, and what a configuration cannot contain."""

from __future__ import annotations

import math

import pytest

from esper_core.config.values import MAX_BYTES, MAX_DEPTH, MAX_NODES, MAX_NUMBER, SourcePosition
from esper_core.config.yaml import NumberError, parse_scalar, read_document
from esper_core.leyline import ConfigError


def read(text):
    return read_document(text.encode() if isinstance(text, str) else text, "f.yaml")


def found(text):
    """(code, line, column, path) of each problem, whether reading could go on or not."""
    try:
        told = read(text).problems
    except ConfigError as error:
        told = error.problems
    return [(problem.code, problem.line, problem.column, problem.path) for problem in told]


# --- values and places


def test_every_kind_of_value_is_read():
    tree = read("a: 1\nb: [x, 2.5, null]\nc: {d: true, e: 'no'}\nf: |\n  two\n  lines\ng:\n- h: ~\n")
    value = {"a": 1, "b": ["x", 2.5, None], "c": {"d": True, "e": "no"}, "f": "two\nlines\n", "g": [{"h": None}]}
    assert tree.value == value
    assert tree.problems == []


def test_quoted_words_are_text_whatever_they_look_like():
    assert read("a: '1'\nb: \"true\"\nc: 'null'\nd: ''").value == {"a": "1", "b": "true", "c": "null", "d": ""}


def test_each_value_has_its_place_and_that_of_its_key():
    text = "# a comment\nslots:\n  early:\n    blueprints: [conv_light,\n      norm]\nnone:\nlast: 'é' # é\n"
    places = read(text).places.by_path
    assert places[()] == SourcePosition("f.yaml", 2, 1)
    assert places[("slots",)] == SourcePosition("f.yaml", 3, 3, 2, 1)
    assert places[("slots", "early")] == SourcePosition("f.yaml", 4, 5, 3, 3)
    assert places[("slots", "early", "blueprints")] == SourcePosition("f.yaml", 4, 17, 4, 5)
    assert places[("slots", "early", "blueprints", 0)] == SourcePosition("f.yaml", 4, 18)
    assert places[("slots", "early", "blueprints", 1)] == SourcePosition("f.yaml", 5, 7)
    assert places[("none",)] == SourcePosition("f.yaml", 6, 6, 6, 1)
    assert places[("last",)] == SourcePosition("f.yaml", 7, 7, 7, 1)
    assert len(places) == 8


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_for_every_line_ending(line_end):
    assert read(f"a: 1{line_end}b:{line_end}  - x").places.by_path[("b", 0)] == SourcePosition("f.yaml", 3, 5)


def test_a_byte_order_mark_does_not_count_as_a_column():
    assert read(b"\xef\xbb\xbfa: 1").places.by_path[("a",)] == SourcePosition("f.yaml", 1, 4, 1, 1)


def test_an_alias_is_written_out_and_its_values_keep_their_places():
    tree = read("a: &x\n  b: 1\nc: *x\nd: *x\n")
    assert tree.value == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1}}
    assert tree.value["a"] is not tree.value["c"], "an override of one must not change the other"
    assert tree.places.by_path[("c",)] == SourcePosition("f.yaml", 3, 4, 3, 1)
    assert tree.places.by_path[("c", "b")] == SourcePosition("f.yaml", 2, 6, 2, 3)


def test_an_anchor_that_is_given_twice_means_the_nearest_above():
    assert read("a: &x 1\nb: &x 2\nc: *x").value == {"a": 1, "b": 2, "c": 2}


def test_an_alias_may_stand_for_a_key():
    assert read("a: &x b\n*x : 1").value == {"a": "b", "b": 1}


# --- what is refused, all of it at once


def test_every_duplicate_key_is_reported_with_the_line_of_the_first():
    tree = read("a: 1\nb: {c: 1, c: 2}\na: 2\n'a': 3\n")
    assert [(p.code, p.line, p.column, p.path) for p in tree.problems] == [
        ("E105", 2, 11, "b.c"),
        ("E105", 3, 1, "a"),
        ("E105", 4, 1, "a"),
    ]
    assert tree.problems[1].message == 'duplicate key "a", first in line 1'
    assert tree.value == {"a": 1, "b": {"c": 1}}


def test_problems_inside_a_duplicate_are_reported_too():
    assert sorted(found("a: 1\na: {2: x}\n")) == [("E105", 2, 1, "a"), ("E106", 2, 5, "a")]


def test_every_key_that_is_not_a_text_is_reported():
    text = "1: a\n2.5: b\ntrue: c\n~: d\n[x]: e\n? {f: g}\n: h\n.nan: i\n? \n: j\nk: {0x1F: l}\nok: 1\n"
    assert found(text) == [
        *[("E106", line, 1, None) for line in (1, 2, 3, 4, 5)],
        ("E106", 6, 3, None),
        ("E106", 8, 1, None),
        ("E106", 9, 2, None),
        ("E106", 11, 5, "k"),
    ]
    assert read(text).value == {"k": {}, "ok": 1}
    assert read(text).problems[0].hint == 'Put it in quotes: "1".'


def test_keys_that_only_yaml_1_1_takes_for_something_else_are_text():
    assert read("no: 1\non: 2\n1:30: 3\n<<: 4\n=: 5").value == {"no": 1, "on": 2, "1:30": 3, "<<": 4, "=": 5}


@pytest.mark.parametrize(
    "tag",
    [
        *("!!python/object:os.system", "!!python/object/apply:os.system [id]", "!!python/name:os.system", "!foo"),
        *("!", "!<tag:yaml.org,2002:int>", "!!str", "!!int", "!!binary", "!!set {}"),
    ],
)
def test_every_tag_is_refused_and_nothing_is_made_of_it(tag):
    assert found(f"a: {tag}\nb: {tag}\n") == [("E107", 1, 4, "a"), ("E107", 2, 4, "b")]


def test_a_tag_is_refused_at_a_key_at_the_top_and_with_an_anchor():
    assert found("!foo a: 1") == [("E107", 1, 1, None)]
    assert found("!!map {a: 1}") == [("E107", 1, 1, None)]
    assert found("a: &x !foo 1\nb: *x") == [("E107", 1, 4, "a")], "once, however many aliases lead to it"


def test_an_undeclared_tag_handle_is_a_tag():
    assert found("a: !e!x 1") == [("E107", 1, 4, None)]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("&a [*a]", ("E108", 1, 5, "[0]")),
        ("a: &a {b: {c: *a}}", ("E108", 1, 15, "a.b.c")),
        ("&a {b: *a}", ("E108", 1, 8, "b")),
    ],
)
def test_an_alias_inside_its_own_anchor_is_refused(text, place):
    assert found(text)[0] == place


def test_an_alias_without_an_anchor_is_refused_and_reading_goes_on():
    assert found("a: *x\nb: *y\nb: &x 1") == [("E104", 1, 4, "a"), ("E104", 2, 4, "b"), ("E105", 3, 1, "b")]


@pytest.mark.parametrize("escape", ["\\ud800", "\\udfff", "\\ud83d\\ude00", "\\U0000d800"])
def test_half_a_character_is_refused_in_values_and_keys(escape):
    assert found(f'a: "x{escape}"') == [("E103", 1, 4, "a")]
    assert found(f'"{escape}": 1') == [("E103", 1, 1, None)]


def test_characters_may_be_escaped():
    assert read('a: "\\0\\t\\u2028\\U0001F600\\x41"').value == {"a": "\0\t\u2028😀A"}


@pytest.mark.parametrize("number", ["9" * 200_000, "0x" + "f" * 5000, "1e999"])
def test_a_number_that_cannot_be_kept_is_refused(number):
    assert found(f"a: {number}\nb: x\nb: y") == [("E112", 1, 4, "a"), ("E105", 3, 1, "b")]


# --- encoding


@pytest.mark.parametrize(
    "character",
    [
        "\0",
        "\x01",
        "\x1b",
        "\x7f",
        "\x80",
        "\x85",
        "\u2028",
        "\u2029",
        "\ufeff",
        "\ufffe",
        "\uffff",
        "\u202e",
        "\u2066",
    ],
)
@pytest.mark.parametrize("text", ["a: 1\nb: x{}y", "a: 1\nb: '{}'", "a: 1\n#: {}"])
def test_a_character_that_hides_is_refused_wherever_it_stands(character, text):
    ((code, line, column, _),) = found(text.format(character))
    assert (code, line) == ("E103", 2)
    assert column == text.split("\n")[1].index("{") + 1


def test_every_hidden_character_is_reported_up_to_twenty():
    assert found("a: \0\nb: \x07") == [("E103", 1, 4, None), ("E103", 2, 4, None)]
    assert len(found("\0" * 1000)) == 20


@pytest.mark.parametrize("letter", ["é", "😀", "\xa0", "\u200b", "漢"])
def test_other_characters_are_text(letter):
    assert read(f"a: x{letter}y").value == {"a": f"x{letter}y"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_wide_encodings_are_refused(encoding):
    assert {code for code, *_ in found("task: mnist1d\n".encode(encoding))} == {"E103"}


@pytest.mark.parametrize("data", [b"a: 1\nb: \xe9", b"a: 1\nb: \xed\xa0\x80", b"a: 1\nb: \xc3", b"a: 1\nb: \xff\xfe"])
def test_invalid_utf_8_is_reported_with_its_place(data):
    assert found(data) == [("E103", 2, 4, None)]


def test_the_column_of_a_wrong_byte_counts_characters():
    assert found("a: é\nb: ééé".encode() + b"\xff") == [("E103", 2, 7, None)]


# --- syntax


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("a: [1, 2\nb: 3", 2, 2, "a flow sequence that begins in line 1, expected ',' or ']'"),
        ("a: {b: 1\n", 1, 4, "expected ',' or '}'"),
        ("a: 1\nb: 'x", 2, 4, "a quoted scalar, found unexpected end of stream"),
        ("a: b: c", 1, 5, "mapping values are not allowed here"),
        ("a:\n\tb: 1", 2, 1, "character '\\t'"),
        ("a: 1\n   b: 2", 2, 5, "mapping values are not allowed here"),
        ("a:\n    b: 1\n  c: 2", 3, 3, "a block mapping that begins in line 1"),
        ("a: 1\nb\nc: 2", 3, 1, "could not find expected ':'"),
        ("a: *", 1, 4, "while scanning an alias"),
        ("a: [*.mlp]", 1, 5, "while scanning an alias"),
        ("a: [conv?]", 1, 9, "but got '?'"),
        ("a: @x", 1, 4, "'@' that cannot start any token"),
        ("a: `x`", 1, 4, "'`' that cannot start any token"),
        ("a: %x", 1, 4, "'%' that cannot start any token"),
        ('a: "\\q"', 1, 6, "unknown escape character 'q'"),
        ('a: "\\xzz"', 1, 7, "expected escape sequence of 2 hexadecimal numbers"),
        ('a: "\\UFFFFFFFF"', 1, 7, "has no meaning"),
        ("a: 'it's'", 1, 8, "expected <block end>"),
        ("a: - b", 1, 4, "sequence entries are not allowed here"),
        ("a: [,]", 1, 5, "expected the node content"),
        ("%YAML 1." + "9" * 5000 + "\n--- a", 1, 9, "has no meaning"),
    ],
)
def test_a_syntax_error_is_reported_with_its_place(text, line, column, says):
    with pytest.raises(ConfigError) as caught:
        read(text)
    (problem,) = caught.value.problems
    assert (problem.code, problem.line, problem.column) == ("E104", line, column)
    assert says in problem.message
    assert problem.hint


def test_another_version_of_yaml_is_refused_and_1_2_is_not():
    assert found("%YAML 1.1\n---\na: 1") == [("E104", 1, 1, None)]
    assert found("%YAML 1.2\n---\na: 1") == []


def test_a_second_document_is_refused():
    assert found("a: 1\n---\nb: 2\n") == [("E104", 2, 1, None)]
    assert found("---\na: 1\n...\n") == []


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# only a comment\n", "---\n", "null", "~", "- a", "[a]", "x", "3", "'a'"]
)
def test_a_file_without_a_mapping_is_refused(text):
    assert {code for code, *_ in found(text)} == {"E109"}


def test_an_empty_mapping_is_a_mapping():
    assert read("{}").value == {}


# --- bounds


def test_nesting_is_bounded_just_where_it_says():
    assert found("a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)) == []
    assert [code for code, *_ in found("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH)] == ["E108"]


def test_aliases_do_not_nest_deeper_than_brackets_may():
    chain = "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, MAX_DEPTH + 1))
    assert [code for code, *_ in found("a0: &a0 x\n" + chain)] == ["E108"]


def test_the_number_of_values_is_bounded_just_where_it_says():
    assert found("a: [" + "x," * (MAX_NODES - 3) + "]") == []
    assert [code for code, *_ in found("a: [" + "x," * (MAX_NODES - 2) + "]")] == ["E108"]


def test_aliases_count_as_the_values_they_refer_to():
    text = "a: &a [" + "x," * 999 + "]\nb: [" + "*a," * 100 + "]"
    assert [code for code, *_ in found(text)] == ["E108"]


def test_the_characters_that_aliases_stand_for_are_bounded():
    text = "a: &a " + "x" * 1000 + "\nb: [" + "*a," * 2000 + "]"
    assert [code for code, *_ in found(text)] == ["E108"]
    assert len(text) < MAX_BYTES // 100


def test_a_text_of_too_many_bytes_is_refused():
    assert found(b"#" * (MAX_BYTES + 1)) == [("E102", None, None, None)]
    assert found(b"a: 1 " + b"#" * (MAX_BYTES - 5)) == []


# --- scalars


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
def test_scalars_have_the_value_of_yaml_1_2(word, value):
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
