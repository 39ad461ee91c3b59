"""Over how many processes is a run spread? Over several where that can be and pays; else its lanes are threads.

The numbers are the same. Threads of one process wait for Python, and for each other where networks draw random numbers;
processes do not, but each of them has its seeds from the beginning, and does nothing when it is done with them.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Final

from esper_core.trainer.forking import can_fork
from esper_core.trainer.lanes import usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from esper_core.config import RunConfig

log = logging.getLogger("esper")

UNEVEN: Final = 1.15
"""How much longer than evenly shared work the largest share may take, for processes to be chosen."""


def processes_for(config: RunConfig, devices: Sequence[torch.device]) -> int:
    """How many; 1: this one alone."""
    lanes = usable_cores() if config.lanes == "auto" else config.lanes
    count = min(lanes, config.instances)
    if config.workers == "threads" or count == 1:
        return 1
    if not can_fork() or any(device.type != "cpu" for device in devices):
        if config.workers == "processes":
            log.warning("lanes are processes on Linux, where there is no GPU: here they are what they are elsewhere")
        return 1
    return count if config.workers == "processes" or _pays(config, count) else 1


def _pays(config: RunConfig, count: int) -> bool:
    """Whether nothing speaks against ``count`` processes, where nobody asked for them."""
    even = -(-config.instances // count) * count <= UNEVEN * config.instances
    alone = threading.current_thread() is threading.main_thread() and "ipykernel" not in sys.modules
    return even and alone and not config.compute.compile
