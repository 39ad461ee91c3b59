"""Files made to block the reader or to fill the memory: they are refused soon, with a short message.

The seconds allowed are many times what a machine of 2020 needs, so that a loaded one does not fail. They catch a cost
that grows with the square of the size, which would take minutes.
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
SETTINGS = "task:\n  use: t\n  settings:\n"


def fill(unit: str, before: str = "", after: str = "") -> bytes:
    """``unit`` as often as a file may hold it."""
    room = MAX_BYTES - len((before + after).encode())
    return (before + unit * (room // len(unit.encode())) + after).encode()


def outcome(data: bytes) -> LoadedConfig | ConfigError:
    """What reading comes to, within the time that is allowed."""
    began = time.perf_counter()
    try:
        result: LoadedConfig | ConfigError = parse_config(data, file="bomb.yaml")
    except ConfigError as error:
        result = error
    assert time.perf_counter() - began < ALLOWED_S
    return result


LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
FEW_LAUGHS = "".join(f"a{i}: &a{i} {{{', '.join(f'{k}: *a{i - 1}' for k in 'xyz')}}}\n" for i in range(1, 30))
NESTED = "[" * 47 + "a" + "]" * 47

REFUSED = {
    "billion laughs": (("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + LAUGHS).encode(), "E108"),
    "billion laughs of keys": (("a0: &a0 x\n" + FEW_LAUGHS).encode(), "E108"),
    "one long text, often": (f"a: &a {'x' * 500_000}\nb: [{'*a, ' * 10_000}]".encode(), "E108"),
    "circle": (b"&a [*a]", "E108"),
    "circle of keys": (b"&a {*a : *a}", "E106"),
    "open brackets": (fill("["), "E108"),
    "open braces": (fill("{"), "E108"),
    "open pairs": (fill("[{"), "E108"),
    "keys on one line": (fill("a: "), "E104"),
    "keys below keys": ("".join(" " * depth + "a:\n" for depth in range(1400)).encode(), "E108"),
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
    "many tags": (fill("!a a,", "a: [", "]"), "E107"),
    "anchors on one value": (fill("&a ", "a: "), "E104"),
    "directives": (fill("%A\n"), "E108"),
    "document ends": (fill("...\n", "a: 1\n"), "E108"),
    "documents": (fill("---\n", "a: 1\n"), "E104"),
    "version": (fill("1", "%YAML 1.", "\n--- a"), "E104"),
    "a long key": (fill("x", "", ": 1"), "E104"),
    "NULs": (fill("\0"), "E103"),
    "line separators": (fill("\u2028"), "E103"),
    "bytes": (b"\xff" * MAX_BYTES, "E103"),
    "a wrong byte at the end": (b"#" * (MAX_BYTES - 1) + b"\xe9", "E103"),
    "an open quote": (fill("x\n", 'a: "'), "E104"),
    "too large": (b"#" * (MAX_BYTES + 1), "E102"),
    "spaces": (fill(" "), "E109"),
    "line ends": (fill("\n"), "E109"),
    "carriage returns": (fill("\r"), "E109"),
    "comments": (fill("#\n"), "E109"),
    "an integer": (f"{HEAD}seed: {'9' * 200_000}".encode(), "E112"),
    "a hexadecimal number": (fill("f", HEAD + "seed: 0x"), "E112"),
    "a float": (fill("9", HEAD + "margin: ."), "E112"),
    "unknown keys": ((HEAD + "".join(f"k{i}: 1\n" for i in range(9_000))).encode(), "E110"),
    "long unknown keys": ((HEAD + "".join(f"? {i}{'k' * 900}\n: 1\n" for i in range(1_000))).encode(), "E110"),
    "keys that are no text": (fill("1: 1\n")[:40_000], "E106"),
    "wrong entries": ((HEAD + f"plugins: {{disable: [{'1, ' * 19_000}]}}").encode(), "E111"),
    "wrong slots": (("slots:\n" + "".join(f"  s{i}: {{x: 1}}\n" for i in range(4_000))).encode(), "E113"),
}
READ = {
    "one long line": fill("x", HEAD + "# "),
    "a long text": fill("x", HEAD + SETTINGS.replace("task:\n", "reward:\n") + "    x: "),
    "a text of short words": fill("x ", HEAD + "reward: {use: r, settings: {x: ", "x}}"),
    "a text of short lines": fill("x\n     ", HEAD + "reward:\n  use: r\n  settings:\n    x:\n     "),
    "a quoted text of short lines": fill("x\n", HEAD + 'reward: {use: r, settings: {x: "', '"}}'),
    "a quoted text of empty lines": fill("\n", HEAD + 'reward: {use: r, settings: {x: "', '"}}'),
    "escapes": fill("\\n", HEAD + 'reward: {use: r, settings: {x: "', '"}}'),
    "a block of short lines": fill("     x\n", HEAD + "reward:\n  use: r\n  settings:\n    x: |\n"),
    "a block of empty lines": fill("\n", HEAD + "reward:\n  use: r\n  settings:\n    x: |\n     x\n"),
    "empty lines at the end": fill("\n", HEAD),
    "comments at the end": fill("#\n", HEAD),
}


LIKE_ANOTHER = {
    *("nested lines", "wide and nested", "many anchors", "many tags", "line ends", "carriage returns", "comments"),
    *("open pairs", "open braces", "empty lists", "document ends", "long unknown keys", "wrong slots"),
}
"""Bombs that another one stands for, among the fast tests: they are refused for the same reason at the same place."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_ANOTHER else []) for name in REFUSED]
)
def test_a_bomb_is_refused_quickly(name):
    data, code = REFUSED[name]
    result = outcome(data)
    assert isinstance(result, ConfigError)
    assert code in {problem.code for problem in result.problems}, result.problems[0]
    assert len(str(result)) < 100_000, "a message is to be read"


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_a_large_valid_file_is_read_quickly(name):
    assert isinstance(outcome(READ[name]), LoadedConfig)


@pytest.mark.parametrize(
    "override", ["x=" + "[" * 100_000, "seed=" + "9" * 200_000, "a" * 500_000, ".".join("a" * 500_000)]
)
def test_an_override_that_is_a_bomb_is_refused_quickly(override):
    began = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        parse_config(HEAD.encode(), file="f.yaml", overrides=[override])
    assert time.perf_counter() - began < ALLOWED_S
    assert len(str(caught.value)) < 2000


def test_aliases_need_no_memory_beyond_the_file():
    data = f"a: &a {'x' * 1000}\nb: [{'*a, ' * 100_000}]".encode()
    tracemalloc.start()
    outcome(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20
