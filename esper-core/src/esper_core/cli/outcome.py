"""How is the end of a run shown? A table of the arms with their intervals, then what their comparison shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from esper_core.cli.figures import largest, print_results
from esper_core.cli.rendering import print_line, print_wrapped, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from esper_core.app.compose import Composition
    from esper_core.app.run import Outcome


def show_outcome(outcome: Outcome) -> None:
    """Print what a run found."""
    from esper_core.app.run import REPORT

    print_results(outcome.results)
    print_sections([own.as_json() for own in outcome.sections])
    print_line()
    print_wrapped(f"{outcome.named}   {outcome.timing['total']:.1f} s, of which {largest(outcome.timing)}")
    if (report := outcome.named / REPORT).is_file():  # where a package is installed that writes one
        print_line(visible(f"Report: {report}"))


def print_sections(sections: Iterable[Mapping[str, str]]) -> None:
    """Print what plugins add to the report, each below its title."""
    for own in sections:
        print_line(f"\n{visible(own['title'])}   (plugin {visible(own['plugin'])})")
        for line in own["text"].rstrip().splitlines():
            print_line(f"  {visible(line)}".rstrip())


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do."""

    arms: tuple[str, ...]
    episodes: int
    steps: int
    batches: int
    host_parameters: int
    slots: Mapping[str, tuple[str, ...]]

    def as_json(self) -> dict[str, Any]:
        """The plan as ``--dry-run --json`` prints it."""
        return asdict(self)

    def text(self) -> str:
        """The plan in words."""
        lines = [
            f"{len(self.arms)} arms ({', '.join(self.arms)}), {self.episodes} episodes each",
            f"of {self.steps} steps of {self.batches} batches, on a host of {self.host_parameters:,} parameters",
        ]
        lines += [f"slot {name}: {', '.join(grows)}" for name, grows in self.slots.items()]
        return "\n".join([*lines, "Everything is in order; nothing was trained."])


def describe_plan(composition: Composition) -> Plan:
    """The plan of a run that is ready."""
    config = composition.resolution.loaded.config
    return Plan(
        arms=composition.every_arm,
        episodes=config.rounds * config.instances,
        steps=config.episode.steps,
        batches=config.episode.batches,
        host_parameters=composition.host_parameters,
        slots=composition.space.blueprints,
    )
