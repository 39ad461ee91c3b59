from .adaptation import adapters as adapters, disable_adapters as disable_adapters
from .exports import (
    export as export,
)
from .gardener import (
    Gardener as Gardener,
    graft as graft,
    ungraft as ungraft,
)
from .network_files import (
    load as load,
    save as save,
)
from .probes import (
    probe as probe,
)

__version__: str
