from .history import History as History, SeedLife as SeedLife, read_history as read_history
from .report import write_report as write_report
