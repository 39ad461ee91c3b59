"""Files made to block the reader or to fill the memory: they are refused soon, with a short message.

The fast suite reads a sample that costs milliseconds. The slow one reads the others, too, which would take minutes
if the cost grew with the square of the size.
"""

from __future__ import annotations

import pytest

from esper_core.config import LoadedConfig, parse_config
from esper_core.config.values import MAX_BYTES
from esper_core.leyline import ConfigError

HEAD = "task: t\nhost: h\nslots: {a: {blueprints: [b]}}\npolicy: p\n"


def fill(unit: str, before: str = "", after: str = "") -> bytes:
    """``unit`` as often as a file may hold it."""
    room = MAX_BYTES - len((before + after).encode())
    return (before + unit * (room // len(unit.encode())) + after).encode()


def outcome(data: bytes, *overrides: str) -> LoadedConfig | ConfigError:
    """The configuration that was read, or the error."""
    try:
        return parse_config(data, file="bomb.yaml", overrides=overrides)
    except ConfigError as error:
        return error


LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
FEW_LAUGHS = "".join(f"a{i}: &a{i} {{{', '.join(f'{k}: *a{i - 1}' for k in 'xyz')}}}\n" for i in range(1, 30))
NESTED = "[" * 47 + "a" + "]" * 47

SAMPLE = {
    "billion laughs": (("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + LAUGHS).encode(), "E108"),
    "billion laughs of keys": (("a0: &a0 x\n" + FEW_LAUGHS).encode(), "E108"),
    "one long text, often": (f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 1_000}]".encode(), "E108"),
    "circle": (b"&a [*a]", "E108"),
    "circle of keys": (b"&a {*a : *a}", "E106"),
    "open brackets": (b"[" * 10_000, "E108"),
    "keys below keys": ("".join(" " * depth + "a:\n" for depth in range(1400)).encode(), "E108"),
    "many tags": (fill("!a a,", "a: [", "]"), "E107"),
    "documents": (fill("---\n", "a: 1\n"), "E104"),
    "NULs": (fill("\0"), "E103"),
    "a wrong byte at the end": (b"#" * (MAX_BYTES - 1) + b"\xe9", "E103"),
    "too large": (b"#" * (MAX_BYTES + 1), "E102"),
    "an integer": (f"{HEAD}seed: {'9' * 50_000}".encode(), "E112"),
    "unknown keys": ((HEAD + "".join(f"k{i}: 1\n" for i in range(500))).encode(), "E110"),
    "wrong slots": (("slots:\n" + "".join(f"  s{i}: {{x: 1}}\n" for i in range(200))).encode(), "E113"),
}
OTHERS = {
    "open pairs": (fill("[{"), "E108"),
    "keys on one line": (fill("a: "), "E104"),
    "complex keys": (fill("? "), "E108"),
    "one key again and again": (fill("a: 1\n"), "E108"),
    "nested lines": (fill(NESTED + ",\n", "a: [", "]"), "E108"),
    "many aliases": (fill("*a,", "a: &a x\nb: [", "]"), "E108"),
    "many anchors": (fill("&a a,", "a: [", "]"), "E104"),
    "directives": (fill("%A\n"), "E108"),
    "a long key": (fill("x", "", ": 1"), "E104"),
    "an open quote": (fill("x\n", 'a: "'), "E104"),
    "comments": (fill("#\n"), "E109"),
    "a float": (fill("9", HEAD + "margin: ."), "E112"),
    "more unknown keys": ((HEAD + "".join(f"k{i}: 1\n" for i in range(9_000))).encode(), "E110"),
    "more wrong slots": (("slots:\n" + "".join(f"  s{i}: {{x: 1}}\n" for i in range(4_000))).encode(), "E113"),
}
REFUSED = SAMPLE | OTHERS


@pytest.mark.parametrize("name", [*SAMPLE, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_bomb_is_refused_with_a_short_message(name):
    data, code = REFUSED[name]
    error = outcome(data)
    assert isinstance(error, ConfigError)
    assert code in {problem.code for problem in error.problems}, error.problems[0]
    assert len(str(error)) < 100_000


@pytest.mark.parametrize(
    "override", ["x=" + "[" * 10_000, "seed=" + "9" * 50_000, "a" * 100_000, ".".join("a" * 20_000)]
)
def test_override_that_is_a_bomb_is_refused_with_a_short_message(override):
    error = outcome(HEAD.encode(), override)
    assert isinstance(error, ConfigError)
    assert len(str(error)) < 2000
