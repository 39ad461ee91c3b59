from .averages import Averages as Averages, RunningAverage as RunningAverage, take_in as take_in
from .dry_runs import (
    KeptBuffers as KeptBuffers,
    device_of as device_of,
    dtype_of as dtype_of,
    in_mode as in_mode,
    is_pointwise as is_pointwise,
)
from .examples import (
    Example as Example,
)
from .garden import Garden as Garden, Transition as Transition
from .gates import (
    Gates as Gates,
    compare_losses as compare_losses,
    paired as paired,
    read_gain as read_gain,
)
from .grafting import (
    graft as graft,
    plain_class as plain_class,
    ungraft as ungraft,
)
from .hosts import Host as Host
from .incubation import Branch as Branch
from .journal import (
    Growth as Growth,
    Network as Network,
)
from .optimizer_steps import (
    MOMENTS as MOMENTS,
    AdamSettings as AdamSettings,
    GradientCollector as GradientCollector,
    begun_state as begun_state,
    is_fast as is_fast,
)
from .optimizers import (
    OptimizerKeeper as OptimizerKeeper,
    OptimizerSettings as OptimizerSettings,
    OwnedParameters as OwnedParameters,
)
from .prices import Prices as Prices, SeedPrices as SeedPrices
from .random_streams import (
    RandomStream as RandomStream,
    derive_seed as derive_seed,
)
from .rebuilding import (
    implant as implant,
)
from .seeds import (
    Alpha as Alpha,
    Presence as Presence,
    Seed as Seed,
    SeedFault as SeedFault,
    Variety as Variety,
    describe_error as describe_error,
)
from .serialization import (
    decode_state as decode_state,
    encode_state as encode_state,
    state_mismatch as state_mismatch,
)
from .slots import (
    Slot as Slot,
    Slots as Slots,
    host_layers as host_layers,
    host_parameters as host_parameters,
    is_grafted as is_grafted,
    observe as observe,
    slots_of as slots_of,
)
from .snapshots import Snapshot as Snapshot
from .transitions import FaultBook as FaultBook
from .trials import (
    Draws as Draws,
    draws_of as draws_of,
    draws_of_variety as draws_of_variety,
)
