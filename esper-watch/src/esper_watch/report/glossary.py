"""What do the words of a page mean? A line for each arm that there is, and the others behind a click."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from esper_watch.report.markup import Element, element

if TYPE_CHECKING:
    from collections.abc import Iterable

TWIN: Final = "twin"
"""What the arm is called in which nothing may grow."""

CAPACITY: Final = "capacity"
"""What the arm begins with that has from the start what another one grew."""

WORDS: Final = (
    ("arm", "One way to train; each is tried on the same networks, so that arms can be compared pair by pair."),
    (
        "network",
        "One training of the host from scratch. Network 3 of each arm begins with the same weights and sees the same "
        "data in the same order. Files and options call it an environment, and its number its seed.",
    ),
    ("host", "The network as it is before anything grows in it."),
    ("seed", "A small block that is planted in a host while that is trained: what grows, and is kept or pruned."),
    ("slot", "A place in the host where seeds can be planted."),
    ("blueprint", "What kind of block a seed is."),
    ("policy", "What decides in each step of a growing arm: plant, blend in, keep, prune, or wait."),
    (
        "decision step",
        "Some batches of training, then a measurement, then a decision. Steps are counted from 1 on this page; files, "
        "and messages that the run itself wrote, call the first one step 0.",
    ),
    ("nats", "The unit of the loss: cross-entropy with natural logarithms. A lower loss is better."),
    ("gain", "By how many nats the loss on validation data is lower with a seed than without it."),
    ("price", "The gain that a seed has to show for its parameters before its gate lets it go on."),
    ("gate", "The test between two stages of a seed's life: it asks for evidence that the gain is above the price."),
    ("governor", "What watches the losses, and takes a network back to an earlier step when they run away."),
    ("reward", "What an episode was worth to its policy, as the configuration scores it; one that learns goes by it."),
    ("n", "How many networks, or in a measurement how many examples, a mean was taken of."),
)


def is_control(arm: str) -> bool:
    """Whether nothing grows in it: it is there for the others to be compared with."""
    return arm == TWIN or arm.startswith(CAPACITY)


def kinds_of(arms: Iterable[str]) -> Element:
    """What each arm is, in a line."""
    items = [element("li", element("b", arm), f": {_kind(arm)}") for arm in arms]
    return element("ul", *items, class_="kinds")


def _kind(arm: str) -> str:
    if arm == TWIN:
        return "the same networks on the same data in the same order, in which nothing may grow."
    if arm.startswith(CAPACITY):
        whose = arm.removeprefix(f"{CAPACITY}-of-")
        other = "the growing arm" if whose == arm else whose
        return f"networks that have from their first batch what {other} grew, and are trained as long."
    return "networks that may grow while they are trained; its policy decides what, where and when."


def glossary() -> Element:
    """The words that a stranger does not know."""
    told = [part for word, meaning in WORDS for part in (element("dt", word), element("dd", meaning))]
    return element("details", element("summary", "What the words mean"), element("dl", *told))
