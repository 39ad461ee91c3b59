"""The engine ``threads``: environments in this process, on threads or on the streams of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper_run.engines import Engine

if TYPE_CHECKING:
    from esper_core.trainer import Pool
    from esper_run.engines import ComposedRun, PoolRequest


@dataclass(frozen=True, slots=True)
class ThreadsSession:
    """Pools of this process for one run."""

    composition: ComposedRun

    def pool(self, request: PoolRequest) -> Pool:
        """Return a pool of threads."""
        from esper_core.trainer import Pool  # imports torch

        config, implants = self.composition.config, request.implants
        return Pool(
            self.composition.recipe,
            request.arms,
            config.environments,
            twin=request.twin,
            devices=self.composition.devices,
            lanes=None if config.lanes == "auto" else config.lanes,
            implants=None if implants is None else lambda arm, seed: implants[arm, seed],
            on_turn=request.heartbeat,
        )

    def close(self) -> None:
        """Do nothing: threads end with their pool."""


ENGINE: Final = Engine(
    "Threads of this process, or streams of its GPUs.", lambda context: ThreadsSession(context.composition)
)
