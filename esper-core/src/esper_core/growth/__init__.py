"""Growth: slots in any model, seeds in slots, and the lives they lead."""

from esper_core.growth.auditioning import audition
from esper_core.growth.faults import FaultBook, SeedFault, in_words
from esper_core.growth.garden import Garden, Transition, Variety
from esper_core.growth.grafting import graft, is_grafted, slots_of
from esper_core.growth.journal import Growth, read_growth
from esper_core.growth.optimizers import OptimizerKeeper
from esper_core.growth.probe import observe
from esper_core.growth.randomness import RandomStream, derive_seed
from esper_core.growth.seed import Seed
from esper_core.growth.slot import Slot, Slots
from esper_core.growth.snapshot import Snapshot

__all__ = [
    "FaultBook",
    "Garden",
    "Growth",
    "OptimizerKeeper",
    "RandomStream",
    "Seed",
    "SeedFault",
    "Slot",
    "Slots",
    "Snapshot",
    "Transition",
    "Variety",
    "audition",
    "derive_seed",
    "graft",
    "in_words",
    "is_grafted",
    "observe",
    "read_growth",
    "slots_of",
]
