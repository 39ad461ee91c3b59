from .app.run import (
    run as run,
)
from .gardener import (
    Gardener as Gardener,
)
from .growth import (
    graft as graft,
    ungraft as ungraft,
)
from .hooks import (
    hookimpl as hookimpl,
)
from .leyline import (
    BlueprintSpec as BlueprintSpec,
    EsperError as EsperError,
    HostSpec as HostSpec,
    PluginInfo as PluginInfo,
    Policy as Policy,
    PolicySpec as PolicySpec,
    Reward as Reward,
    RewardSpec as RewardSpec,
    ScheduleSpec as ScheduleSpec,
    SinkSpec as SinkSpec,
    Site as Site,
    SlotPlace as SlotPlace,
    Task as Task,
    TaskSpec as TaskSpec,
)
from .probes import (
    probe as probe,
)
from .runs.exports import (
    export as export,
)
from .runs.networks import (
    load as load,
    save as save,
)
from .runs.records import (
    Run as Run,
    load_run as load_run,
)
from .telemetry import (
    read_events as read_events,
)

__version__: str
