"""Growth: slots in any model, seeds in slots, and the lives they lead."""

from esper_core.config import GrowthConfig, OptimizerConfig
from esper_core.growth.auditioning import audition
from esper_core.growth.counterfactuals import CounterfactualResult, Counterfactuals, each_left_out
from esper_core.growth.describing import Terrain, describe
from esper_core.growth.drawing import Draws, draws_of, draws_of_variety
from esper_core.growth.evidence import NUMBERS, paired, read_gain
from esper_core.growth.faults import FaultBook, SeedFault, in_words, without_folders
from esper_core.growth.garden import Garden, Transition
from esper_core.growth.gating import Gates
from esper_core.growth.gradients import WIDTH, GradientCollector, read_health
from esper_core.growth.grafting import graft, is_grafted, slots_of
from esper_core.growth.host_side import host_parameters
from esper_core.growth.implanting import implant
from esper_core.growth.incubation import summed
from esper_core.growth.journal import Growth, read_network
from esper_core.growth.keeping import KeptBuffers
from esper_core.growth.memory import heard, told, unfit
from esper_core.growth.optimizers import OptimizerKeeper, Regimen
from esper_core.growth.planting import Variety
from esper_core.growth.probe import device_of, observe
from esper_core.growth.randomness import RandomStream, derive_seed
from esper_core.growth.seed import Course, Presence, Seed
from esper_core.growth.settled import disturbed
from esper_core.growth.slot import Slot, Slots
from esper_core.growth.snapshot import Snapshot

__all__ = [
    "NUMBERS",
    "WIDTH",
    "CounterfactualResult",
    "Counterfactuals",
    "Course",
    "Draws",
    "FaultBook",
    "Garden",
    "Gates",
    "GradientCollector",
    "Growth",
    "GrowthConfig",
    "KeptBuffers",
    "OptimizerConfig",
    "OptimizerKeeper",
    "Presence",
    "RandomStream",
    "Regimen",
    "Seed",
    "SeedFault",
    "Slot",
    "Slots",
    "Snapshot",
    "Terrain",
    "Transition",
    "Variety",
    "audition",
    "derive_seed",
    "describe",
    "device_of",
    "disturbed",
    "draws_of",
    "draws_of_variety",
    "each_left_out",
    "graft",
    "heard",
    "host_parameters",
    "implant",
    "in_words",
    "is_grafted",
    "observe",
    "paired",
    "read_gain",
    "read_health",
    "read_network",
    "slots_of",
    "summed",
    "told",
    "unfit",
    "without_folders",
]
