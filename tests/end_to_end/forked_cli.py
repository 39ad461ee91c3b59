"""Runs esper's command line in forked processes, one for each line that it reads: arguments as JSON. Tells their pids.

Everything is imported once, and nothing computed: a fork costs milliseconds, and is a process as good as any.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import esper_core.app.compose
import esper_core.app.run
import esper_core.cli.output  # noqa: F401  warmed up
from esper_core.cli.main import main
from esper_core.plugins import load_plugins


def serve() -> None:
    load_plugins()
    gc.collect()
    gc.freeze()  # or each fork would copy every page in which an object lies
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            out = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.argv = ["esper", *asked["argv"]]
            os._exit(main(asked["argv"]))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
