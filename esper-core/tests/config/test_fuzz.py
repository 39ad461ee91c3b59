"""Mutated files: each one is read soon, to a configuration or to problems that say something."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from esper_core.config import LoadedConfig, dump_config, parse_config
from esper_core.leyline import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

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
margin: .5
"""

NASTIES = [
    *(
        b"&a ",
        b"*a",
        b"*late",
        b"&a [*a]",
        b"<<: *late",
        b"!!python/object:os.system ",
        b"!foo ",
        b"! ",
        b"!<x> ",
        b"!!str ",
    ),
    *(b"\t", b"\0", b"\x07", b"\x7f", b"\r", b"\r\n", b"\n", b"\n\n", b" ", b"  ", b"\xff", b"\xc3", b"\xed\xa0\x80"),
    *("\ufeff".encode(), "\u2028".encode(), "\x85".encode(), "\u202e".encode(), "é".encode(), "😀".encode()),
    *(
        b"[" * 60,
        b"]",
        b"{" * 60,
        b"}",
        b"- " * 60,
        b"? ",
        b": ",
        b":",
        b"- ",
        b"-",
        b",",
        b"---\n",
        b"...\n",
        b"# ",
        b"%",
    ),
    *(
        b"%YAML 1.1\n",
        b"%TAG ! x\n",
        b'"',
        b"'",
        b'"\\',
        b'"\\ud800"',
        b'"\\UFFFFFFFF"',
        b'"\\x',
        b"|\n",
        b">-\n",
        b"|9\n",
    ),
    *(
        b"9" * 5000,
        b"1e999",
        b"-1",
        b"0",
        b".inf",
        b".nan",
        b"0x",
        b"0o9",
        b"1_000",
        b"1:30",
        b"true",
        b"no",
        b"null",
        b"~",
    ),
    *(
        b"x" * 300,
        b"twin",
        b"policy",
        b"arms",
        b"settings",
        b"use",
        b"<<",
        b"=",
        b"@",
        b"`",
        b"[]",
        b"{}",
        b"[[]]",
        b"{{}}",
    ),
]
OVERRIDES = [
    "",
    "=",
    "seed",
    "seed=",
    "seed=1",
    "seed=[1",
    "episode.steps=many",
    "arms.tall.policy.settings.x=1",
    "a[=1",
]
OVERRIDES += [
    "slots.early.blueprints[0]=x",
    "slots[0]=1",
    "task=&a [*a]",
    "name=no",
    'task.settings["a b"]=1',
    "twin.x=1",
]


def flip(data: bytearray, dice: random.Random) -> None:
    """Change one byte."""
    data[dice.randrange(len(data))] = dice.randrange(256)


def cut(data: bytearray, dice: random.Random) -> None:
    """Take a few bytes away."""
    start = dice.randrange(len(data))
    del data[start : start + dice.choice((1, 2, 5, 20, 100))]


def insert(data: bytearray, dice: random.Random) -> None:
    """Put something nasty somewhere."""
    start = dice.randrange(len(data) + 1)
    data[start:start] = dice.choice(NASTIES)


def repeat_line(data: bytearray, dice: random.Random) -> None:
    """Copy a line to another place, or move it."""
    lines = bytes(data).split(b"\n")
    line = dice.choice(lines)
    if dice.random() < 0.3:
        lines.remove(line)
    lines.insert(dice.randrange(len(lines) + 1), line)
    data[:] = b"\n".join(lines)


def swap(data: bytearray, dice: random.Random) -> None:
    """Exchange two words."""
    words = bytes(data).split(b" ")
    one, other = dice.randrange(len(words)), dice.randrange(len(words))
    words[one], words[other] = words[other], words[one]
    data[:] = b" ".join(words)


def replace(data: bytearray, dice: random.Random) -> None:
    """Write something nasty in the place of a word."""
    words = bytes(data).split(b" ")
    words[dice.randrange(len(words))] = dice.choice(NASTIES)
    data[:] = b" ".join(words)


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [flip, cut, insert, repeat_line, swap, replace]


def mutated(dice: random.Random) -> bytes:
    """The valid file with one to five changes."""
    data = bytearray(VALID)
    for _ in range(dice.choice((1, 1, 2, 3, 5))):
        dice.choice(MUTATIONS)(data, dice)
        data = data or bytearray(b" ")
    return bytes(data)


def outcome(data: bytes, overrides: list[str]) -> LoadedConfig | ConfigError:
    """What reading comes to. Anything but these two is a fault, and so is a problem that says nothing."""
    began = time.perf_counter()
    try:
        result: LoadedConfig | ConfigError = parse_config(data, file="fuzz.yaml", overrides=overrides)
    except ConfigError as error:
        result = error
    assert time.perf_counter() - began < 5, "a small file takes milliseconds; a loaded machine, not seconds"
    if isinstance(result, ConfigError):
        assert result.problems
        assert all(says_something(problem) for problem in result.problems), result
        str(result).encode()
    return result


def says_something(problem: Problem) -> bool:
    """Whether a problem has a code, a place, and a message that no terminal would obey."""
    return all((problem.code.startswith("E1"), problem.file, problem.message.strip(), problem.message.isprintable()))


def fuzz(cases: int, seed: int) -> int:
    """How many of the mutated files were still right."""
    dice = random.Random(seed)
    right = 0
    for _ in range(cases):
        data = mutated(dice)
        overrides = [dice.choice(OVERRIDES)] if dice.random() < 0.2 else []
        result = outcome(data, overrides)
        if isinstance(result, LoadedConfig):
            right += 1
            again = parse_config(dump_config(result.config).encode(), file="again.yaml").config
            assert dump_config(again) == dump_config(result.config)  # as text: .nan is not equal to itself
    return right


def test_the_file_that_is_mutated_is_right():
    assert isinstance(outcome(VALID, []), LoadedConfig)


def test_500_mutated_files_end_in_a_configuration_or_in_problems():
    right = fuzz(500, seed=1)
    assert 10 < right < 490, "mutations that all break, or none, test nothing"


@pytest.mark.slow
def test_10_000_mutated_files_end_in_a_configuration_or_in_problems():
    fuzz(10_000, seed=2)
