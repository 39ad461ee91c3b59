"""Run ``esper`` in forked processes: one request per line on stdin, as JSON; process id and exit status on stdout.

Everything is imported once and nothing is computed before a fork, so that a new process starts in milliseconds.

    argv:     the arguments of the command
    out, err: files for stdout and stderr, which may be pipes; null for the terminal
    terminal: path of the controlling terminal, or null
    cwd:      the working directory
    env:      environment variables to set
    ignored:  names of signals to ignore; all others have their default handlers
"""

import gc
import json
import os
import signal
import sys
from typing import Any

import esper_run.app.compose
import esper_run.app.run
import esper_run.cli.run  # noqa: F401
from esper_core.plugins import load_plugins
from esper_run.cli.main import main
from esper_watch.pages import _environment


def serve() -> None:
    load_plugins()
    pages = _environment()
    for name in pages.list_templates():
        pages.get_template(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that holds an object
    print("ready", flush=True)
    for line in sys.stdin:
        opened, opening = os.pipe()
        pid = os.fork()
        if pid == 0:
            command(json.loads(line), opening)
        os.close(opening)
        os.read(opened, 1)  # returns when the new process has opened its files
        os.close(opened)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def command(request: dict[str, Any], opening: int) -> None:
    """Become the process of one command. ``opening`` is closed when its files are open."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        default = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
        signal.signal(getattr(signal, name), signal.SIG_IGN if name in request["ignored"] else default)
    if request["terminal"]:
        os.setsid()  # so that the terminal becomes the controlling one
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    terminal, null_device = request["terminal"], os.devnull
    os.dup2(os.open(terminal or null_device, os.O_RDWR), 0)
    for number, file in ((1, request["out"]), (2, request["err"])):
        os.dup2(os.open(file, os.O_WRONLY) if file else 0, number)
    os.close(opening)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    sys.argv = ["esper", *request["argv"]]
    main(request["argv"])


if __name__ == "__main__":
    serve()
