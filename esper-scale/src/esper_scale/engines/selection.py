"""Selection: which engine a run uses, with how many workers."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper_core.trainer.lanes import usable_cores
from esper_scale.engines.processes import ForkEngine, can_fork

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from esper_core.trainer.environment import Recipe
    from esper_run.config import RunConfig
    from esper_scale.engines.ahead import Decider
    from esper_scale.engines.protocol import Engine

log = logging.getLogger("esper")

UNEVEN: Final = 1.15
"""How much longer than evenly shared work the largest share may take for processes to be chosen."""


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """An engine, and how many workers of it a run takes.

    Attributes:
        decides: Whether its workers have policies of their own, and may run ahead.
    """

    engine: Engine
    workers: int
    decides: bool = False


def choose_engine(
    config: RunConfig, devices: Sequence[torch.device], recipe: Recipe, decider: Decider, *, supervised: bool = False
) -> ChosenEngine | None:
    """Return the engine of a run; None: threads of this process.

    A ``supervised`` run needs workers, since it has to repeat verdicts.
    """
    count, decides = processes_for(config, devices), not decider.learns
    if count == 1 and supervised and can_fork() and all(device.type == "cpu" for device in devices):
        log.info("the run continues in a process of its own, so that what a seed did is not repeated")
    elif count == 1:
        return None
    return ChosenEngine(ForkEngine(recipe, decider if decides else None), count, decides)


def processes_for(config: RunConfig, devices: Sequence[torch.device]) -> int:
    """Return over how many processes to spread a run; 1: only this one."""
    lanes = usable_cores() if config.lanes == "auto" else config.lanes
    count = min(lanes, config.instances)
    if config.engine == "threads" or count == 1:
        return 1
    if not can_fork() or any(device.type != "cpu" for device in devices):
        if config.engine == "processes":
            log.warning("engine: processes needs Linux, a CPU device and no GPU; using threads")
        return 1
    if config.engine == "processes":
        return count
    even = -(-config.instances // count) * count <= UNEVEN * config.instances
    alone = threading.current_thread() is threading.main_thread() and "ipykernel" not in sys.modules
    return count if even and alone and not config.compute.compile else 1
