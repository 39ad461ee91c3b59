"""Descriptions of rewards and terms as Markdown, taken from their docstrings, for the documentation."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Final

from esper_rewards.plugin import REWARDS

TERMS: Final = {
    "improvement": "terms:improvement",
    "nats": "terms:nats",
    "contribution": "terms:contribution",
    "kept contribution": "terms:kept_contribution",
    "kept share": "terms:kept_share",
    "rent": "terms:rent",
    "fossil fee": "terms:fossil_fee",
    "churn": "terms:churn",
    "haste": "terms:haste",
    "shaping": "terms:Shaping",
    "terminal": "terminal:terminal",
}
"""Module and name of each term by its title."""

SAID: Final = re.compile(
    r"\b(?P<what>Formula|Range|Direction|Invites):\s(?P<text>.*?)(?=\s(?:Range|Direction|Invites):\s|\n\n|\Z)",
    re.DOTALL,
)


def terms() -> str:
    """Return all terms as Markdown."""
    return "\n".join(entry(name, place) for name, place in TERMS.items())


def rewards() -> str:
    """Return all named rewards as Markdown, the default first."""
    order = sorted(REWARDS, key=lambda name: (name != "team", name))
    return "\n".join(entry(f"`{name}`", REWARDS[name][0]) for name in order)


def entry(title: str, place: str) -> str:
    """Return the entry of a reward or term: summary, formula, range, direction and what it invites.

    place: "module:name" in this package.

    >>> print(entry("fossil_fee", "terms:fossil_fee").splitlines()[4])
    - **Formula:** −0.10 · price · fossils.
    """
    module, _, name = place.partition(":")
    text = inspect.getdoc(getattr(import_module(f"esper_rewards.{module}"), name)) or ""
    told = [f"- **{one['what']}:** {_plain(one['text'])}\n" for one in SAID.finditer(text)]
    summary = _plain(text.partition("\n\n")[0])
    return f"### {title}\n\n{summary}\n\n{''.join(told)}"


def _plain(text: str) -> str:
    """Return the text as one line of Markdown."""
    return " ".join(text.split()).replace("``", "`")
