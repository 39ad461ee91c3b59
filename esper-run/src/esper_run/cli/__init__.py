"""The command line. ``main`` is the command ``esper``; each of its commands is imported when it is typed.

What is here:
    main: finds and runs a command, also one of another package, and exits with a status.
    run: ``esper run`` and ``esper resume``.
    configuration: ``esper check``.
    plugins: ``esper plugins`` and ``esper components``.
    runs: ``esper runs``.
    exits: ends the process with the command's own status, whatever components do.
    output: tables, problems and JSON, and the tables of results at the end of a run.
    plain_progress: the lines that a run prints.
    page_beside: the page of a run that another process serves.

``esper --help`` imports only ``main``, ``exits`` and ``output``. Other packages add commands by the entry points
``esper.commands``.
"""

from esper_run.cli.main import main

__all__ = ["main"]
