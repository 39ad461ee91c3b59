"""Which values are said, and nothing reads them? The file is in order; what it says there has no effect.

A value that is its default is never told: a resolved configuration says every value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esper_core.config.fields import entry_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.config.model import RunConfig
    from esper_core.config.paths import KeyPath
    from esper_core.config.places import Places
    from esper_core.leyline import Problem

CODE = "E114"
"""That of keys that do not go together; here a warning."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """A value that has no effect, why not, and what would give it one."""

    path: KeyPath
    why: str
    hint: str


def idle_values(config: RunConfig, places: Places) -> Iterator[Problem]:
    """A problem for each value that was written, is not the default, and is read by nothing."""
    asked = (_optimizers, _growth, _governor, _comparison, _rewards, _devices, _plugins)
    for idle in (idle for ask in asked for idle in ask(config)):
        if idle.path in places.by_path and _value(config, idle.path) != _default(idle.path):
            message = f"{idle.path[-1]} has no effect: {idle.why}"
            yield places.problem(CODE, idle.path, message, idle.hint)


def _optimizers(config: RunConfig) -> Iterator[_Idle]:
    for side, optimizer in (("host", config.optimizer.host), ("seed", config.optimizer.seed)):
        if optimizer.kind != "sgd":
            why = f"sgd has a momentum, {optimizer.kind} has none that could be set"
            yield _Idle(("optimizer", side, "momentum"), why, "Delete it, or write kind: sgd.")


def _growth(config: RunConfig) -> Iterator[_Idle]:
    growth = config.growth
    if growth.gates == "off" and growth.nursery == 1:
        why = "the gates are off, and what a seed costs is asked by them and in nurseries alone"
        yield _Idle(("growth", "price"), why, "Delete it, or write gates: strict.")
    named = [slot.blueprints for slot in config.slots.values()]
    if growth.gates != "off" and not any(set("*?[") & set(name) for names in named for name in names):
        most = max(map(len, named))
        if growth.nursery > most:
            why = f"no slot has more than {most} blueprints to choose from; each gate is the stricter for it"
            yield _Idle(("growth", "nursery"), why, f"Write nursery: {most}, or more blueprints.")


def _governor(config: RunConfig) -> Iterator[_Idle]:
    governor, steps = config.governor, config.episode.steps
    if not governor.rollback:
        for name in ("rollbacks", "penalty", "snapshots", "snapshot_steps"):
            why = "rolling back is switched off (governor.rollback: false)"
            yield _Idle(("governor", name), why, "Delete it, or write rollback: true.")
    if governor.patience is not None and governor.patience >= steps:
        why = f"an episode is over after {steps} steps, before the patience is"
        yield _Idle(("governor", "patience"), why, "Write less patience, or longer episodes.")
    if governor.surge_steps > steps:
        why = f"an episode is over after {steps} steps, so no surge ever is a panic"
        yield _Idle(("governor", "surge_steps"), why, "Write fewer, or longer episodes.")


def _comparison(config: RunConfig) -> Iterator[_Idle]:
    if config.twin:
        return
    hint = "Let the twin run (twin: true), or delete it."
    if len(config.arms) < 2:
        yield _Idle(("margin",), "there is one arm and no twin, so nothing is compared", hint)
    if config.governor.rollback:
        unrewarded = "a step is rewarded by what it gained over the twin, and there is no twin"
        yield _Idle(("governor", "penalty"), unrewarded, hint)


def _rewards(config: RunConfig) -> Iterator[_Idle]:
    if config.rewards:
        yield _Idle(("reward",), "rewards stand in its place", "Delete one of the two.")


def _devices(config: RunConfig) -> Iterator[_Idle]:
    if config.devices:
        yield _Idle(("device",), "devices stand in its place", "Delete one of the two.")


def _plugins(config: RunConfig) -> Iterator[_Idle]:
    for id_ in sorted(config.plugins.settings.keys() & set(config.plugins.disable)):
        hint = "Delete them, or take it out of plugins.disable."
        yield _Idle(("plugins", "settings", id_), "the plugin is disabled", hint)


def _value(config: RunConfig, path: KeyPath) -> Any:
    value: Any = config
    for step in path:
        value = value[step] if isinstance(value, dict) else getattr(value, str(step))
    return value


def _default(path: KeyPath) -> Any:
    """What a key is where nobody writes it; None for a name of the user's own."""
    above, entry = entry_at(path[:-1]), entry_at(path)
    is_own = above is None or above.section is None or entry is None or entry.field is None
    return None if is_own or entry is None or entry.field is None else entry.field.get_default()
