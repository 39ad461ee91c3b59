"""Which installed packages announce something to Esper? Read from their metadata: nothing of theirs is imported.

Which of the announced plugins may be imported? Decided from metadata alone: none of their code has run yet.

Which one-file plugins does a configuration name? Each is read once: what is hashed is what is run, and kept.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, module_from_spec
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from esper_core._version import __version__
from esper_core.leyline.errors import Problem
from esper_core.plugins.isolation import LOCAL_FILE, normalised
from esper_core.plugins.records import Announcement, Candidate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import CodeType


PLUGIN_GROUP: Final = "esper.plugins"
COMMAND_GROUP: Final = "esper.commands"


class EntryPoint(Protocol):
    """What is asked of an entry point; ``importlib.metadata.EntryPoint`` has it."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def group(self) -> str: ...


class Distribution(Protocol):
    """What is asked of an installed package; ``importlib.metadata.Distribution`` has it, and a test's fake."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def requires(self) -> Sequence[str] | None: ...
    @property
    def entry_points(self) -> Iterable[EntryPoint]: ...


@dataclass(frozen=True, slots=True)
class Damage:
    """A package whose metadata cannot be read."""

    package: str | None
    error: Exception


def discover(
    group: str, distributions: Iterable[Distribution] | None = None
) -> tuple[tuple[Announcement, ...], tuple[Damage, ...]]:
    """What is announced in a group of entry points, in the order of names, and the packages that cannot be read.

    A package that stands on the path twice (an editable install and its egg-info) counts once, where Python finds it
    first.
    """
    found: list[Announcement] = []
    damaged: list[Damage] = []
    seen: set[str] = set()
    for distribution in _installed() if distributions is None else distributions:
        try:
            entries = [entry for entry in distribution.entry_points if entry.group == group]
            if not entries:
                continue
            package = normalised(distribution.name)
            if package not in seen:
                found.extend(_announcements(distribution, entries))
            seen.add(package)
        except Exception as error:  # what damaged metadata raises is nobody's contract; it is reported
            damaged.append(Damage(_name_of(distribution), error))
    found.sort(key=lambda announcement: (announcement.name, announcement.package, announcement.target))
    return tuple(found), tuple(damaged)


def _installed() -> Iterable[Distribution]:
    from importlib.metadata import distributions  # 20 ms, paid only by commands that look

    return distributions()


def _announcements(distribution: Distribution, entries: list[EntryPoint]) -> list[Announcement]:
    name, version = distribution.name, distribution.version
    if not isinstance(version, str):
        msg = "the metadata has no version"
        raise ValueError(msg)
    requires = tuple(distribution.requires or ())
    return [
        Announcement(entry.name, entry.value.partition("[")[0].strip(), name, version, requires) for entry in entries
    ]


def _name_of(distribution: Distribution) -> str | None:
    try:
        return str(distribution.name) if distribution.name else None
    except Exception:  # the name is only for the message about the damage, which is reported anyway
        return None


FIRST_PARTY: Final[Mapping[str, str]] = {
    "blueprints": "esper-blueprints",
    "policies": "esper-policies",
    "rewards": "esper-rewards",
    "tasks": "esper-tasks",
    "watch": "esper-watch",
}
"""The plugin ids of the project's own packages that bring a plugin."""

FIRST_PARTY_PACKAGES: Final = (*FIRST_PARTY.values(), "esper-study", "esper-testing")
"""The project's own packages beside the core."""

LONGEST_NAME: Final = 48
"""Characters of a plugin's id, and of a component's name."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_OFF: Final = ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Rules:
    """What the user, the environment and the running core allow."""

    disable: frozenset[str] = frozenset()
    require: Mapping[str, str] = field(default_factory=dict)
    safe_mode: bool = False
    core_version: str = __version__


def safe_mode_from_environment() -> bool:
    """Whether ``ESPER_SAFE_MODE`` asks for first-party plugins only: any value but 0, false, no, off."""
    return not is_off(os.environ.get("ESPER_SAFE_MODE", ""))


def is_off(text: str) -> bool:
    """Whether a variable of the environment says no: empty, 0, false, no, off."""
    return text.strip().lower() in _OFF


def is_name(text: object) -> bool:
    """Whether this can be a plugin's id, or a component's name.

    >>> is_name("tiny-conv"), is_name("TinyConv")
    (True, False)
    """
    return isinstance(text, str) and len(text) <= LONGEST_NAME and _NAME.fullmatch(text) is not None


def gate(found: Iterable[Announcement], rules: Rules) -> list[Candidate]:
    """A candidate for each announcement; those that may not be imported have fallen, with the reason."""
    candidates = [_pass(Candidate(announcement), rules, (_disabled, _outside_of_safe_mode)) for announcement in found]
    claims = Counter(candidate.id for candidate in candidates if candidate.is_active)
    rivals = {
        name: [candidate.announcement for candidate in candidates if candidate.is_active and candidate.id == name]
        for name, count in claims.items()
        if count > 1
    }
    candidates = [_alone(candidate, rivals) for candidate in candidates]
    return [_pass(candidate, rules, (_misnamed, _mismatched, _unpinned)) for candidate in candidates]


def _pass(candidate: Candidate, rules: Rules, checks: Iterable[Callable[[Candidate, Rules], Candidate]]) -> Candidate:
    for check in checks:
        if candidate.is_active:
            candidate = check(candidate, rules)
    return candidate


def _disabled(candidate: Candidate, rules: Rules) -> Candidate:
    return candidate.fallen("disabled") if candidate.id in rules.disable else candidate


def _outside_of_safe_mode(candidate: Candidate, rules: Rules) -> Candidate:
    outside = rules.safe_mode and not is_first_party(candidate.announcement.package)
    return candidate.fallen("not-listed") if outside else candidate


def is_first_party(package: str) -> bool:
    """Whether a package is one of the project's own."""
    return normalised(package) in FIRST_PARTY_PACKAGES


def _misnamed(candidate: Candidate, _rules: Rules) -> Candidate:
    if is_name(candidate.id):
        return candidate
    problem = Problem(
        "E216",
        f'package {candidate.announcement.source} names its plugin "{candidate.id}", which cannot be a plugin\'s id',
        hint=f"{name_rule()} Tell the author of {candidate.announcement.package}.",
    )
    return candidate.fallen("rejected", problem)


def name_rule() -> str:
    """How a plugin or a component may be called."""
    return f"Lower case letters and digits, joined by single - or _, at most {LONGEST_NAME} characters."


def _alone(candidate: Candidate, rivals: Mapping[str, list[Announcement]]) -> Candidate:
    claims = rivals.get(candidate.id)
    if claims is None or not candidate.is_active:
        return candidate
    return candidate.fallen("rejected", taken_twice(f'plugin "{candidate.id}"', claims))


def taken_twice(what: str, claims: list[Announcement]) -> Problem:
    """The problem that one name is announced more than once."""
    if files := [claim.file for claim in claims if claim.file is not None]:
        others = [claim.source for claim in claims if claim.file is None]
        message = (
            f"{what} is announced by {' and '.join([*others, *files])}; {'neither' if len(claims) == 2 else 'none'}"
        )
        return Problem("E211", f"{message} is loaded", hint="Rename the file, or take it out of plugins.local.")
    sources = " and ".join(dict.fromkeys(claim.source for claim in claims))
    packages = list(dict.fromkeys(claim.package for claim in claims))
    if len(packages) == 1:
        targets = " and ".join(claim.target for claim in claims)
        return Problem(
            "E211",
            f"package {sources} announces {what} twice, as {targets}; neither is loaded",
            hint=f"Tell the author of {packages[0]}.",
        )
    removable = [package for package in packages if not is_first_party(package)] or packages
    commands = [f"  pip uninstall {package}" for package in removable]
    return Problem(
        "E211",
        f"{len(packages)} packages announce {what}: {sources}; {'neither' if len(claims) == 2 else 'none'} is loaded",
        hint="\n".join(["Keep one of them:", *commands]) if len(commands) > 1 else f"Keep one of them:{commands[0]}",
    )


def _mismatched(candidate: Candidate, rules: Rules) -> Candidate:
    problem = other_core_wanted(candidate.announcement, candidate.title, rules.core_version)
    return candidate if problem is None else candidate.fallen("rejected", problem)


def _unpinned(candidate: Candidate, rules: Rules) -> Candidate:
    pin = rules.require.get(candidate.id)
    if pin is None or candidate.announcement.file is not None:
        return candidate
    from packaging.specifiers import SpecifierSet  # 10 ms, paid where the file pins something
    from packaging.version import InvalidVersion, Version

    announcement = candidate.announcement
    try:
        if SpecifierSet(pin).contains(Version(announcement.version), prereleases=True):
            return candidate
    except InvalidVersion:  # then it is in no range
        pass
    problem = Problem(
        "E226",
        f"{candidate.title} is required in {pin}; its code was not run",
        path=f"plugins.require.{candidate.id}",
        hint=f'Bring them together:  pip install "{announcement.package}{compact(pin)}"',
    )
    return candidate.fallen("rejected", problem)


def compact(pin: str) -> str:
    """A range of versions without spaces, as pip takes it behind a name."""
    return "".join(pin.split())


def other_core_wanted(announcement: Announcement, title: str, core_version: str = __version__) -> Problem | None:
    """The problem that a package requires another esper-core than the one that is running, where it does."""
    mine = [text for text in announcement.requires if normalised(_required_name(text)) == "esper-core"]
    if not mine:
        return None
    from packaging.requirements import InvalidRequirement, Requirement  # 10 ms, paid where a plugin asks for a version

    for text in mine:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]
            return Problem(
                "E212",
                f'{title} has a requirement that cannot be read, "{text}": {reason}; its code was not run',
                hint=f"Tell the author of {announcement.package}.",
            )
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        if not requirement.specifier.contains(core_version, prereleases=True):
            return Problem(
                "E212",
                f"{title} needs esper-core {requirement.specifier}, and this is {core_version}; its code was not run",
                hint=f"Bring them together:  pip install --upgrade esper-core {announcement.package}",
            )
    return None


def _required_name(requirement: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return match[1] if match else ""


RELATIVE = "The path is relative to the configuration's folder."

_LARGEST = 1 << 20
"""Bytes that a one-file plugin may have."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A one-file plugin: the file, its bytes, and what it announces."""

    path: Path
    source: bytes
    announcement: Announcement


def read_local(paths: Iterable[Path]) -> tuple[tuple[LocalFile, ...], list[Problem]]:
    """The files, and what is wrong with those that cannot be plugins. Nothing of theirs is run."""
    found: list[LocalFile] = []
    problems: list[Problem] = []
    for place, path in enumerate(paths):
        module, id_ = path.stem, path.stem.replace("_", "-")
        try:
            source = _contents(path)
            _demand_fit_name(path, module, id_)
        except _Unfit as unfit:
            problems.append(Problem("E227", unfit.message, path=f"plugins.local[{place}]", hint=unfit.hint))
            continue
        announcement = Announcement(id_, module, LOCAL_FILE, digest(source)[:12], (), str(path))
        found.append(LocalFile(path, source, announcement))
    return tuple(found), problems


def digest(data: bytes) -> str:
    """The SHA-256 of the bytes, in hexadecimal."""
    return sha256(data).hexdigest()


def import_local(file: LocalFile) -> Any:
    """The plugin's module, run anew, and known to Python by its name so that its targets can be found."""
    name = file.announcement.target
    loader = _Loader(name, file)
    module = module_from_spec(ModuleSpec(name, loader, origin=str(file.path)))
    module.__file__ = str(file.path)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _Loader(SourceFileLoader):
    """Runs the bytes that were read, and leaves no compiled file beside them."""

    def __init__(self, name: str, file: LocalFile) -> None:
        super().__init__(name, str(file.path))
        self._source = file.source

    def get_code(self, fullname: str) -> CodeType:
        """What the bytes compile to."""
        code: CodeType = self.source_to_code(self._source, self.path)
        return code


class _Unfit(Exception):
    """A file that cannot be a plugin: what is wrong with it, and the way out."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def _contents(path: Path) -> bytes:
    """The file's bytes, read once: what becomes of it before and after that makes no difference."""
    if path.suffix != ".py":
        message = f'expected a Python file as a plugin, received "{path}"'
        raise _Unfit(message, "A plugin of one file ends in .py.")
    try:
        if not path.is_file():  # a pipe would keep us waiting
            raise FileNotFoundError
        with path.open("rb") as file:
            source = file.read(_LARGEST + 1)
    except FileNotFoundError:
        message = f'there is no plugin file "{path}"'
        raise _Unfit(message, RELATIVE) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, with a NUL in it
        message = f'the plugin file "{path}" cannot be read: {error}'
        raise _Unfit(message, "Check the path and the permissions.") from error
    if len(source) > _LARGEST:
        message = f'the plugin file "{path}" is larger than {_LARGEST:,} bytes'
        raise _Unfit(message, "Make a package of it.")
    return source


def _demand_fit_name(path: Path, module: str, id_: str) -> None:
    """Refuses a file whose name cannot be a plugin's, or is another module's."""
    if not is_name(id_) or not module.isidentifier() or iskeyword(module):
        message = f'a plugin cannot be called after its file "{path.name}"'
        raise _Unfit(message, name_rule().replace("single - or _", "single _"))
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # ValueError: a module that says nothing of where it is from
        spec = None
    if module not in sys.modules and spec is None:
        return
    if spec is None or not (isinstance(spec.loader, _Loader) or _same(spec.origin, path)):
        message = f'the plugin file "{path.name}" has the name of a module that is installed'
        raise _Unfit(message, "Give it another name.")


def _same(origin: str | None, path: Path) -> bool:
    return origin is not None and Path(origin).resolve() == path.resolve()
