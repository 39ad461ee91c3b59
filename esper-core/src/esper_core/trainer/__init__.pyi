from .environment import (
    Recipe as Recipe,
)
from .event_records import (
    Ending as Ending,
    LostSeeds as LostSeeds,
)
from .growing_network import GrowingNetwork as GrowingNetwork, NetworkSettings as NetworkSettings
from .loop import (
    Stepper as Stepper,
    run_study as run_study,
)
from .pool import (
    Phases as Phases,
    Pool as Pool,
)
from .rollouts import (
    EpisodeRewards as EpisodeRewards,
)
from .roster import (
    StudyPool as StudyPool,
)
from .study import (
    Arm as Arm,
    RunReward as RunReward,
    Study as Study,
)
from .study_position import (
    StudyPosition as StudyPosition,
)
