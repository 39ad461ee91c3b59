"""Files made to block the reader or to fill the memory: they are refused soon, with a short message.

The fast suite reads a sample that costs milliseconds. The slow one reads all of them and bounds the seconds: many times
what a machine of 2020 needs, to catch a cost that grows with the square of the size, which would take minutes.
"""

from __future__ import annotations

import time
import tracemalloc

import pytest

from esper_core.config import LoadedConfig, parse_config
from esper_core.config.values import MAX_BYTES
from esper_core.leyline import ConfigError

HEAD = "task: t\nhost: h\nslots: {a: {blueprints: [b]}}\npolicy: p\n"
ALLOWED_S = 15


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
    "more open brackets": (fill("["), "E108"),
    "open braces": (fill("{"), "E108"),
    "open pairs": (fill("[{"), "E108"),
    "keys on one line": (fill("a: "), "E104"),
    "lists in lists": (fill("- "), "E108"),
    "empty lists": (fill("-\n"), "E108"),
    "complex keys": (fill("? "), "E108"),
    "one key again and again": (fill("a: 1\n"), "E108"),
    "many entries": (fill("a,", "a: [", "]"), "E108"),
    "nested entries": (fill(NESTED + ",", "a: [", "]"), "E108"),
    "nested lines": (fill(NESTED + ",\n", "a: [", "]"), "E108"),
    "wide and nested": (fill("[" * 40 + "a" * 900 + "]" * 40 + ",", "a: [", "]"), "E108"),
    "many aliases": (fill("*a,", "a: &a x\nb: [", "]"), "E108"),
    "many anchors": (fill("&a a,", "a: [", "]"), "E104"),
    "anchors on one value": (fill("&a ", "a: "), "E104"),
    "directives": (fill("%A\n"), "E108"),
    "document ends": (fill("...\n", "a: 1\n"), "E108"),
    "version": (fill("1", "%YAML 1.", "\n--- a"), "E104"),
    "a long key": (fill("x", "", ": 1"), "E104"),
    "line separators": (fill("\u2028"), "E103"),
    "bytes": (b"\xff" * MAX_BYTES, "E103"),
    "an open quote": (fill("x\n", 'a: "'), "E104"),
    "spaces": (fill(" "), "E109"),
    "line ends": (fill("\n"), "E109"),
    "carriage returns": (fill("\r"), "E109"),
    "comments": (fill("#\n"), "E109"),
    "a hexadecimal number": (fill("f", HEAD + "seed: 0x"), "E112"),
    "a float": (fill("9", HEAD + "margin: ."), "E112"),
    "more unknown keys": ((HEAD + "".join(f"k{i}: 1\n" for i in range(9_000))).encode(), "E110"),
    "long unknown keys": ((HEAD + "".join(f"? {i}{'k' * 900}\n: 1\n" for i in range(1_000))).encode(), "E110"),
    "keys that are no text": (fill("1: 1\n")[:40_000], "E106"),
    "wrong entries": ((HEAD + f"plugins: {{disable: [{'1, ' * 19_000}]}}").encode(), "E111"),
    "more wrong slots": (("slots:\n" + "".join(f"  s{i}: {{x: 1}}\n" for i in range(4_000))).encode(), "E113"),
}
REFUSED = SAMPLE | OTHERS
SETTING = HEAD + "reward:\n  use: r\n  settings:\n    x:"
LARGE = {
    "one long line": fill("x", HEAD + "# "),
    "a long text": fill("x", f"{SETTING} "),
    "a text of short words": fill("x ", f"{SETTING} "),
    "a text of short lines": fill("x\n     ", f"{SETTING}\n     "),
    "a quoted text of short lines": fill("x\n", HEAD + 'reward: {use: r, settings: {x: "', '"}}'),
    "a quoted text of empty lines": fill("\n", HEAD + 'reward: {use: r, settings: {x: "', '"}}'),
    "escapes": fill("\\n", HEAD + 'reward: {use: r, settings: {x: "', '"}}'),
    "a block of short lines": fill("     x\n", f"{SETTING} |\n"),
    "a block of empty lines": fill("\n", f"{SETTING} |\n     x\n"),
    "empty lines at the end": fill("\n", HEAD),
    "comments at the end": fill("#\n", HEAD),
}


@pytest.mark.parametrize("name", [*SAMPLE, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_bomb_is_refused_with_a_short_message(name):
    data, code = REFUSED[name]
    error = outcome(data)
    assert isinstance(error, ConfigError)
    assert code in {problem.code for problem in error.problems}, error.problems[0]
    assert len(str(error)) < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REFUSED, *LARGE])
def test_reading_time_of_a_large_file_is_bounded(name):
    data = LARGE[name] if name in LARGE else REFUSED[name][0]
    began = time.perf_counter()
    result = outcome(data)
    assert time.perf_counter() - began < ALLOWED_S
    assert isinstance(result, LoadedConfig) == (name in LARGE)


@pytest.mark.parametrize(
    "override", ["x=" + "[" * 10_000, "seed=" + "9" * 50_000, "a" * 100_000, ".".join("a" * 20_000)]
)
def test_override_that_is_a_bomb_is_refused_with_a_short_message(override):
    error = outcome(HEAD.encode(), override)
    assert isinstance(error, ConfigError)
    assert len(str(error)) < 2000


@pytest.mark.slow
def test_aliases_need_no_memory_beyond_the_file():
    data = f"a: &a {'x' * 1000}\nb: [{'*a, ' * 100_000}]".encode()
    tracemalloc.start()
    outcome(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20
