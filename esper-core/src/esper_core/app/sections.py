"""What do plugins add to the report of a run? Sections of their own, each under the plugin's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esper_core.app.observing import warn_of
from esper_core.leyline.protocols import ReportSection
from esper_core.plugins.calling import callers
from esper_core.plugins.faults import contained

if TYPE_CHECKING:
    from esper_core.leyline.protocols import RunInfo
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
        with contained() as caught:
            found += [OwnSection(plugin, section) for section in _sections(call(run=run))]
        if caught.error is not None:
            warn_of(plugins, plugin, HOOK, caught.error, "the report does without its sections")
    return tuple(found)


def _sections(given: list[Any]) -> list[ReportSection]:
    """What a plugin gave, TypeError or ValueError where it is something else. pluggy puts it into a list, without None.

    Plain copies: whatever the plugin does to its own later, the report stays as it was read.
    """
    return [_plain(section) for one in given for section in one]


def _plain(section: Any) -> ReportSection:
    if not isinstance(section, ReportSection):
        msg = f"a report is made of ReportSection(title, text). Received: {section!r}"
        raise TypeError(msg)
    for name, value in (("title", section.title), ("text", section.text)):
        if not isinstance(value, str):
            msg = f"the {name} of a ReportSection is a text. Received: {value!r}"
            raise TypeError(msg)
    if len(section.title.splitlines()) != 1:
        msg = f"the title of a ReportSection is one line. Received: {section.title!r}"
        raise ValueError(msg)
    return ReportSection(str(section.title), str(section.text))
