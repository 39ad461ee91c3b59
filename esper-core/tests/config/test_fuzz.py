"""Mutated files: each one is read to a configuration, or to problems that say something."""

from __future__ import annotations

import random

from esper_core.config import LoadedConfig, dump_config, parse_config
from esper_core.leyline import ConfigError, Problem

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
    """The valid file with one to five changes: bytes replaced by others, by something nasty, or by a part of it."""
    data = bytearray(VALID)
    for _ in range(dice.choice((1, 1, 2, 3, 5))):
        start, elsewhere = dice.randrange(len(data) + 1), dice.randrange(len(data) + 1)
        new = dice.choice((b"", bytes([dice.randrange(256)]), dice.choice(NASTIES), data[elsewhere : elsewhere + 30]))
        data[start : start + dice.choice((0, 0, 1, 5, 20))] = new
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
