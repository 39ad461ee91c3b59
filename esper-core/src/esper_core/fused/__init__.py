"""Fused: networks of one structure, trained and evaluated as one program.

A run trains dozens of small equal networks. One after another, each pays for its own calls of torch; as one program
they share them. ``trainer.groups`` decides which environments of a pool do.

- ``rows``: tensors of several networks that are computed at once, and the table of what can be
- ``tapes``: calls of torch that are recorded once, and made again in each batch; captured on a GPU
- ``networks``: which networks are equal in structure, and the seeds that act on single ones
- ``blocks``: where the numbers of several networks are for the batches of a step, with optimizers and averages
- ``programs``: outputs, losses and gradients of several networks in one pass, and whether they are what the networks
  compute one after another
"""

from esper_core.fused.blocks import TrainingState, Updates
from esper_core.fused.networks import Guest, HostTensors, signature_of
from esper_core.fused.programs import Program, Stacks, Training, why_different
from esper_core.fused.rows import NotFusedError, refuse
from esper_core.fused.tapes import GRAPHS

__all__ = [
    "GRAPHS",
    "Guest",
    "HostTensors",
    "NotFusedError",
    "Program",
    "Stacks",
    "Training",
    "TrainingState",
    "Updates",
    "refuse",
    "signature_of",
    "why_different",
]
