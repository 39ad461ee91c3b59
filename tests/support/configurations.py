"""Shared set-up for tests of the configuration: a small valid file, and the problems of one that is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from esper_core.leyline import ConfigError, EsperError, Problem
from esper_run.config import LoadedConfig, parse_config

SMALL = """\
task: mnist1d
host: pointwise-mlp
slots:
  early:
    blueprints: [conv_light]
policy: schedule
"""
"""A valid configuration of six lines, to which a test may append."""

STRIPES = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: {use: schedule, settings: {plan: [{step: 0, op: germinate, slot: early, blueprint: conv_light}]}}
environments: 1
capacity: false
episode: {steps: 1, batches: 1, batch_size: 20}
"""
"""A run that takes a fraction of a second, if the project's other members are installed."""

GROWING = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: {use: schedule, settings: {plan: [
  {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 2},
  {step: 3, op: advance, slot: early},
  {step: 6, op: fossilise, slot: early}]}}
environments: 2
episode: {steps: 8, batches: 4, batch_size: 20}
capacity: false
growth: {gates: "off"}
"""
"""A run of a second in which each network keeps a seed."""


def parse(text: str, *overrides: str) -> LoadedConfig:
    """Return the configuration of the text, whose file is called f.yaml."""
    return parse_config(text.encode(), file="f.yaml", overrides=overrides)


def rewritten(file: Path, *changes: str) -> Path:
    """Return the file with texts replaced: old, new, old, new, …"""
    for before, after in zip(changes[::2], changes[1::2], strict=True):
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after))
    return file


def problem_of(function: Callable[..., object], *arguments: object) -> Problem:
    """Return the one problem of the error that this call raises."""
    with pytest.raises(EsperError) as caught:
        function(*arguments)
    (problem,) = caught.value.problems
    return problem


def problems_in(text: str, *overrides: str) -> list[Problem]:
    """Return the problems of a file, at least one."""
    with pytest.raises(ConfigError) as caught:
        parse(text, *overrides)
    return list(caught.value.problems)


def problem_in(text: str, *overrides: str) -> Problem:
    """Return the only problem of a file."""
    (problem,) = problems_in(text, *overrides)
    return problem
