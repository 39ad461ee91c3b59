"""How did a run end? One status, and the exit code that goes with it, for whatever ended it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from esper_core.leyline.errors import EsperError, GovernorStop, Interrupted

if TYPE_CHECKING:
    from esper_core.leyline.protocols import RunStatus

READER_GONE: Final = 141
"""What a shell expects of a command that wrote to a pipe which nobody reads: 128 + SIGPIPE."""


def status_of(error: BaseException) -> tuple[RunStatus, int]:
    """The status of a run that ``error`` ended, and the exit code."""
    if isinstance(error, Interrupted):
        return "interrupted", error.status
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, GovernorStop):
        return "stopped", error.exit_code
    if isinstance(error, BrokenPipeError):
        return "failed", READER_GONE
    return "failed", error.exit_code if isinstance(error, EsperError) else 1


def reason(error: BaseException) -> str:
    """What the manifest says of it."""
    return str(error) if isinstance(error, EsperError) else f"{type(error).__name__}: {error}"
