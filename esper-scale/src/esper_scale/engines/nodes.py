"""Nodes: what is installed on the machine of a worker, and whether its results equal those of the run's own machine."""

from __future__ import annotations

import platform
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from esper_core.leyline.errors import ClusterError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

MISSING = "not installed"


def _build() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "CPU capability": torch.backends.cpu.get_cpu_capability(),
        "Python": platform.python_version(),
        "threads": "1",
    }


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What numbers depend on, where a worker computes.

    Attributes:
        node: Name of the machine.
        build: torch, the instructions that it uses of the CPU, Python, and the number of threads.
        packages: Version and hash of the code of each package that the workers use.
    """

    node: str = field(default_factory=socket.gethostname)
    build: Mapping[str, str] = field(default_factory=_build)
    packages: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the record as the manifest of a run has it: without a name that identifies the machine."""
        return {"build": dict(self.build), "packages": dict(self.packages)}


def check_node(run_node: NodeRecord, other: NodeRecord) -> None:
    """Compare a worker's node with the machine of the run.

    Raises:
        ClusterError: E405, it has other packages, or another torch build, CPU capability or Python.
    """
    same_packages = "Install the same versions on every node, for example from one constraints file."
    for expected, installed, hint in (
        (run_node.packages, other.packages, same_packages),
        (run_node.build, other.build, "Results would differ in their last bits. Use equal nodes."),
    ):
        texts = [
            f"{name} is {version} on node {other.node}, and {value} where the run was started"
            for name, value in expected.items()
            if (version := installed.get(name, MISSING)) != value
        ]
        if texts:
            raise ClusterError([Problem("E405", text, hint=hint) for text in texts])
