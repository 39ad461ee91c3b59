from .app.run import (
    run as run,
)
from .growth import (
    graft as graft,
)
from .hooks import (
    hookimpl as hookimpl,
)
from .leyline import (
    BlueprintSpec as BlueprintSpec,
)
from .leyline import (
    EsperError as EsperError,
)
from .leyline import (
    HostSpec as HostSpec,
)
from .leyline import (
    PluginInfo as PluginInfo,
)
from .leyline import (
    Policy as Policy,
)
from .leyline import (
    PolicySpec as PolicySpec,
)
from .leyline import (
    Reward as Reward,
)
from .leyline import (
    RewardSpec as RewardSpec,
)
from .leyline import (
    ScheduleSpec as ScheduleSpec,
)
from .leyline import (
    SinkSpec as SinkSpec,
)
from .leyline import (
    Site as Site,
)
from .leyline import (
    SlotPlace as SlotPlace,
)
from .leyline import (
    Task as Task,
)
from .leyline import (
    TaskSpec as TaskSpec,
)
from .runs.networks import (
    load as load,
)
from .runs.networks import (
    save as save,
)
from .runs.records import (
    Run as Run,
)
from .runs.records import (
    load_run as load_run,
)
from .telemetry import (
    read_events as read_events,
)

__version__: str
