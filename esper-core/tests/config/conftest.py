"""Fixtures of the configuration tests: a small valid file, and the problems of one that is not."""

from collections.abc import Callable

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


@pytest.fixture
def small() -> str:
    """A valid configuration of six lines, to which a test may append."""
    return SMALL


@pytest.fixture
def parse() -> Callable[..., LoadedConfig]:
    """``parse(text, *overrides)``: return the configuration of the text, whose file is called f.yaml."""
    return lambda text, *overrides: parse_config(text.encode(), file="f.yaml", overrides=overrides)


@pytest.fixture
def problems() -> Callable[..., list[Problem]]:
    """``problems(text, *overrides)``: return the problems of a file, at least one."""

    def read(text: str | bytes, *overrides: str) -> list[Problem]:
        data = text.encode() if isinstance(text, str) else text
        with pytest.raises(ConfigError) as caught:
            parse_config(data, file="f.yaml", overrides=overrides)
        return list(caught.value.problems)

    return read


@pytest.fixture
def problem(problems: Callable[..., list[Problem]]) -> Callable[..., Problem]:
    """``problem(text, *overrides)``: return the only problem of a file."""

    def read(text: str, *overrides: str) -> Problem:
        (found,) = problems(text, *overrides)
        return found

    return read
