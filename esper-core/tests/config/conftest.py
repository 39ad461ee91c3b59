"""Fixtures of the configuration tests: a small valid file, and the problems of one that is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from esper_core.config import parse_config
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
def problems() -> Callable[..., list[Problem]]:
    """``problems(text, *overrides)``: what is wrong with a file, which the tests call f.yaml; at least one thing."""

    def read(text: str | bytes, *overrides: str) -> list[Problem]:
        data = text.encode() if isinstance(text, str) else text
        with pytest.raises(ConfigError) as caught:
            parse_config(data, file="f.yaml", overrides=overrides)
        return list(caught.value.problems)

    return read
