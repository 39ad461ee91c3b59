"""Mutated files: each one is read to a configuration, or to problems that say something."""

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

ALIASES_AND_TAGS = b"&a |*a|*late|&a [*a]|<<: *late|!!python/object:os.system |!foo |! |!<x> |!!str "
BREAKS = b"\t|\0|\x07|\x7f|\r|\r\n|\n|\n\n| |  |\xff|\xc3|\xed\xa0\x80"
CHARACTERS = "\ufeff|\u2028|\x85|\u202e|é|😀"
SYNTAX = b"[]|{}|[[]]|{{}}|]|}|? |: |:|- |-|,|---\n|...\n|# |%|%YAML 1.1\n|%TAG ! x\n|@|`|>-\n"
QUOTES = rb""""|'|"\|"\ud800"|"\UFFFFFFFF"|"\x"""
NUMBERS = b"1e999|-1|0|.inf|.nan|0x|0o9|1_000|1:30"
WORDS = b"true|no|null|~|twin|policy|arms|settings|use|<<|="
NASTIES = [
    *(word for words in (ALIASES_AND_TAGS, BREAKS, SYNTAX, QUOTES, NUMBERS, WORDS) for word in words.split(b"|")),
    *(character.encode() for character in CHARACTERS.split("|")),
    *(b"[" * 60, b"{" * 60, b"- " * 60, b"9" * 5000, b"x" * 300, b"|\n", b"|9\n"),
]
OVERRIDES = [
    *("", "=", "seed", "seed=", "seed=1", "seed=[1", "episode.steps=many", "a[=1", "slots[0]=1", "name=no", "twin.x=1"),
    *("arms.tall.policy.settings.x=1", "slots.early.blueprints[0]=x", "task=&a [*a]", 'task.settings["a b"]=1'),
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


def outcome(data: bytes, *overrides: str) -> LoadedConfig | ConfigError:
    """The configuration, or the error. Anything else is a fault, and so is a problem that says nothing."""
    try:
        return parse_config(data, file="fuzz.yaml", overrides=overrides)
    except ConfigError as caught:
        error = caught
    assert error.problems
    assert all(says_something(problem) for problem in error.problems), error
    str(error).encode()
    return error


def says_something(problem: Problem) -> bool:
    """Whether a problem has a code, a place, and a message that no terminal would obey."""
    return all((problem.code.startswith("E1"), problem.file, problem.message.strip(), problem.message.isprintable()))


def count_valid(cases: int, seed: int) -> int:
    """Read mutated files, and return how many of them are still valid."""
    dice = random.Random(seed)
    valid = 0
    for _ in range(cases):
        result = outcome(mutated(dice), *([dice.choice(OVERRIDES)] if dice.random() < 0.2 else []))
        if isinstance(result, LoadedConfig):
            valid += 1
            again = parse_config(dump_config(result.config).encode(), file="again.yaml").config
            assert dump_config(again) == dump_config(result.config)  # as text: .nan is not equal to itself
    return valid


def test_mutated_files_are_read_or_refused():
    assert isinstance(outcome(VALID), LoadedConfig)
    valid = count_valid(100, seed=1)
    assert 2 < valid < 98, "mutations that all break, or none, test nothing"


@pytest.mark.slow
def test_10_000_mutated_files_are_read_or_refused_in_time():
    began = time.perf_counter()
    count_valid(10_000, seed=2)
    assert time.perf_counter() - began < 600
