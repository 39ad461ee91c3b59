"""Reading YAML 1.2: values and their places, and what a configuration cannot contain."""

import math

import pytest

from esper_core.leyline import ConfigError
from esper_run.config.values import MAX_BYTES, MAX_DEPTH, SourcePosition
from esper_run.config.yaml import MAX_NUMBER, parse_scalar, read_document


def read(text):
    return read_document(text.encode() if isinstance(text, str) else text, "f.yaml")


def problem_at(text):
    """Code, line and column of the problem; None where the text can be read."""
    try:
        read(text)
    except ConfigError as error:
        (problem,) = error.problems
        return problem.code, problem.line, problem.column
    return None


def place(tree, *path):
    """The place of the value at ``path``."""
    node, depth = tree.nearest(path)
    assert depth == len(path)
    return node.position


def test_every_kind_of_value_is_read():
    tree = read("a: 1\nb: [x, 2.5, null]\nc: {d: true, e: 'no'}\nf: |\n  two\n  lines\ng:\n- h: ~\n")
    value = {"a": 1, "b": ["x", 2.5, None], "c": {"d": True, "e": "no"}, "f": "two\nlines\n", "g": [{"h": None}]}
    assert tree.plain() == value


def test_each_value_has_its_place_and_that_of_its_key():
    text = "# a comment\nslots:\n  early:\n    blueprints: [conv_light,\n      norm]\nnone:\nlast: 'é' # é\n"
    tree = read(text)
    assert place(tree) == SourcePosition("f.yaml", 2, 1)
    assert place(tree, "slots") == SourcePosition("f.yaml", 3, 3, 2, 1)
    assert place(tree, "slots", "early") == SourcePosition("f.yaml", 4, 5, 3, 3)
    assert place(tree, "slots", "early", "blueprints") == SourcePosition("f.yaml", 4, 17, 4, 5)
    assert place(tree, "slots", "early", "blueprints", 0) == SourcePosition("f.yaml", 4, 18)
    assert place(tree, "slots", "early", "blueprints", 1) == SourcePosition("f.yaml", 5, 7)
    assert place(tree, "none") == SourcePosition("f.yaml", 6, 6, 6, 1)
    assert place(tree, "last") == SourcePosition("f.yaml", 7, 7, 7, 1)


def test_every_line_ending_counts_and_a_byte_order_mark_does_not():
    for end in ("\n", "\r\n", "\r"):
        assert place(read(f"a: 1{end}b:{end}  - x"), "b", 0) == SourcePosition("f.yaml", 3, 5)
    assert place(read(b"\xef\xbb\xbfa: 1"), "a") == SourcePosition("f.yaml", 1, 4, 1, 1)


def test_alias_is_expanded_and_its_values_keep_their_places():
    tree = read("a: &x\n  b: 1\nc: *x\nd: *x\n")
    assert tree.plain() == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1}}
    assert tree.value["a"] is not tree.value["c"], "an override of one must not change the other"
    assert place(tree, "c") == SourcePosition("f.yaml", 1, 4, 3, 1)
    assert place(tree, "c", "b") == SourcePosition("f.yaml", 2, 6, 2, 3)


def test_duplicate_key_is_refused():
    for text, line, column in (("a: 1\nb: {c: 1, c: 2}", 2, 11), ("a: 1\nb: 2\na: 2", 3, 1), ("a: 1\n'a': 3", 2, 1)):
        assert problem_at(text) == ("E105", line, column)


def test_key_that_is_not_text_is_refused_and_one_that_is_special_in_yaml_1_1_only_is_text():
    for key in ("1", "2.5", "true", "~", "[x]", "{f: g}", ".nan", "0x1F"):
        assert problem_at(f"ok: 1\n? {key}\n: a") == ("E106", 2, 3)
        assert problem_at(f"k: {{{key}: a}}") == ("E106", 1, 5)
    assert read("no: 1\non: 2\n1:30: 3\n<<: 4\n=: 5").plain() == {"no": 1, "on": 2, "1:30": 3, "<<": 4, "=": 5}


@pytest.mark.parametrize(
    ("text", "column"),
    [
        *((f"a: {tag}\n", 4) for tag in ("!!python/object:os.system", "!foo", "!", "!<tag:yaml.org,2002:int>")),
        *((f"a: {tag}\n", 4) for tag in ("!!python/object/apply:os.system [id]", "!!str", "!!int", "!!set {}")),
        *(("!foo a: 1", 1), ("!!map {a: 1}", 1), ("a: &x !foo 1\nb: *x", 4), ("a: !e!x 1", 4)),
    ],
)
def test_every_tag_is_refused_wherever_it_stands(text, column):
    assert problem_at(text) == ("E107", 1, column)


@pytest.mark.parametrize("escape", ["\\ud800", "\\udfff", "\\ud83d\\ude00", "\\U0000d800"])
def test_half_a_surrogate_pair_is_refused(escape):
    assert problem_at(f'a: "x{escape}"') == ("E103", 1, 4)
    assert problem_at(f'"{escape}": 1') == ("E103", 1, 1)


HIDDEN = "\0 \x01 \x1b \x7f \x80 \x85 \u2028 \u2029 \ufeff \ufffe \uffff \u202e \u2066"


@pytest.mark.parametrize("text", ["a: 1\nb: x{}y", "a: 1\nb: '{}'", "a: 1\n#: {}"])
def test_control_character_is_refused_wherever_it_stands(text):
    for character in HIDDEN.split(" "):
        problem = problem_at(text.format(character))
        assert problem == ("E103", 2, text.split("\n")[1].index("{") + 1), hex(ord(character))


def test_wide_encodings_and_invalid_utf_8_are_refused():
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
        assert problem_at("task: mnist1d\n".encode(encoding))[0] == "E103"
    for wrong in (b"\xe9", b"\xed\xa0\x80", b"\xc3", b"\xff\xfe"):
        assert problem_at(b"a: 1\nb: " + wrong) == ("E103", 2, 4)
        assert problem_at("a: é\nb: ééé".encode() + wrong) == ("E103", 2, 7)  # the column counts characters


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("a: [1, 2\nb: 3", 2, 2, "a flow sequence that begins in line 1, expected ',' or ']'"),
        ("a: 1\nb: 'x", 2, 6, "a quoted scalar that begins in line 2, found unexpected end of stream"),
        ("a: b: c", 1, 5, "mapping values are not allowed here"),
        ("a:\n\tb: 1", 2, 1, "character '\\t'"),
        ("a:\n    b: 1\n  c: 2", 3, 3, "a block mapping that begins in line 1"),
        ("a: 1\nb\nc: 2", 3, 1, "could not find expected ':'"),
        ("a: [*.mlp]", 1, 6, "while scanning an alias"),
        ("a: @x", 1, 4, "'@' that cannot start any token"),
        ('a: "\\q"', 1, 6, "unknown escape character 'q'"),
        ('a: "\\UFFFFFFFF"', 1, 7, "has no meaning"),
        ("a: 'it's'", 1, 8, "expected <block end>"),
        ("%YAML 1." + "9" * 5000 + "\n--- a", 1, 9, "has no meaning"),
    ],
)
def test_syntax_error_is_reported_with_its_place(text, line, column, says):
    with pytest.raises(ConfigError) as caught:
        read(text)
    (problem,) = caught.value.problems
    assert (problem.code, problem.line, problem.column) == ("E104", line, column)
    assert says in problem.message
    assert problem.hint


def test_second_document_and_a_file_without_a_mapping_are_refused():
    assert problem_at("a: 1\n---\nb: 2\n") == ("E104", 2, 1)
    assert problem_at("---\na: 1\n...\n") is None
    for text in ("", "\n\n", "# only a comment\n", "---\n", "null", "~", "- a", "[a]", "x", "3", "'a'"):
        assert problem_at(text)[0] == "E109"
    assert read("{}").plain() == {}


def test_nesting_is_bounded():
    assert problem_at("a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)) is None
    assert problem_at("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH)[0] == "E108"


def test_aliases_do_not_nest_deeper_than_brackets_may_nor_in_themselves():
    for text in ("&a [*a]", "a: &a {b: {c: *a}}", "&a {b: *a}"):
        assert problem_at(text)[0] == "E108"
    for value in ("[*a%d]", "{k: *a%d}"):
        chain = ["a0: &a0 x\n", *(f"a{i + 1}: &a{i + 1} {value % i}\n" for i in range(MAX_DEPTH - 1))]
        assert problem_at("".join(chain[:-1])) is None
        assert problem_at("".join(chain))[0] == "E108"


def test_number_of_values_and_characters_is_bounded_with_aliases_expanded(monkeypatch):
    monkeypatch.setattr("esper_run.config.yaml.MAX_NODES", 200)
    assert problem_at("a: [" + "x," * 197 + "]") is None
    assert problem_at("a: [" + "x," * 198 + "]")[0] == "E108"
    assert problem_at("a: &a [" + "x," * 49 + "]\nb: [" + "*a," * 3 + "]")[0] == "E108"
    assert problem_at("a: &a " + "x" * 20_000 + "\nb: [" + "*a," * 100 + "]")[0] == "E108"
    monkeypatch.setattr("esper_run.config.yaml.MAX_TOKENS", 100)
    assert problem_at("%A\n" * 101)[0] == "E108"


def test_text_of_too_many_bytes_is_refused(monkeypatch):
    assert problem_at(b"#" * (MAX_BYTES + 1)) == ("E102", None, None)
    monkeypatch.setattr("esper_run.config.yaml.MAX_BYTES", 1000)
    assert problem_at(b"a: 1 " + b"#" * 995) is None
    assert problem_at(b"a: 1 " + b"#" * 996) == ("E102", None, None)


NULLS, TRUES, FALSES = ("", "~", "null", "Null", "NULL"), ("true", "True", "TRUE"), ("false", "False", "FALSE")
SCALARS = {
    **dict.fromkeys(NULLS, None),
    **dict.fromkeys(TRUES, True),
    **dict.fromkeys(FALSES, False),
    **{"0": 0, "-0": 0, "+12": 12, "-12": -12, "007": 7, "0o17": 15, "0x1F": 31, "0xff": 255},
    **{"1.": 1.0, ".5": 0.5, "-.5": -0.5, "1e-3": 0.001, "1E3": 1000.0, "+1.5e+2": 150.0, "0e5": 0.0},
    **{".inf": math.inf, "+.INF": math.inf, "-.Inf": -math.inf},
}
TEXTS = [
    *("no", "No", "yes", "on", "off", "y", "n", "tRUE", "nULL", "~~", "=", "<<"),
    *("1_000", "1,000", "1:30", "190:20:30", "0b11", "0O17", "0o8", "0X1F", "0xg", "-0x1F", "+0o7"),
    *("2026-11-21", "2026-11-21T10:15:12Z", "1e", "e3", ".", "-", "+", "..5", "1.2.3", "1e3.5", "0.5f", "٣"),
    *("inf", "nan", ".Nan", "-.nan", "+.nan", "NaN", "Infinity", "1 2", "1\n", "0x", "0o"),
]


def test_scalar_has_the_value_of_yaml_1_2():
    values = {word: parse_scalar(word) for word in [*SCALARS, *TEXTS]}
    assert values == SCALARS | {word: word for word in TEXTS}
    assert [type(values[word]) for word in SCALARS] == [type(value) for value in SCALARS.values()]
    assert all(math.isnan(parse_scalar(word)) for word in (".nan", ".NaN", ".NAN"))


def test_number_of_too_many_characters_or_without_a_representation_is_refused():
    for word in ("9" * 101, "0x" + "f" * 99, "0." + "1" * 99, "1" * 5000, "-" + "1" * 100):
        with pytest.raises(ValueError, match="at most 100"):
            parse_scalar(word)
    assert parse_scalar("9" * MAX_NUMBER) == 10**MAX_NUMBER - 1
    for number in ("9" * 20_000, "0x" + "f" * 5000, "1e999"):
        assert problem_at(f"a: {number}") == ("E112", 1, 4)
