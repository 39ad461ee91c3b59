"""How is the command line called without a shell? In this process, as the shell would call it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Capture(Protocol):
    """What is asked of pytest's ``capsys``."""

    def readouterr(self) -> tuple[str, str]:
        """What was printed since this was asked last, on stdout and on stderr."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command ended with, and what it printed."""

    status: int
    out: str
    err: str


def answering(capture: Capture) -> Callable[..., Answer]:
    """``esper("plugins", "list")``: runs the installed command ``esper`` with these arguments."""
    (command,) = entry_points(group="console_scripts", name="esper")
    main = command.load()

    def esper(*arguments: str) -> Answer:
        capture.readouterr()
        status: object = 0
        try:
            main(list(arguments))
        except SystemExit as end:
            status = end.code
        out, err = capture.readouterr()
        return Answer(status if isinstance(status, int) else 0 if status is None else 1, out, err)

    return esper
