"""Discovery: find declared plugins and decide from metadata alone which of them may be imported.

``discover`` reads the entry points of installed packages, ``read_local`` the one-file plugins of a configuration, and
``admit`` applies the user's choice, safe mode, ids, versions and pins. No plugin code runs in any of them; only
``import_local`` runs a one-file plugin, from the bytes that were read and hashed.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, module_from_spec
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from esper_core._version import __version__
from esper_core.leyline.errors import Problem
from esper_core.plugins.isolation import LOCAL_FILE, author_hint, normalise
from esper_core.plugins.records import EntryPointInfo, PluginCandidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import CodeType

PLUGIN_GROUP: Final = "esper.plugins"
COMMAND_GROUP: Final = "esper.commands"

FIRST_PARTY: Final[Mapping[str, str]] = {
    "blueprints": "esper-blueprints",
    "policies": "esper-policies",
    "rewards": "esper-rewards",
    "tasks": "esper-tasks",
    "watch": "esper-watch",
}
"""The package of each plugin id that belongs to the project itself."""

FIRST_PARTY_PACKAGES: Final = (*FIRST_PARTY.values(), "esper-study", "esper-testing")
"""The project's own packages, without esper-core."""

MAX_NAME_LENGTH: Final = 48
"""Characters of a plugin's id and of a component's name."""

NAME_RULE: Final = f"Lower case letters and digits, joined by single - or _, at most {MAX_NAME_LENGTH} characters."
"""How a plugin or a component may be called."""

RELATIVE_PATH_HINT: Final = "The path is relative to the configuration's folder."

_MAX_FILE_SIZE: Final = 1 << 20
"""Bytes of a one-file plugin."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


# Entry points of installed packages


class EntryPoint(Protocol):
    """The part of ``importlib.metadata.EntryPoint`` that discovery reads."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def group(self) -> str: ...


class Distribution(Protocol):
    """The part of ``importlib.metadata.Distribution`` that discovery reads."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def requires(self) -> Sequence[str] | None: ...
    @property
    def entry_points(self) -> Iterable[EntryPoint]: ...


@dataclass(frozen=True, slots=True)
class DamagedPackage:
    """An installed package whose metadata cannot be read, with the error; its name may be unknown."""

    package: str | None
    error: Exception


def discover(
    group: str, distributions: Iterable[Distribution] | None = None
) -> tuple[tuple[EntryPointInfo, ...], tuple[DamagedPackage, ...]]:
    """Return the entry points of a group, sorted by name, and the packages whose metadata cannot be read.

    A package that is on the path twice (an editable install and its egg-info) counts once, where Python finds it first.

    Args:
        group: ``PLUGIN_GROUP`` or ``COMMAND_GROUP``.
        distributions: packages to read instead of the installed ones.
    """
    if distributions is None:
        from importlib.metadata import distributions as installed  # imported late: takes 20 ms

        distributions = installed()
    found: list[EntryPointInfo] = []
    damaged: list[DamagedPackage] = []
    seen: set[str] = set()
    for distribution in distributions:
        try:
            entries = [entry for entry in distribution.entry_points if entry.group == group]
            if not entries:
                continue
            package = normalise(distribution.name)
            if package not in seen:
                found.extend(_entry_points(distribution, entries))
            seen.add(package)
        except Exception as error:  # damaged metadata may raise anything
            damaged.append(DamagedPackage(_name_of(distribution), error))
    found.sort(key=lambda entry: (entry.name, entry.package, entry.target))
    return tuple(found), tuple(damaged)


def _entry_points(distribution: Distribution, entries: list[EntryPoint]) -> list[EntryPointInfo]:
    name, version = distribution.name, distribution.version
    if not isinstance(version, str):
        msg = "the metadata has no version"
        raise ValueError(msg)
    requires = tuple(distribution.requires or ())
    return [
        EntryPointInfo(entry.name, entry.value.partition("[")[0].strip(), name, version, requires) for entry in entries
    ]


def _name_of(distribution: Distribution) -> str | None:
    try:
        return str(distribution.name) if distribution.name else None
    except Exception:  # the damage is reported anyway, without a name
        return None


# Which plugins may be imported


def admit(
    entry_points: Iterable[EntryPointInfo],
    *,
    disable: Iterable[str] = (),
    require: Mapping[str, str] | None = None,
    safe_mode: bool = False,
) -> list[PluginCandidate]:
    """Return a candidate for each entry point; those that may not be imported are stopped, with the reason.

    Args:
        entry_points: what was discovered.
        disable: ids of plugins that the user leaves out.
        require: by plugin id the versions of its package that the user accepts.
        safe_mode: whether only the project's own packages are admitted.
    """
    disable, require = frozenset(disable), require or {}
    candidates = []
    for candidate in map(PluginCandidate, entry_points):
        if candidate.id in disable:
            candidate = candidate.stopped("disabled")
        elif safe_mode and not is_first_party(candidate.entry_point.package):
            candidate = candidate.stopped("not-listed")
        candidates.append(candidate)
    admitted = [candidate.entry_point for candidate in candidates if candidate.is_active]
    return [
        _checked(candidate, [entry for entry in admitted if entry.name == candidate.id], require)
        if candidate.is_active
        else candidate
        for candidate in candidates
    ]


def _checked(candidate: PluginCandidate, claims: list[EntryPointInfo], require: Mapping[str, str]) -> PluginCandidate:
    """Stop a candidate whose id is claimed twice or invalid, or whose versions do not fit."""
    problem: Problem | None
    if len(claims) > 1:
        problem = duplicate_problem(f'plugin "{candidate.id}"', claims)
    elif not is_name(candidate.id):
        entry = candidate.entry_point
        message = f'package {entry.source} declares a plugin with an invalid id: "{candidate.id}"'
        problem = Problem("E216", message, hint=f"{NAME_RULE} {author_hint(entry.package)}")
    else:
        problem = core_version_problem(candidate.entry_point, candidate.title) or _pin_problem(
            candidate, require.get(candidate.id)
        )
    return candidate if problem is None else candidate.stopped("rejected", problem)


def duplicate_problem(what: str, claims: list[EntryPointInfo]) -> Problem:
    """Describe a name that is declared more than once.

    Args:
        what: the name with its kind, ``plugin "extra"``.
        claims: the entry points that declare it.
    """
    neither = "neither" if len(claims) == 2 else "none"
    sources = list(dict.fromkeys(claim.file or claim.source for claim in claims))
    packages = list(dict.fromkeys(claim.package for claim in claims))
    if any(claim.file is not None for claim in claims):
        message = f"{what} is declared by {' and '.join(sources)}; {neither} is loaded"
        return Problem("E211", message, hint="Rename the file, or take it out of plugins.local.")
    if len(packages) == 1:
        targets = " and ".join(claim.target for claim in claims)
        message = f"package {sources[0]} declares {what} twice, as {targets}; {neither} is loaded"
        return Problem("E211", message, hint=author_hint(packages[0]))
    removable = [package for package in packages if not is_first_party(package)] or packages
    separator = "\n" if len(removable) > 1 else ""
    commands = "".join(f"{separator}  pip uninstall {package}" for package in removable)
    message = f"{len(packages)} packages declare {what}: {' and '.join(sources)}; {neither} is loaded"
    return Problem("E211", message, hint=f"Keep one of them:{commands}")


def core_version_problem(entry: EntryPointInfo, title: str) -> Problem | None:
    """Describe a requirement of a package that this esper-core does not meet; None if all are met."""
    requirements = [text for text in entry.requires if normalise(_required_name(text)) == "esper-core"]
    if not requirements:
        return None
    from packaging.requirements import InvalidRequirement, Requirement  # imported late: takes 10 ms

    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]
            message = f'{title} has an invalid requirement, "{text}": {reason}; its code was not run'
            return Problem("E212", message, hint=author_hint(entry.package))
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        if not requirement.specifier.contains(__version__, prereleases=True):
            return Problem(
                "E212",
                f"{title} needs esper-core {requirement.specifier}, and this is {__version__}; its code was not run",
                hint=f"Bring them together:  pip install --upgrade esper-core {entry.package}",
            )
    return None


def _required_name(requirement: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return match[1] if match else ""


def _pin_problem(candidate: PluginCandidate, pin: str | None) -> Problem | None:
    """Describe a version that ``plugins.require`` does not accept; a one-file plugin has no version to pin."""
    entry = candidate.entry_point
    if pin is None or entry.file is not None:
        return None
    from packaging.specifiers import SpecifierSet  # imported late: takes 10 ms
    from packaging.version import InvalidVersion, Version

    try:
        if SpecifierSet(pin).contains(Version(entry.version), prereleases=True):
            return None
    except InvalidVersion:  # an invalid version is in no range
        pass
    return Problem(
        "E226",
        f"{candidate.title} is required in {pin}; its code was not run",
        path=f"plugins.require.{candidate.id}",
        hint=f'Bring them together:  pip install "{entry.package}{pip_range(pin)}"',
    )


def pip_range(pin: str) -> str:
    """Return a range of versions without spaces, as pip takes it behind a package's name."""
    return "".join(pin.split())


def is_name(text: object) -> bool:
    """Whether this can be a plugin's id or a component's name; see ``NAME_RULE``.

    >>> is_name("tiny-conv"), is_name("TinyConv")
    (True, False)
    """
    return isinstance(text, str) and len(text) <= MAX_NAME_LENGTH and _NAME.fullmatch(text) is not None


def is_first_party(package: str) -> bool:
    """Whether a package is one of the project's own."""
    return normalise(package) in FIRST_PARTY_PACKAGES


def safe_mode_from_environment() -> bool:
    """Whether ``ESPER_SAFE_MODE`` asks for the project's own plugins only."""
    return is_set("ESPER_SAFE_MODE")


def is_set(variable: str) -> bool:
    """Whether an environment variable has a value other than 0, false, no and off."""
    return os.environ.get(variable, "").strip().lower() not in ("", "0", "false", "no", "off")


# One-file plugins


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A one-file plugin: its path, its bytes, and the entry point that it stands for."""

    path: Path
    source: bytes
    entry_point: EntryPointInfo


def read_local(paths: Iterable[Path]) -> tuple[tuple[LocalFile, ...], list[Problem]]:
    """Read one-file plugins, each once, without running them.

    Returns:
        The files, and a problem (E227) for each that cannot be a plugin.
    """
    found: list[LocalFile] = []
    problems: list[Problem] = []
    for place, path in enumerate(paths):
        module, plugin = path.stem, path.stem.replace("_", "-")
        try:
            source = _contents(path)
            _check_file_name(path, module, plugin)
        except _InvalidFile as error:
            problems.append(Problem("E227", error.message, path=f"plugins.local[{place}]", hint=error.hint))
            continue
        entry = EntryPointInfo(plugin, module, LOCAL_FILE, digest(source)[:12], (), str(path))
        found.append(LocalFile(path, source, entry))
    return tuple(found), problems


def digest(data: bytes) -> str:
    """Return the SHA-256 of the bytes in hexadecimal."""
    return sha256(data).hexdigest()


def import_local(file: LocalFile) -> Any:
    """Run a one-file plugin and register its module in ``sys.modules``, where its targets are looked up."""
    name = file.entry_point.target
    loader = _LocalLoader(name, file)
    module = module_from_spec(ModuleSpec(name, loader, origin=str(file.path)))
    module.__file__ = str(file.path)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
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
        code: CodeType = self.source_to_code(self._source, self.path)
        return code


class _InvalidFile(Exception):
    """A file that cannot be a plugin: what is wrong, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def _contents(path: Path) -> bytes:
    if path.suffix != ".py":
        message = f'expected a Python file as a plugin, received "{path}"'
        raise _InvalidFile(message, "A one-file plugin ends in .py.")
    try:
        if not path.is_file():  # reading a pipe would block
            raise FileNotFoundError
        with path.open("rb") as file:
            source = file.read(_MAX_FILE_SIZE + 1)
    except FileNotFoundError:
        message = f'there is no plugin file "{path}"'
        raise _InvalidFile(message, RELATIVE_PATH_HINT) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        message = f'the plugin file "{path}" cannot be read: {error}'
        raise _InvalidFile(message, "Check the path and the permissions.") from error
    if len(source) > _MAX_FILE_SIZE:
        message = f'the plugin file "{path}" is larger than {_MAX_FILE_SIZE:,} bytes'
        raise _InvalidFile(message, "Make a package of it.")
    return source


def _check_file_name(path: Path, module: str, plugin: str) -> None:
    """Refuse a file whose name is no valid id, or is that of an installed module."""
    if not is_name(plugin) or not module.isidentifier() or iskeyword(module):
        message = f'the name of the plugin file "{path.name}" is not a valid plugin id'
        raise _InvalidFile(message, NAME_RULE.replace("single - or _", "single _"))
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # ValueError: a module in sys.modules without a spec
        spec = None
    if module not in sys.modules and spec is None:
        return
    if spec is None or not (isinstance(spec.loader, _LocalLoader) or _is_same_file(spec.origin, path)):
        message = f'the plugin file "{path.name}" has the name of an installed module'
        raise _InvalidFile(message, "Rename the file.")


def _is_same_file(origin: str | None, path: Path) -> bool:
    return origin is not None and Path(origin).resolve() == path.resolve()
