"""What can go wrong, and how is it told? One tree of errors, one shape for a problem.

    EsperError                 1   anything of ours; the exit code stands beside each
    ├── ConfigError            2   the file or the command line is wrong: all problems at once
    │   └── SettingError       2   a component refuses one of its settings
    ├── PluginError            3   a package that the run needs is broken, or misbehaves
    ├── GrowthError            1   a graft or a transition that cannot be
    │   ├── GraftError         2   no such slot in this model
    │   └── LifecycleError     1   state, event, and what would be legal
    ├── GovernorStop           4   the run was stopped because it went wrong
    ├── RunFolderError         1   the run directory cannot be written or read
    ├── WorkerLost             1   a process that a run is spread over was killed
    └── Interrupted  129/130/143   SIGHUP, SIGINT or SIGTERM, after the step was finished

A message ends with what was received and how to mend it.

Which known name was probably meant?
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: a code, what, where, and the way out. Lines and columns count from 1."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str | None = None
    hint: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The problem as ``esper check --json`` prints it."""
        return asdict(self)

    def at(self, *, file: str | None, line: int | None, column: int | None) -> Problem:
        """The same problem with its place filled in."""
        return replace(self, file=file, line=line, column=column)

    def where(self) -> str:
        """``file:line:column   path``, as much of it as is known."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return "   ".join(part for part in (place, self.path) if part)

    def __str__(self) -> str:
        lines = [f"{self.code} {self.message}"]
        if where := self.where():
            lines.append(f"  {where}")
        if self.hint:
            lines.extend(f"  {line}" for line in self.hint.splitlines())
        return "\n".join(lines)


class EsperError(Exception):
    """Root of the tree. Carries the problems it reports and the exit code of the command."""

    exit_code: ClassVar[int] = 1

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.problems)


def _rebuilt(kind: type[EsperError], problems: tuple[Problem, ...]) -> EsperError:
    error = kind.__new__(kind)
    EsperError.__init__(error, problems)
    return error


class ConfigError(EsperError):
    """The configuration is wrong. ``problems`` holds every one of them, not the first."""

    exit_code: ClassVar[int] = 2


class SettingError(ConfigError):
    """A component refuses one of its settings. ``path`` is relative to them, for example ``plan[0].slot``."""

    def __init__(self, path: str, message: str, hint: str | None = None) -> None:
        super().__init__(Problem("E120", message, path=path, hint=hint))


class PluginError(EsperError):
    """A plugin that the run uses or requires is broken, or a component of it misbehaved."""

    exit_code: ClassVar[int] = 3


class GrowthError(EsperError):
    """Growth that cannot be."""


class GraftError(GrowthError):
    """A slot that cannot be put where it was asked for."""

    exit_code: ClassVar[int] = 2


class LifecycleError(GrowthError):
    """A transition that the tables do not have. Nothing was changed."""

    def __init__(
        self,
        *,
        what: str,
        state: str,
        event: str,
        legal: Sequence[str],
        name: str | None = None,
        why: str | None = None,
    ) -> None:
        self.what, self.state, self.event, self.legal = what, state, event, tuple(legal)
        subject = f'{what} "{name}"' if name else what
        because = f": {why}" if why else ""
        choice = ", ".join(sorted(self.legal)) or f"nothing: this {what} has come to its end"
        message = f"{event} is not possible for a {subject} that is {state}{because}"
        super().__init__(Problem("E301", message, hint=f"Possible now: {choice}"))


class GovernorStop(EsperError):
    """The run was stopped because an environment went wrong beyond repair."""

    exit_code: ClassVar[int] = 4


class RunFolderError(EsperError):
    """A run directory that cannot be written or read."""

    @classmethod
    def about(cls, path: object, error: OSError) -> RunFolderError:
        """What the system said against writing ``path``, in plain words."""
        hint = "What was written before is intact. Choose another place with --runs-dir."
        return cls(Problem("E410", f"cannot write {path}: {error.strerror or error}", hint=hint))

    @classmethod
    def unreadable(cls, path: object, why: str | OSError) -> RunFolderError:
        """The error for a file of a run that is damaged, may not be read, or is not what its name says."""
        hint = "It was cut off or changed, or is another program's."
        if isinstance(why, OSError):
            hint = "Check its permissions." if isinstance(why, PermissionError) else hint
            why = why.strerror or str(why)
        return cls(Problem("E430", f"cannot read {path}: {why}", hint=hint))


class WorkerLost(EsperError):
    """A process that has some of a run's environments ended before its time."""


class Interrupted(EsperError):
    """A signal asked the run to end; the step in progress was finished first."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(Problem("E401", f"interrupted by signal {signal_number}; the step in progress was finished"))

    @property
    def status(self) -> int:
        """The exit code that a shell expects: 128 + the signal's number."""
        return 128 + self.signal_number


ALIKE: Final = 0.6
"""Share of letters in common (as difflib counts them) from which a name may have been meant."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to ``name``, or None where none is close.

    >>> nearest("polcy", ["policy", "task"])
    'policy'
    """
    candidates = sorted(set(known))
    folded = {candidate.casefold().replace("-", "_"): candidate for candidate in candidates}
    wanted = name.casefold().replace("-", "_")
    if wanted in folded:
        return folded[wanted]
    close = get_close_matches(wanted[:200], list(folded), n=1, cutoff=ALIKE)
    return folded[close[0]] if close else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """The hint that an unknown name deserves: the nearest one, or the list of what there is.

    >>> suggestion("polcy", ["policy", "task"])
    'Did you mean "policy"?'
    """
    known = sorted(set(known))
    if close := nearest(name, known):
        return f'Did you mean "{close}"?'
    if not known:
        return "There is nothing to choose from."
    shown = ", ".join(known[:12])
    return f"Known: {shown}" + (", …" if len(known) > 12 else "")
