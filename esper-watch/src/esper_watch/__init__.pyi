from .history import History as History
from .history import SeedLife as SeedLife
from .history import Step as Step
from .history import read_history as read_history
from .report import write_picture as write_picture
from .report import write_report as write_report
