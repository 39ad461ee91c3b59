from .actions import (
    ARGUMENTS as ARGUMENTS,
)
from .actions import (
    WAIT as WAIT,
)
from .actions import (
    Action as Action,
)
from .actions import (
    ActionMask as ActionMask,
)
from .actions import (
    ActionSpace as ActionSpace,
)
from .actions import (
    Blend as Blend,
)
from .actions import (
    Curve as Curve,
)
from .actions import (
    Op as Op,
)
from .errors import (
    ConfigError as ConfigError,
)
from .errors import (
    EsperError as EsperError,
)
from .errors import (
    GovernorStop as GovernorStop,
)
from .errors import (
    GraftError as GraftError,
)
from .errors import (
    GrowthError as GrowthError,
)
from .errors import (
    Interrupted as Interrupted,
)
from .errors import (
    LifecycleError as LifecycleError,
)
from .errors import (
    PluginError as PluginError,
)
from .errors import (
    Problem as Problem,
)
from .errors import (
    RunFolderError as RunFolderError,
)
from .errors import (
    SettingError as SettingError,
)
from .lifecycle import (
    SeedEvent as SeedEvent,
)
from .lifecycle import (
    SlotEvent as SlotEvent,
)
from .lifecycle import (
    SlotState as SlotState,
)
from .lifecycle import (
    Stage as Stage,
)
from .observations import (
    CANDIDATE_COLUMNS as CANDIDATE_COLUMNS,
)
from .observations import (
    GLOBAL_COLUMNS as GLOBAL_COLUMNS,
)
from .observations import (
    SCHEMA as SCHEMA,
)
from .observations import (
    SLOT_COLUMNS as SLOT_COLUMNS,
)
from .observations import (
    Rows as Rows,
)
from .observations import (
    rows_of as rows_of,
)
from .protocols import (
    DataShape as DataShape,
)
from .protocols import (
    FollowsPlan as FollowsPlan,
)
from .protocols import (
    Learner as Learner,
)
from .protocols import (
    Played as Played,
)
from .protocols import (
    PluginConfig as PluginConfig,
)
from .protocols import (
    Policy as Policy,
)
from .protocols import (
    Registrar as Registrar,
)
from .protocols import (
    ReportSection as ReportSection,
)
from .protocols import (
    Resumable as Resumable,
)
from .protocols import (
    Reward as Reward,
)
from .protocols import (
    Rollout as Rollout,
)
from .protocols import (
    RunContext as RunContext,
)
from .protocols import (
    RunInfo as RunInfo,
)
from .protocols import (
    RunOutcome as RunOutcome,
)
from .protocols import (
    Schedule as Schedule,
)
from .protocols import (
    Sink as Sink,
)
from .protocols import (
    Split as Split,
)
from .protocols import (
    SplitName as SplitName,
)
from .protocols import (
    State as State,
)
from .protocols import (
    Task as Task,
)
from .protocols import (
    Turn as Turn,
)
from .signals import (
    CALM as CALM,
)
from .signals import (
    Evidence as Evidence,
)
from .signals import (
    Finding as Finding,
)
from .signals import (
    Gain as Gain,
)
from .signals import (
    GradientHealth as GradientHealth,
)
from .signals import (
    HealthSnapshot as HealthSnapshot,
)
from .signals import (
    Level as Level,
)
from .signals import (
    Metric as Metric,
)
from .signals import (
    Observation as Observation,
)
from .signals import (
    Opinion as Opinion,
)
from .signals import (
    RewardBreakdown as RewardBreakdown,
)
from .signals import (
    SeedSignals as SeedSignals,
)
from .signals import (
    Signals as Signals,
)
from .signals import (
    SlotSignals as SlotSignals,
)
from .signals import (
    Verdict as Verdict,
)
from .specs import (
    BlueprintSpec as BlueprintSpec,
)
from .specs import (
    Candidate as Candidate,
)
from .specs import (
    ComponentKind as ComponentKind,
)
from .specs import (
    HostSpec as HostSpec,
)
from .specs import (
    Operations as Operations,
)
from .specs import (
    Place as Place,
)
from .specs import (
    PluginInfo as PluginInfo,
)
from .specs import (
    PolicySpec as PolicySpec,
)
from .specs import (
    RewardSpec as RewardSpec,
)
from .specs import (
    ScheduleSpec as ScheduleSpec,
)
from .specs import (
    SinkSpec as SinkSpec,
)
from .specs import (
    Site as Site,
)
from .specs import (
    SiteKind as SiteKind,
)
from .specs import (
    SlotPlace as SlotPlace,
)
from .specs import (
    Spec as Spec,
)
from .specs import (
    TaskSpec as TaskSpec,
)
