"""Errors: the exception hierarchy, the record of a problem, and what messages consist of: suggestions, single lines.

    EsperError                 1   base class; the number is the exit code of the command
    ├── ConfigError            2   the file or the command line is wrong; holds all problems
    │   └── SettingError       2   a component refuses one of its settings
    ├── PluginError            3   a package that the run needs is broken or misbehaves
    ├── GrowthError            1   an impossible graft or transition
    │   ├── GraftError         2   the model cannot have this slot
    │   └── LifecycleError     1   an illegal transition; names the legal ones
    ├── GovernorStop           4   the governor stopped the run
    ├── RunFolderError         1   a run directory cannot be written or read
    ├── WorkerLost             1   a worker process died
    ├── ClusterError           1   a cluster or its nodes cannot be used
    └── Interrupted  129/130/143   SIGHUP, SIGINT or SIGTERM; the step was finished first

Each problem has a code, which docs/reference/errors explains, and says what was received and what to do.
"""

from __future__ import annotations

import copyreg
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: code, message, place and hint. Lines and columns count from 1."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str | None = None
    hint: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the problem as ``esper check --json`` prints it."""
        return asdict(self)

    def where(self) -> str:
        """Return ``file:line:column   path``, as far as known."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return "   ".join(part for part in (place, self.path) if part)

    def __str__(self) -> str:
        lines = (f"{self.code} {self.message}", self.where(), *(self.hint or "").splitlines())
        return "\n  ".join(line for line in lines if line)


class EsperError(Exception):
    """Base class of all errors. Holds the problems to report and the exit code of the command."""

    exit_code: ClassVar[int] = 1

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__, whose parameters differ between the subclasses.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class ConfigError(EsperError):
    """The configuration is wrong. ``problems`` holds all problems, not only the first."""

    exit_code: ClassVar[int] = 2


class SettingError(ConfigError):
    """A component refuses one of its settings. ``path`` is relative to the settings, such as ``plan[0].slot``."""

    def __init__(self, path: str, message: str, hint: str | None = None) -> None:
        super().__init__(Problem("E120", message, path=path, hint=hint))


class PluginError(EsperError):
    """A plugin is broken, or one of its components misbehaved."""

    exit_code: ClassVar[int] = 3


class GrowthError(EsperError):
    """An impossible graft or transition, or a model, data or loss with which nothing can grow."""

    exit_code: ClassVar[int] = 2


class GraftError(GrowthError):
    """A slot cannot be placed at the requested module."""


class LifecycleError(GrowthError):
    """A transition is not in the lifecycle tables. Nothing was changed."""

    def __init__(
        self,
        *,
        kind: str,
        state: str,
        event: str,
        legal: Iterable[str],
        name: str | None = None,
        why: str | None = None,
    ) -> None:
        subject = f'{kind} "{name}"' if name else kind
        because = f": {why}" if why else ""
        message = f"{event} is not possible for a {subject} that is {state}{because}"
        actions = {"germinate", "advance", "fossilise", "prune"}.intersection(legal)
        super().__init__(Problem("E301", message, hint=f"Possible now: {', '.join(sorted({*actions, 'wait'}))}"))


class GovernorStop(EsperError):
    """The governor stopped the run, since an environment could not be restored."""

    exit_code: ClassVar[int] = 4


class RunFolderError(EsperError):
    """A run directory cannot be written or read."""

    @classmethod
    def about(cls, path: object, error: OSError) -> RunFolderError:
        """Build the error for a path that cannot be written."""
        hint = "Earlier files are intact. Choose another folder; of a run with --runs-dir."
        return cls(Problem("E410", f"cannot write {path}: {error.strerror or error}", hint=hint))

    @classmethod
    def unreadable(cls, path: object, why: str | OSError) -> RunFolderError:
        """Build the error for a file of a run that is damaged or cannot be read."""
        hint = "The file is incomplete, was changed, or belongs to another program."
        if isinstance(why, OSError):
            hint = "Check its permissions." if isinstance(why, PermissionError) else hint
            why = why.strerror or str(why)
        return cls(Problem("E430", f"cannot read {path}: {why}", hint=hint))


class WorkerLost(EsperError):
    """A worker process of the run died."""


class ClusterError(EsperError):
    """A cluster, or one of its nodes, cannot be used for a run."""


class Interrupted(EsperError):
    """A signal interrupted the run; the current step was finished first."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(Problem("E401", f"interrupted by signal {signal_number}; the current step was finished"))

    @property
    def status(self) -> int:
        """The exit code by convention: 128 + the signal's number."""
        return 128 + self.signal_number


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that is closest to ``name``, or None if none is similar.

    >>> nearest("polcy", ["policy", "task"])
    'policy'
    """
    folded = {candidate.casefold().replace("-", "_"): candidate for candidate in sorted(set(names))}
    # Cut, since a name in a file can have any length, and difflib takes time that grows with its square.
    close = get_close_matches(name.casefold().replace("-", "_")[:200], list(folded), n=1)
    return folded[close[0]] if close else None


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest known one, or a list of the known names.

    >>> suggestion("polcy", ["policy", "task"])
    'Did you mean "policy"?'
    """
    names = sorted(set(names))
    if close := nearest(name, names):
        return f'Did you mean "{close}"?'
    if not names:
        return "No names are known here."
    shown = ", ".join(names[:12])
    return f"Known: {shown}" + (", …" if len(names) > 12 else "")


MAX_LINE: Final = 300
"""Characters of a text that ``one_line`` keeps."""


def printable(text: str) -> str:
    r"""Escape every character that is not printable, so that a terminal obeys nothing in ``text``.

    >>> print(printable("red\x1b[31m"))
    red\x1b[31m
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def one_line(text: str) -> str:
    """Return ``text`` as one printable line, cut where it is very long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"


def plural(number: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "seed"), plural(1200, "seed")
    ('1 seed', '1,200 seeds')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
