from .adaptation import (
    adapters as adapters,
    disable_adapters as disable_adapters,
    name_adapters as name_adapters,
    use_adapters as use_adapters,
)
from .exports import (
    export as export,
)
from .gardener import (
    Gardener as Gardener,
    graft as graft,
    prune as prune,
    ungraft as ungraft,
)
from .network_files import (
    load as load,
    load_best as load_best,
    save as save,
)
from .probes import (
    AdapterPlan as AdapterPlan,
    place_adapters as place_adapters,
    probe as probe,
    read_plan as read_plan,
)

__version__: str
