"""How does a plugin's code get into memory without its faults getting out? Imported by its target, timed, contained."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import Problem
from esper_core.plugins.discovery import LOCAL_FILE, normalised
from esper_core.plugins.faults import attempt, fault_in, root_of
from esper_core.plugins.local import digest, import_local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.plugins.faults import Fault
    from esper_core.plugins.local import LocalFile
    from esper_core.plugins.records import Candidate


def is_target(text: str) -> bool:
    """Whether this text names an attribute of a module: ``"my_package.blocks:TinyConv"``."""
    module, colon, attribute = text.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def import_target(target: str) -> Any:
    """The module ``"package.module"``, or what ``"package.module:attribute"`` names in it. Runs the package's code."""
    module, _, attributes = target.partition(":")
    found: Any = import_module(module.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        found = getattr(found, attribute)
    return found


def import_plugin(candidate: Candidate, files: Sequence[LocalFile] = ()) -> Candidate:
    """The candidate with its module or object, and the time that took; fallen with E210 where importing it failed."""
    if not candidate.is_active:
        return candidate
    announcement = candidate.announcement
    own = [file for file in files if file.announcement == announcement]
    tried = attempt(lambda: import_local(own[0]) if own else import_target(announcement.target))
    hashed = digest(own[0].source) if own else _hash_of(announcement.target)
    candidate = replace(candidate, plugin=tried.value, load_ms=tried.milliseconds, sha256=hashed)
    if tried.error is None:
        return candidate
    return candidate.fallen("broken", raised("E210", candidate, "cannot be imported", tried.error))


def _hash_of(target: str) -> str | None:
    """Of the file that the target's module is in; None where it is in none."""
    file = getattr(sys.modules.get(target.partition(":")[0].strip()), "__file__", None)
    try:
        return digest(Path(file).read_bytes()) if isinstance(file, str) else None
    except OSError:  # it was imported all the same: from an archive, or by a loader of its own
        return None


def raised(code: str, candidate: Candidate, what: str, error: BaseException) -> Problem:
    """The problem that a plugin's code raised: with its author's own line where the fault passed through one."""
    announcement = candidate.announcement
    fault = fault_in(error, root_of(announcement.target))
    return Problem(
        code,
        f"{candidate.title} {what}: {fault.summary}",
        file=fault.file,
        line=fault.line,
        path=f"entry point {candidate.id} = {announcement.target}" if fault.file is None else None,
        hint=remedy(fault, announcement.target, announcement.package, announcement.requires)
        or blame(announcement.package, candidate.id),
    )


def blame(package: str, plugin: str) -> str:
    """What to do about a fault that only the plugin's author can mend."""
    if package == LOCAL_FILE:
        return "Mend the file, or take it out of plugins.local."
    return f"Tell the author of {package}, or leave it out:  plugins.disable: [{plugin}]"


def author_of(package: str) -> str:
    """Who can mend a component that is at fault."""
    return "Mend the file." if package == LOCAL_FILE else f"Tell the author of {package}."


def remedy(fault: Fault, target: str, package: str, requires: Sequence[str] = ()) -> str | None:
    """What to install where a module was missing; None where that was not the fault."""
    if fault.missing is None:
        return None
    missing = root_of(fault.missing)
    if package == LOCAL_FILE and fault.file is not None and Path(fault.file).with_name(f"{missing}.py").is_file():
        return (
            f"{missing}.py stands beside it, but a one-file plugin is one file: move it in, or make a package of both."
        )
    if package == LOCAL_FILE:
        return f'Install the package that has the module "{missing}".'
    if missing == root_of(target):
        return f"A part of {package} itself is missing:  pip install --force-reinstall {package}"
    if missing == "esper_core":
        return f"It was written for another esper-core:  pip install --upgrade esper-core {package}"
    declared = [text for text in requires if _names(text, missing)]
    if declared:
        return f'Install what is missing:  pip install "{declared[0].partition(";")[0].strip()}"'
    return (
        f'Install the package that has the module "{missing}", and tell the author of {package}:'
        " it is not among its requirements"
    )


def _names(requirement: str, module: str) -> bool:
    name = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return name is not None and normalised(name[1]) == normalised(module)
