"""What does the page of the rewards say of each of them, and of each term? What their own docstrings say, in order."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Final

from esper_rewards.plugin import REWARDS

TERMS: Final = {
    "improvement": "gains:improvement",
    "nats": "gains:nats",
    "contribution": "gains:contribution",
    "kept contribution": "gains:kept_contribution",
    "kept share": "gains:kept_share",
    "rent": "costs:rent",
    "fossil fee": "costs:fossil_fee",
    "churn": "costs:churn",
    "haste": "costs:haste",
    "shaping": "shaping:Shaping",
    "terminal": "endings:terminal",
}
"""By name where a term stands."""

SAID: Final = re.compile(
    r"\b(?P<what>Formula|Range|Direction|Invites):\s(?P<text>.*?)(?=\s(?:Range|Direction|Invites):\s|\n\n|\Z)",
    re.DOTALL,
)


def terms() -> str:
    """Every term, as Markdown."""
    return "\n".join(entry(name, place) for name, place in TERMS.items())


def rewards() -> str:
    """Every named reward, as Markdown; the default one is the first."""
    order = sorted(REWARDS, key=lambda name: (name != "team", name))
    return "\n".join(entry(f"`{name}`", REWARDS[name][0]) for name in order)


def entry(title: str, place: str) -> str:
    """One of them: what it is, its formula, its range, its direction, and what it invites.

    place: "module:name" in this package.

    >>> print(entry("fossil_fee", "costs:fossil_fee").splitlines()[4])
    - **Formula:** −0.10 · price · fossils.
    """
    module, _, name = place.partition(":")
    text = inspect.getdoc(getattr(import_module(f"esper_rewards.{module}"), name)) or ""
    told = [f"- **{one['what']}:** {_plain(one['text'])}\n" for one in SAID.finditer(text)]
    summary = _plain(text.partition("\n\n")[0])
    return f"### {title}\n\n{summary}\n\n{''.join(told)}"


def _plain(text: str) -> str:
    """As one line of Markdown."""
    return " ".join(text.split()).replace("``", "`")
