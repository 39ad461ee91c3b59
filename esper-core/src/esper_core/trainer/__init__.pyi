from .event_records import Ending as Ending
from .loop import Stepper as Stepper
from .network import GrowingNetwork as GrowingNetwork, NetworkSettings as NetworkSettings
from .pool import Phases as Phases
from .study import Arm as Arm
