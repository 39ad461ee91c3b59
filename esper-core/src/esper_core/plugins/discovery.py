"""Discovery: find declared plugins and decide from metadata alone which of them may be imported.

``discover`` reads the entry points of installed packages, ``read_local`` the one-file plugins of a configuration, and
``admit`` applies the user's choice, safe mode, ids and versions. No plugin code runs in any of them; only
``import_local`` runs a one-file plugin, from the bytes that were read and hashed.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.util import decode_source, find_spec, module_from_spec, spec_from_file_location
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from esper_core._version import __version__
from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.files import read_bytes
from esper_core.plugins.isolation import LOCAL_FILE, author_hint, normalise, required_package, summarise
from esper_core.plugins.plugin_records import EntryPointInfo, PluginCandidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from importlib.metadata import EntryPoint
    from types import CodeType

PLUGIN_GROUP: Final = "esper.plugins"

FIRST_PARTY: Final[Mapping[str, str]] = {
    "blueprints": "esper-blueprints",
    "policies": "esper-policies",
    "rewards": "esper-rewards",
    "tasks": "esper-tasks",
    "watch": "esper-watch",
}
"""The package of each plugin id that belongs to the project itself."""

FIRST_PARTY_PACKAGES: Final = (*FIRST_PARTY.values(), "esper-grow", "esper-run", "esper-scale", "esper-testing")
"""The project's own packages, without esper-core."""

MAX_NAME_LENGTH: Final = 48
"""Characters of a plugin's id and of a component's name."""

NAME_RULE: Final = f"Lower case letters and digits, joined by single - or _, at most {MAX_NAME_LENGTH} characters."
"""How a plugin or a component may be called."""


_NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def discover(
    group: str, distributions: Iterable[Any] | None = None
) -> tuple[tuple[EntryPointInfo, ...], tuple[Problem, ...]]:
    """Return the entry points of a group, sorted by name, and a problem (E223) for each package with damaged metadata.

    A package that is on the path twice (an editable install and its egg-info) counts once, where Python finds it first.
    ``distributions`` are read instead of the installed packages: their name, version, requires and entry_points.
    """
    if distributions is None:
        from importlib.metadata import distributions as installed  # imported late: takes 20 ms

        distributions = installed()
    by_package: dict[str, list[EntryPointInfo]] = {}
    problems: list[Problem] = []
    for distribution in distributions:
        try:
            if entries := [entry for entry in distribution.entry_points if entry.group == group]:
                by_package.setdefault(normalise(distribution.name), _entry_points(distribution, entries))
        except Exception as error:  # damaged metadata may raise anything
            problems.append(_damage_problem(distribution, error))
    listed = [entry for entries in by_package.values() for entry in entries]
    return tuple(sorted(listed, key=lambda entry: (entry.name, entry.package, entry.target))), tuple(problems)


def _entry_points(distribution: Any, entries: list[EntryPoint]) -> list[EntryPointInfo]:
    name, version, requires = distribution.name, distribution.version, tuple(distribution.requires or ())
    if not isinstance(version, str):
        msg = f"the metadata of {name} has no version"
        raise ValueError(msg)
    # Extras in brackets, which entry points may name, are no part of the target.
    return [
        EntryPointInfo(entry.name, entry.value.partition("[")[0].strip(), name, version, requires) for entry in entries
    ]


def _damage_problem(distribution: Any, error: Exception) -> Problem:
    name: str | None = None
    with suppress(Exception):  # the name may be damaged, too
        name = distribution.name
    package = f'package "{name}"' if name else "an installed package"
    message = f"the metadata of {package} cannot be read: {summarise(error)}"
    return Problem("E223", message, hint=f"Install it again:  pip install --force-reinstall {name or 'PACKAGE'}")


def admit(entry_points: Iterable[EntryPointInfo], *, disable: Iterable[str], safe_mode: bool) -> list[PluginCandidate]:
    """Return a candidate for each entry point; those that may not be imported are stopped, with the reason.

    Args:
        entry_points: what was discovered.
        disable: ids of plugins to leave out.
        safe_mode: whether only the project's own packages are admitted.
    """
    candidates = []
    for candidate in map(PluginCandidate, entry_points):
        if candidate.id in disable:
            candidate = candidate.stopped("disabled")
        elif safe_mode and not is_first_party(candidate.entry_point.package):
            candidate = candidate.stopped("not-listed")
        candidates.append(candidate)
    admitted = [candidate.entry_point for candidate in candidates if candidate.is_active]
    return [_checked(candidate, admitted) for candidate in candidates]


def _checked(candidate: PluginCandidate, admitted: Sequence[EntryPointInfo]) -> PluginCandidate:
    """Stop a candidate whose id is claimed twice or invalid, or which needs another esper-core."""
    if not candidate.is_active:
        return candidate
    entry = candidate.entry_point
    # Of those admitted alone: in safe mode a foreign package that claims the same id does not count.
    claims = [other for other in admitted if other.name == candidate.id]
    problem: Problem | None
    if len(claims) > 1:
        problem = duplicate_problem(f'plugin "{candidate.id}"', claims)
    elif not is_name(candidate.id):
        message = f'package {entry.source} declares a plugin with an invalid id: "{candidate.id}"'
        problem = Problem("E216", message, hint=f"{NAME_RULE} {author_hint(entry.package)}")
    else:
        problem = core_version_problem(entry, candidate.title)
    return candidate if problem is None else candidate.stopped("rejected", problem)


def duplicate_problem(subject: str, claims: Sequence[EntryPointInfo]) -> Problem:
    """Return the problem (E211) of a plugin id or command, ``plugin "extra"``, that several entry points declare."""
    sources = [claim.file or f"{claim.source} ({claim.target})" for claim in claims]
    message = f"{subject} is declared more than once, and not loaded: by {' and by '.join(sources)}"
    packages = list(dict.fromkeys(claim.package for claim in claims))
    if LOCAL_FILE in packages:
        hint = "Rename the file, or take it out of plugins.local."
    elif len(packages) == 1:
        hint = author_hint(packages[0])
    else:
        removable = [package for package in packages if not is_first_party(package)] or packages
        hint = f"Keep one of them:  pip uninstall {' or '.join(removable)}"
    return Problem("E211", message, hint=hint)


def core_version_problem(entry: EntryPointInfo, title: str) -> Problem | None:
    """Describe a requirement of a package that this esper-core does not meet; None if all are met."""
    from packaging.requirements import Requirement  # imported late: takes 10 ms

    for requirement in [Requirement(text) for text in entry.requires if required_package(text) == "esper-core"]:
        applies = requirement.marker is None or requirement.marker.evaluate()
        # The core may be a pre-release, which some versions of packaging refuse unless they are told otherwise.
        if applies and not requirement.specifier.contains(__version__, prereleases=True):
            needed = f"{title} needs esper-core {requirement.specifier}, and this is {__version__}"
            hint = f"Bring them together:  pip install --upgrade esper-core {entry.package}"
            return Problem("E212", f"{needed}; its code was not run", hint=hint)
    return None


def is_name(text: object) -> bool:
    """Return whether this can be a plugin's id or a component's name; see ``NAME_RULE``.

    >>> is_name("tiny-conv"), is_name("TinyConv")
    (True, False)
    """
    return isinstance(text, str) and len(text) <= MAX_NAME_LENGTH and _NAME.fullmatch(text) is not None


def is_first_party(package: str) -> bool:
    """Return whether a package is one of the project's own."""
    return normalise(package) in FIRST_PARTY_PACKAGES


def is_set(variable: str) -> bool:
    """Return whether an environment variable has a value other than 0, false, no and off."""
    return os.environ.get(variable, "").strip().lower() not in ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A one-file plugin: its path, its bytes, and the entry point that represents it."""

    path: Path
    source: bytes
    entry_point: EntryPointInfo


def read_local(paths: Iterable[Path | LocalFile]) -> tuple[tuple[LocalFile, ...], list[Problem]]:
    """Read one-file plugins, each once, without running them; return also a problem (E227) for each invalid one.

    Those that were read before, perhaps on another machine, are returned as they are.
    """
    files: list[LocalFile] = []
    problems: list[Problem] = []
    for index, path in enumerate(paths):
        if isinstance(path, LocalFile):
            files.append(path)
            continue
        try:
            _check_file_name(path)
            source = _contents(path)
        except PluginError as error:
            problems += [replace(problem, path=f"plugins.local[{index}]") for problem in error.problems]
        else:
            id_ = path.stem.replace("_", "-")
            entry = EntryPointInfo(id_, path.stem, LOCAL_FILE, digest(source)[:12], (), str(path))
            files.append(LocalFile(path, source, entry))
    return tuple(files), problems


def digest(data: bytes) -> str:
    """Return the SHA-256 of the bytes in hexadecimal."""
    return sha256(data).hexdigest()


def import_local(file: LocalFile) -> Any:
    """Run a one-file plugin and register its module in ``sys.modules``, where its targets are looked up."""
    name = file.entry_point.target
    loader = _LocalLoader(name, file)
    spec = spec_from_file_location(name, file.path, loader=loader)
    assert spec is not None
    # Before its code runs, as in an import: dataclasses look their own module up while they are defined.
    sys.modules[name] = module = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        # Otherwise the next import would return the half-run module without an error.
        del sys.modules[name]
        raise
    return module


class _LocalLoader(SourceFileLoader):
    """Compiles the bytes that were read, and writes no bytecode beside the file."""

    def __init__(self, name: str, file: LocalFile) -> None:
        super().__init__(name, str(file.path))
        self._source = file.source

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled bytes."""
        return self.source_to_code(self._source, self.path)

    def get_source(self, fullname: str) -> str:
        """Return the text that was read: for tracebacks, where the file is not on this machine."""
        return decode_source(self._source)


def _contents(path: Path) -> bytes:
    try:
        return read_bytes(path, follow=True)
    except FileNotFoundError:
        _refuse(f'there is no plugin file "{path}"', "The path is relative to the configuration's folder.")
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        _refuse(f'the plugin file "{path}" cannot be read: {error}', "Check the path and the permissions.")


def _check_file_name(path: Path) -> None:
    """Refuse a file whose name is not a valid id, or is that of an installed module."""
    module = path.stem
    if path.suffix != ".py":
        _refuse(f'expected a Python file as a plugin, received "{path}"', "A one-file plugin ends in .py.")
    if not is_name(module.replace("_", "-")) or not module.isidentifier() or iskeyword(module):
        message = f'the name of the plugin file "{path.name}" is not a valid plugin id'
        _refuse(message, NAME_RULE.replace("single - or _", "single _"))
    # The name has no dots, so nothing is imported to find it.
    spec = find_spec(module)
    if spec is None or isinstance(spec.loader, _LocalLoader):
        return
    # In a folder of ``sys.path``, such as the current one, the file finds itself, and a run's copy of it the original,
    # which may have been edited since.
    origin = Path(spec.origin or "")
    by_pip = {"site-packages", "dist-packages"} & {*origin.parts}
    if by_pip or origin.name != path.name or Path(os.__file__).parent in origin.parents:
        _refuse(f'the plugin file "{path.name}" has the name of an installed module', "Rename the file.")


def _refuse(message: str, hint: str) -> NoReturn:
    raise PluginError(Problem("E227", message, hint=hint))
