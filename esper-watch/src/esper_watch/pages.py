"""Render the HTML pages and drawings of this package from jinja2 templates, with autoescape."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from esper_watch import figures, formats, views

_UNPRINTABLE: Final = re.compile(
    "[\ud800-\udfff\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
"""Surrogates, control characters, and characters that change the direction of the text that follows."""


def render(template: str, **values: Any) -> str:
    """Render a template of this package. All values are escaped; only the templates themselves are trusted."""
    return _environment().get_template(template).render(**values)


def printable(value: Any) -> Any:
    """Prepare a value for output: no unprintable characters in texts, and one decimal in numbers of a drawing.

    >>> printable(1.26), printable(3.0), printable(-0.01), printable("a\\x1bb")
    ('1.3', '3', '0', 'a\ufffdb')
    """
    if hasattr(value, "__html__"):  # the output of a macro
        return value
    if isinstance(value, float):
        return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")
    return _UNPRINTABLE.sub("\ufffd", str(value))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("esper_watch"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printable,
    )
    functions = {name: value for name, value in vars(formats).items() if callable(value)}
    environment.globals.update(functions, figures=figures, views=views)
    return environment
