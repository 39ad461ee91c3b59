"""How is the end of a run shown? The verdict in words, then a table of the arms with their intervals."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from esper_core.cli.rendering import print_line, print_table, visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.app.compose import Composition
    from esper_core.app.running import Outcome


def show_outcome(outcome: Outcome) -> None:
    """Print what a run found."""
    found = outcome.results
    metric = found["metric"]
    rows = [
        [
            name,
            _value(metric, arm["test"]["mean"]),
            _interval(metric, arm["test"]["ci_low"], arm["test"]["ci_high"]),
            str(arm["test"]["n"]),
            f"{arm['params']:,.0f}",
            "unknown" if arm["reward"] is None else f"{arm['reward']:+.1f}",
        ]
        for name, arm in found["arms"].items()
    ]
    print_table(["arm", f"test {metric['name']}", "95 % interval", "n", "parameters", "reward"], rows)
    for comparison in found["comparisons"]:
        click.echo(_sentence(metric, comparison))
    for own in outcome.sections:
        print_line(f"\n{visible(own.section.title)}   (plugin {visible(own.plugin)})")
        for line in own.section.text.rstrip().splitlines():
            print_line(f"  {visible(line)}".rstrip())
    click.echo(f"\n{outcome.named}   {outcome.timing['total']:.1f} s, of which {_largest(outcome.timing)}")


def _sentence(metric: Mapping[str, str], comparison: Mapping[str, Any]) -> str:
    a, b, verdict = comparison["a"], comparison["b"], comparison["verdict"]
    size = "a figure is not finite"
    if comparison["difference"] is not None:
        size = _difference(metric, comparison["difference"])
    if comparison["ci_low"] is not None:
        low, high = (_difference(metric, comparison[end]).removesuffix(" points") for end in ("ci_low", "ci_high"))
        size += f" (95 % interval {low} to {high}, n = {comparison['n']}, p = {comparison['p']:.2g})"
    if verdict == "no difference shown":
        return f"{a} against {b}: no difference shown; {size}"
    return f"{a} is {verdict} than {b} by {size}"


def _value(metric: Mapping[str, str], value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "unknown"
    return f"{100 * value:.1f} %" if metric["unit"] == "%" else f"{value:.4g}"


def _difference(metric: Mapping[str, str], value: float) -> str:
    return f"{100 * value:+.1f} points" if metric["unit"] == "%" else f"{value:+.4g}"


def _interval(metric: Mapping[str, str], low: float | None, high: float | None) -> str:
    return "unknown" if low is None or high is None else f"{_value(metric, low)} to {_value(metric, high)}"


def _largest(timing: Mapping[str, float]) -> str:
    regions = sorted(((seconds, name) for name, seconds in timing.items() if name != "total"), reverse=True)
    total = timing["total"] or 1.0
    return ", ".join(f"{name} {100 * seconds / total:.0f} %" for seconds, name in regions[:3])


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
        arms=composition.arm_names,
        episodes=config.rounds * config.environments,
        steps=config.episode.steps,
        batches=config.episode.batches,
        host_parameters=composition.host_parameters,
        slots=composition.space.blueprints,
    )
