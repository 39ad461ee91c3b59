"""What do plugins add to the report of a run? Sections of their own, each under the plugin's name."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esper_core.app.observing import warn_of
from esper_core.leyline.running import ReportSection
from esper_core.plugins.calling import callers

if TYPE_CHECKING:
    from esper_core.leyline.running import RunInfo
    from esper_core.plugins import Plugins

HOOK = "esper_report_sections"


@dataclass(frozen=True, slots=True)
class OwnSection:
    """A section, and the plugin whose word it is."""

    plugin: str
    section: ReportSection

    def as_json(self) -> dict[str, str]:
        """The section as summary.json has it."""
        return {"plugin": self.plugin, "title": self.section.title, "text": self.section.text}


def collected_sections(plugins: Plugins, run: RunInfo) -> tuple[OwnSection, ...]:
    """The sections of every plugin, in the order in which the plugins were loaded; one that raises is told, once."""
    found: list[OwnSection] = []
    for plugin, call in callers(plugins.manager, HOOK).items():
        try:
            with redirect_stdout(sys.stderr):
                found += [OwnSection(plugin, section) for section in _sections(call(run=run))]
        except (Exception, SystemExit) as error:
            warn_of(plugins, plugin, HOOK, error, "the report does without its sections")
    return tuple(found)


def _sections(given: list[Any]) -> list[ReportSection]:
    """What a plugin gave, TypeError where it is something else. pluggy puts it into a list, and leaves None out."""
    sections = [section for one in given for section in one]
    for section in sections:
        if not isinstance(section, ReportSection):
            msg = f"a report is made of ReportSection(title, text). Received: {section!r}"
            raise TypeError(msg)
    return sections
