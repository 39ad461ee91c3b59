"""What could be said in a component's settings? Its own model says so, if it is installed and can be imported.

Nothing here refuses anything: ``esper explain`` explains what it can. ``esper check`` tells what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from esper_core.app.participation import load_for
from esper_core.app.resolution import rewards_of
from esper_core.leyline.errors import EsperError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import BaseModel

    from esper_core.config import LoadedConfig, RunConfig, Use
    from esper_core.config.paths import KeyPath
    from esper_core.leyline.specs import ComponentKind


def settings_models(loaded: LoadedConfig, folder: Path) -> dict[KeyPath, type[BaseModel]]:
    """The models of settings by the path of these. What cannot be found, or has none, is not among them.

    ``folder`` is where one-file plugins are looked for.
    """
    try:
        plugins = load_for(loaded, folder)
    except EsperError:
        return {}
    models: dict[KeyPath, type[BaseModel]] = {
        ("plugins", "settings", id_): model
        for id_, model in plugins.settings.items()
        if id_ in loaded.config.plugins.settings
    }
    for kind, use, path in _uses(loaded.config):
        try:
            model = plugins.registry.find(cast("ComponentKind", kind), use.use).settings_model()
        except EsperError:
            continue
        if model is not None:
            models[*path, "settings"] = model
    return models


def _uses(config: RunConfig) -> Iterator[tuple[str, Use, KeyPath]]:
    yield "task", config.task, ("task",)
    yield "host", config.host, ("host",)
    yield from (("reward", use, path) for use, path in rewards_of(config))
    if config.policy is not None:
        yield "policy", config.policy, ("policy",)
    for name, arm in config.arms.items():
        yield "policy", arm.policy, ("arms", name, "policy")
    for name, optimizer in (("host", config.optimizer.host), ("seed", config.optimizer.seed)):
        if optimizer.schedule is not None:
            yield "schedule", optimizer.schedule, ("optimizer", name, "schedule")
    for index, sink in enumerate(config.sinks):
        yield "sink", sink, ("sinks", index)
