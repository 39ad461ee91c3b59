"""Shared set-up for tests of the configuration: a small valid file, and the problems of one that is not."""

import pytest

from esper_core.config import LoadedConfig, parse_config
from esper_core.leyline import ConfigError, Problem

SMALL = """\
task: mnist1d
host: pointwise-mlp
slots:
  early:
    blueprints: [conv_light]
policy: schedule
"""
"""A valid configuration of six lines, to which a test may append."""


def parse(text: str, *overrides: str) -> LoadedConfig:
    """Return the configuration of the text, whose file is called f.yaml."""
    return parse_config(text.encode(), file="f.yaml", overrides=overrides)


def problems_in(text: str, *overrides: str) -> list[Problem]:
    """Return the problems of a file, at least one."""
    with pytest.raises(ConfigError) as caught:
        parse(text, *overrides)
    return list(caught.value.problems)


def problem_in(text: str, *overrides: str) -> Problem:
    """Return the only problem of a file."""
    (found,) = problems_in(text, *overrides)
    return found
