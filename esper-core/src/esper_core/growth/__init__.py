"""Growth: slots in any model, the seeds in them, and how seeds are trained, judged and kept.

Begin with ``grafting`` (slots in a model), ``seeds`` and ``garden`` (what actions and time do to seeds).

    random_streams    independent random numbers
    dry_runs          run a model without leaving a trace; sites and dtypes of its modules
    seeds             a block, the operators that blend it in, its alpha
    serialization     values and tensors as a State and back
    slots             forward hooks in which seeds act
    journal           the record of what grew, also in state dicts
    grafting          put slots into a model
    optimizers        which optimizer owns and steps which parameter
    optimizer_steps   Adam steps, optimizer state, gradient statistics
    incubation        train a seed before it acts: shadow, branch
    gates             whether a seed's gain pays for its price; they judge, and ``garden`` acts
    transitions       which actions are legal; all-or-nothing changes
    rebuilding        build a grown network again from its journal; ``runs.networks`` reads the files
    garden            all seeds of one model: germinate, advance, prune and fossilise them, by an action or with time
    snapshots         copy a host, and restore it in a rollback, with the state of its optimizers
    counterfactuals   losses with seeds left out
    trials            check and describe blueprints before a run

Each module imports only from those above it. Policies choose the actions, and the trainer trains the host.
"""

from esper_core.config import GrowthConfig, OptimizerConfig
from esper_core.growth.counterfactuals import Counterfactuals
from esper_core.growth.dry_runs import KeptBuffers, device_of
from esper_core.growth.garden import Garden, Transition
from esper_core.growth.gates import NUMBERS, Gates, paired, read_gain
from esper_core.growth.grafting import graft, is_grafted, slots_of
from esper_core.growth.incubation import summed
from esper_core.growth.journal import Growth, read_network
from esper_core.growth.optimizer_steps import WIDTH, GradientCollector
from esper_core.growth.optimizers import OptimizerKeeper, OptimizerSettings
from esper_core.growth.random_streams import RandomStream, derive_seed, restore_torch_defaults
from esper_core.growth.rebuilding import implant
from esper_core.growth.seeds import Presence, Seed, SeedFault, Variety, describe_error, remove_folders
from esper_core.growth.serialization import decode_state, encode_state, state_mismatch
from esper_core.growth.slots import Slot, Slots, host_parameters, observe
from esper_core.growth.snapshots import Snapshot
from esper_core.growth.transitions import FaultBook
from esper_core.growth.trials import Draws, PlaceDescriptions, audition, describe, draws_of, draws_of_variety

__all__ = [
    "NUMBERS",
    "WIDTH",
    "Counterfactuals",
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
    "OptimizerSettings",
    "PlaceDescriptions",
    "Presence",
    "RandomStream",
    "Seed",
    "SeedFault",
    "Slot",
    "Slots",
    "Snapshot",
    "Transition",
    "Variety",
    "audition",
    "decode_state",
    "derive_seed",
    "describe",
    "describe_error",
    "device_of",
    "draws_of",
    "draws_of_variety",
    "encode_state",
    "graft",
    "host_parameters",
    "implant",
    "is_grafted",
    "observe",
    "paired",
    "read_gain",
    "read_network",
    "remove_folders",
    "restore_torch_defaults",
    "slots_of",
    "state_mismatch",
    "summed",
]
