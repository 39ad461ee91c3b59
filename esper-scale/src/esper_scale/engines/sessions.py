"""Sessions: open an engine for a run, and make its pools of workers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_run.watchdog import can_fork
from esper_scale.engines.portable import PortableRun, portable_data
from esper_scale.engines.processes import ForkEngine, usable_cores
from esper_scale.engines.ray import RayEngine
from esper_scale.engines.worker_pool import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from esper_run.config import RunConfig
    from esper_run.engines import ComposedRun, EngineContext, PoolRequest
    from esper_scale.engines.protocol import Engine

log = logging.getLogger("esper")


@dataclass(frozen=True, slots=True)
class WorkersSession:
    """Workers at the disposal of one run.

    Attributes:
        engine: Starts them.
        workers: How many there are.
    """

    composition: ComposedRun
    engine: Engine
    workers: int

    def pool(self, request: PoolRequest) -> WorkerPool:
        """Return a pool of workers."""
        config = self.composition.config
        return WorkerPool(
            self.engine,
            request,
            config.environments,
            workers=self.workers,
            warn=self.composition.recipe.reports.warn,
            patience=None if config.patience == "auto" else config.patience,
        )

    def close(self) -> None:
        """Release what the engine holds."""
        self.engine.close()


def open_processes(context: EngineContext) -> WorkersSession | None:
    """Return worker processes, or None where threads of the run's own process do as well."""
    composition = context.composition
    count = processes_for(composition.config, composition.devices)
    return None if count == 1 else WorkersSession(composition, ForkEngine(composition.recipe), count)


def open_ray(context: EngineContext) -> WorkersSession | None:
    """Return workers on a cluster; None if the run did not ask for one."""
    if context.settings is None:
        return None
    composition = context.composition
    run, config = PortableRun.of(composition), composition.config
    engine = RayEngine(
        run,
        portable_data(composition.recipe),
        run.describe(composition.resolution.plugins),
        address=context.settings.address,
        wait_seconds=context.settings.wait_seconds,
        most=config.environments,
        lanes=None if config.lanes == "auto" else config.lanes,
        on_node=lambda node: context.on_node(node.as_json()),
        on_wait=context.on_wait,
    )
    return WorkersSession(composition, engine, engine.workers)


def processes_for(config: RunConfig, devices: Sequence[torch.device]) -> int:
    """Return over how many processes to spread a run; 1: only this one."""
    count = min(usable_cores() if config.lanes == "auto" else config.lanes, config.environments)
    if count > 1 and (not can_fork() or any(device.type != "cpu" for device in devices)):
        log.warning("engine: processes needs Linux, a CPU device and no GPU; using threads")
        return 1
    return count
