"""Fused: networks of one structure, trained and evaluated as one program.

A run trains dozens of small equal networks. One after another, each pays for its own calls of torch; as one program
they share them. ``trainer.groups`` decides which environments of a pool do.

- ``rows``: tensors of several networks that are computed at once, and the table of what can be
- ``signatures``: which networks are equal in structure
- ``programs``: outputs, losses and gradients of several networks in one pass, and whether they are what the networks
  compute one after another
"""

from esper_core.fused.programs import Guest, HostTensors, Program, Stacks, Trained, why_different
from esper_core.fused.rows import NotFusedError, refuse
from esper_core.fused.signatures import signature_of

__all__ = [
    "Guest",
    "HostTensors",
    "NotFusedError",
    "Program",
    "Stacks",
    "Trained",
    "refuse",
    "signature_of",
    "why_different",
]
