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

__version__: str
