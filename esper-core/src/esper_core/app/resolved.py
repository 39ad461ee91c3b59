"""What did the file mean, in full? The same configuration with every name in full and every default written out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

if TYPE_CHECKING:
    from esper_core.app.resolution import Chosen, Resolution
    from esper_core.config import RunConfig, Use


def resolved_config(resolution: Resolution) -> RunConfig:
    """A configuration that runs the same, whatever is installed beside, as long as these components are.

    One-file plugins stand beside it: the run directory holds what was run.
    """
    config = resolution.loaded.config
    slots = {
        name: slot.model_copy(
            update={
                "at": resolution.places[name].at,
                "kind": resolution.places[name].kind,
                "blueprints": tuple(component.id for component in resolution.blueprints[name]),
            }
        )
        for name, slot in config.slots.items()
    }
    local = tuple(f"./{Path(name).name}" for name in config.plugins.local)
    update = {
        "plugins": config.plugins.model_copy(update={"local": local}),
        "task": _full(config.task, resolution.task),
        "host": _full(config.host, resolution.host),
        **_rewards(config, resolution),
        "sinks": tuple(_full(use, sink) for use, sink in zip(config.sinks, resolution.sinks, strict=True)),
        "slots": slots,
        "optimizer": config.optimizer.model_copy(
            update={
                side: own.model_copy(update={"schedule": _full(own.schedule, resolution.schedules[side])})
                for side, own in (("host", config.optimizer.host), ("seed", config.optimizer.seed))
                if own.schedule is not None
            }
        ),
    }
    if config.policy is not None:
        (chosen,) = resolution.policies.values()
        update["policy"] = _full(config.policy, chosen)
    else:
        update["arms"] = {
            name: arm.model_copy(update={"policy": _full(arm.policy, resolution.policies[name])})
            for name, arm in config.arms.items()
        }
    return config.model_copy(update=update)


def _rewards(config: RunConfig, resolution: Resolution) -> dict[str, Any]:
    """Those that are in use. What several stand in the place of stays as it is."""
    if config.rewards:
        return {"rewards": tuple(map(_full, config.rewards, resolution.rewards))}
    return {"reward": _full(config.reward, resolution.reward)}


def _full(use: Use, chosen: Chosen) -> Use:
    return use.model_copy(update={"use": chosen.component.id, "settings": to_jsonable_python(dict(chosen.settings))})
