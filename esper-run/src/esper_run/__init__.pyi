from .app.run import (
    run as run,
)
from .runs.records import (
    Run as Run,
    load_run as load_run,
    read_events as read_events,
)

__version__: str
