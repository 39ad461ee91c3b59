"""How does a plugin's code get into memory without its faults getting out? Imported by its target, timed, contained."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import Problem
from esper_core.plugins.discovery import normalised
from esper_core.plugins.faults import attempt, fault_in, root_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.plugins.faults import Fault
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


def import_plugin(candidate: Candidate) -> Candidate:
    """The candidate with its module or object, and the time that took; fallen with E210 where importing it failed."""
    if not candidate.is_active:
        return candidate
    announcement = candidate.announcement
    tried = attempt(lambda: import_target(announcement.target))
    candidate = replace(candidate, plugin=tried.value, load_ms=tried.milliseconds)
    if tried.error is None:
        return candidate
    return candidate.fallen("broken", raised("E210", candidate, "cannot be imported", tried.error))


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
    return f"Tell the author of {package}, or leave it out:  plugins.disable: [{plugin}]"


def remedy(fault: Fault, target: str, package: str, requires: Sequence[str] = ()) -> str | None:
    """What to install where a module was missing; None where that was not the fault."""
    if fault.missing is None:
        return None
    missing = root_of(fault.missing)
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
