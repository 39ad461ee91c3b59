"""Hostile and mutated files, which could block the reader or fill the memory, are read, or refused quickly and tersely.

The fast suite reads a sample of the bombs that costs milliseconds. The slow one reads the others, too, which would take
minutes if the cost grew with the square of the size.
"""

import random

import pytest

from esper_core.leyline import ConfigError, Problem
from esper_run.config import LoadedConfig, dump_config, parse_config
from esper_run.config.values import MAX_BYTES

HEAD = "task: t\nhost: h\nslots: {a: {blueprints: [b]}}\npolicy: p\n"


def outcome(data: bytes, *overrides: str) -> LoadedConfig | ConfigError:
    """Return the configuration or the error; fail for another exception, or a problem without a message."""
    try:
        return parse_config(data, file="hostile.yaml", overrides=overrides)
    except ConfigError as caught:
        error = caught
    assert error.problems
    assert all(says_something(problem) for problem in error.problems), error
    str(error).encode()
    return error


def says_something(problem: Problem) -> bool:
    """Return whether a problem has a code, a place, and a printable message."""
    located = problem.file or problem.code == "E100"
    return all((problem.code.startswith("E1"), located, problem.message.strip(), problem.message.isprintable()))


def fill(unit: str, before: str = "", after: str = "") -> bytes:
    """Return ``unit`` repeated up to the size limit of a file."""
    room = MAX_BYTES - len((before + after).encode())
    return (before + unit * (room // len(unit.encode())) + after).encode()


LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
FEW_LAUGHS = "".join(f"a{i}: &a{i} {{{', '.join(f'{k}: *a{i - 1}' for k in 'xyz')}}}\n" for i in range(1, 30))
NESTED = "[" * 47 + "a" + "]" * 47

SAMPLE = {
    "billion laughs": (("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + LAUGHS).encode(), "E108"),
    "billion laughs of keys": (("a0: &a0 x\n" + FEW_LAUGHS).encode(), "E108"),
    "one long text, often": (f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 1_000}]".encode(), "E108"),
    "circle of keys": (b"&a {*a : *a}", "E106"),
    "open brackets": (b"[" * 10_000, "E108"),
    "keys below keys": ("".join(" " * depth + "a:\n" for depth in range(1400)).encode(), "E108"),
    "many tags": (fill("!a a,", "a: [", "]"), "E107"),
    "documents": (fill("---\n", "a: 1\n"), "E104"),
    "NULs": (fill("\0"), "E103"),
    "a wrong byte at the end": (b"#" * (MAX_BYTES - 1) + b"\xe9", "E103"),
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
    "a float": (fill("9", HEAD + "grace: ."), "E112"),
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


VALID = b"""\
# A configuration with a bit of everything.
name: fuzz-1
task: {use: tasks/mnist1d, settings: {noise: 1e-3, tag: 'it''s', wide: "\\u00e9\\n"}}
host: pointwise-mlp
slots:
  early:
    blueprints: [conv_light, "lora*"]
  late: &late
    at: blocks.2
    kind: sequence
    blueprints:
      - conv_light
      - norm
    stack: 2
  last: *late
arms:
  tall: {policy: heuristic}
  planned:
    policy:
      use: schedule
      settings:
        plan:
          - {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 4}
          - {step: 5, op: advance, slot: early}
        note: |
          several
          lines
twin: true
seed: 0x1F
environments: 8
episode: {steps: 40, batches: 32}
optimizer:
  host: {kind: adam, learning_rate: 3e-3, clip_norm: null}
device: cpu
grace: .5
"""

NASTIES = [
    *b"&a |*a|*late|&a [*a]|<<: *late|!!python/object:os.system |! |!<x> |!!str ".split(b"|"),
    *b"\t|\0|\x7f|\r|\n\n| |  |\xff|\xc3|\xed\xa0\x80|\xe2\x80\xa8|\xf0\x9f\x98\x80".split(b"|"),
    *b'[]|{{}}|]|}|? |: |:|- |,|---\n|# |%YAML 1.1\n|%TAG ! x\n|@|`|>-\n|\'|"|"\\ud800"|"\\x'.split(b"|"),
    *b"1e999|-1|.inf|.nan|0x|1_000|true|no|null|~|twin|policy|arms|settings|use|<<|=".split(b"|"),
    *(b"[" * 60, b"{" * 60, b"- " * 60, b"9" * 5000, b"x" * 300, b"|\n", b"|9\n"),
]
OVERRIDES = [
    *("", "=", "seed", "seed=", "seed=1", "seed=[1", "episode.steps=many", "a[=1", "slots[0]=1", "name=no", "twin.x=1"),
    *("arms.tall.policy.settings.x=1", "slots.early.blueprints[0]=x", "task=&a [*a]", 'task.settings["a b"]=1'),
]


def mutated(dice: random.Random) -> bytes:
    """Return the valid file with one to five replacements by random bytes, hostile bytes, or a part of the file."""
    data = bytearray(VALID)
    for _ in range(dice.choice((1, 1, 2, 3, 5))):
        start, elsewhere = dice.randrange(len(data) + 1), dice.randrange(len(data) + 1)
        new = dice.choice((b"", bytes([dice.randrange(256)]), dice.choice(NASTIES), data[elsewhere : elsewhere + 30]))
        data[start : start + dice.choice((0, 0, 1, 5, 20))] = new
    return bytes(data)


def test_mutated_files_are_read_or_refused():
    assert isinstance(outcome(VALID), LoadedConfig)
    dice, valid = random.Random(1), 0
    for _ in range(100):
        result = outcome(mutated(dice), *([dice.choice(OVERRIDES)] if dice.random() < 0.2 else []))
        if isinstance(result, LoadedConfig):
            valid += 1
            again = parse_config(dump_config(result.config).encode(), file="again.yaml").config
            assert dump_config(again) == dump_config(result.config)  # as text: .nan is not equal to itself
    assert 2 < valid < 98, "mutations that all break, or none, test nothing"
