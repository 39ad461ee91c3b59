"""Hostile plugins: seeds are contained in their worker; what else hangs, crashes or exits ends in bounded time, named.

Each row puts a few lines of code at a place of one plugin, ``hostile.py``, which is harmless otherwise. Rows of seeds
act in different environments, so that several share a run. A run of the harmless plugin is what all are compared with.
"""

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from esper_run.watchdog import can_fork
from tests.support.hostile_plugin import RUN, line_of, plugin

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_fork(), reason="workers are forked on Linux, without an accelerator"),
]


class World:
    """Runs the plugin, in a folder of its own, in other processes."""

    def __init__(self, processes: Any, folder: Path) -> None:
        self._processes, self.folder = processes, folder
        folder.mkdir(exist_ok=True)

    def call(self, text: str, *arguments: str, engine: str = "processes", seconds: float = 60.0) -> int:
        """Return the exit status of a command with this plugin."""
        (self.folder / "run.yaml").write_text(RUN)
        (self.folder / "hostile.py").write_text(text)
        command, *options = arguments
        self._processes.start(command, *options, "--quiet", "--engine", engine, cwd=self.folder)
        status: int = self._processes.wait(seconds)
        return status

    @property
    def said(self) -> str:
        return str(self._processes.err)

    @property
    def path(self) -> Path | None:
        """The run directory, if there is one."""
        return next((self.folder / "runs").glob("*"), None)

    @property
    def manifest(self) -> Any:
        assert self.path is not None
        return json.loads((self.path / "manifest.json").read_text())

    def wait_for(self, reached: Callable[[], object]) -> None:
        """Wait for what the process beside the run writes."""
        self._processes.wait_for(reached)

    def results(self) -> Any:
        assert self.path is not None
        return json.loads((self.path / "summary.json").read_text())["results"]

    def courses(self) -> dict[tuple[str, int], list[Any]]:
        """Return the events of each environment, by its arm and RNG seed."""
        assert self.path is not None
        events = defaultdict(list)
        for line in (self.path / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if "seed" in event:
                events[event["arm"], event["seed"]].append(event)
        return dict(events)


@pytest.fixture(scope="module")
def calm(processes: Any, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The run of the harmless plugin."""
    world = World(processes, tmp_path_factory.mktemp("calm") / "world")
    assert world.call(plugin(), "run", "run.yaml") == 0, world.said
    assert len(world.courses()) == 8
    return world


@dataclass(frozen=True)
class Row:
    """Code at a place of the plugin, outside of seeds, and how a run with it ends.

    Attributes:
        status: The exit status of ``esper run``; 0: the run goes on without the component, or as if nothing had been.
        says: What stderr says; None: nothing needs to be said.
    """

    place: str
    code: str
    status: int
    says: str | None = "hostile.py:"
    engine: str = "processes"

    def __str__(self) -> str:
        return f"{self.place}: {self.code}"


HANG, DEADLOCK, NULL, LEAVE = "time.sleep(600)", "deadlock()", "read_null()", "os._exit(0)"
FAILS, PLUGIN_FAILS, CRASHES, KILLED = 1, 3, -signal.SIGSEGV, -signal.SIGKILL

HOOK = "outputs.register_hook(lambda gradient: {}) if STARTED and outputs.requires_grad else None"
SEEDS = {
    "hangs": [("training", HANG), ("factory", "while True: pass"), ("evaluation", "deadlock()")],
    "backward": [
        ("outputs", HOOK.format(HANG)),
        ("outputs", HOOK.format(NULL)),
        ("outputs", "outputs = Hostile.apply(outputs) if STARTED else outputs"),
    ],
    "crashes": [("factory", NULL), ("training", "os.abort()"), ("evaluation", NULL), ("state", NULL)],
    "exits": [
        *(("training", code) for code in (LEAVE, "os._exit(3)", "sys.exit('bye')")),
        ("parameters", "os._exit(1)"),
    ],
    "signals": [("training", f"kill(signal.{name})") for name in ("SIGKILL", "SIGUSR1", "SIGSTOP")],
    "errors": [
        ("training", "raise KeyboardInterrupt"),
        ("factory", "raise KeyboardInterrupt"),
        ("training", "raise GeneratorExit"),
        ("evaluation", "raise BaseException('no')"),
    ],
    "limits": [
        ("training", "recurse()"),
        ("training", "allocate()"),
        ("training", "kept = [os.open('/dev/null', 0) for _ in range(1 << 20)]"),
        ("training", "os.close(1); os.close(2); raise ValueError('no')"),
    ],
    "process": [
        ("training", "fork_and_forget(); os._exit(0)"),
        ("training", "signal.signal(signal.SIGUSR2, signal.SIG_IGN); deadlock()"),
        ("training", "builtins.isinstance = None"),
        ("training", "sys.modules.clear()"),
    ],
}
"""What is put into the first seeds, by the name of the run."""

HARMLESS = [
    ("training", "os.fork()"),
    ("training", "fork_and_forget(); kill(signal.SIGTERM); kill(signal.SIGINT)"),
    ("training", "[threading.Thread(target=time.sleep, args=(5,)).start() for _ in range(50)]"),
    (
        "training",
        "os.chdir('/'); os.environ.clear(); gc.disable(); sys.stdout = sys.stderr = None\n"
        "warnings.simplefilter('error'); np.random.seed(1); signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    ),
]
"""What seeds may do to their worker without being lost."""

TRACED = 'hostile.py", line '
"""What a traceback says of the plugin."""

ROWS = [
    *(Row(place, HANG, KILLED, TRACED) for place in ("act", "learn", "reward", "step", "health", "configured")),
    *(Row(place, HANG, KILLED, TRACED) for place in ("stage", "finished")),
    *(Row(place, HANG, FAILS, TRACED) for place in ("host", "losses", "schedule")),
    Row("hear", HANG, 0, "did not close within 15 seconds and is abandoned"),
    Row("act", DEADLOCK, KILLED, TRACED, engine="threads"),
    *(Row(place, HANG, KILLED, TRACED, engine="threads") for place in ("scores", "step")),
    *(Row("step", DEADLOCK, KILLED, TRACED, engine=engine) for engine in ("processes", "threads")),
    *(Row(place, NULL, CRASHES, TRACED) for place in ("act", "hear", "step")),
    Row("host", NULL, CRASHES, TRACED, engine="threads"),
    Row("host", NULL, FAILS, TRACED),
    Row("losses", LEAVE, FAILS, 'exited with code 0 in "reset"; at work was host "hostile/host"'),
    *(Row(place, "sys.exit(0)", PLUGIN_FAILS) for place in ("registration", "task", "reward", "health", "schedule")),
    *(Row(place, "raise KeyboardInterrupt", 0) for place in ("step", "settle", "close")),
    *(Row(place, "raise KeyboardInterrupt", PLUGIN_FAILS) for place in ("act", "losses", "host")),
    Row("act", "kill(signal.SIGKILL)", KILLED, None),
    Row("act", "kill(signal.SIGTERM)", 143, "interrupted by signal 15"),
    Row("act", "allocate()", PLUGIN_FAILS),
    Row("act", "os.makedirs('gone'); os.chdir('gone'); os.rmdir('../gone')", 0, None),
    Row("step", "shutil.rmtree('runs')", FAILS, "E410 cannot write"),
    Row("hear", "print('x' * 5_000_000)", 0, None),
]


STUCK = {HANG: HANG, DEADLOCK: "library.pthread_mutex_lock(mutex)"}
"""The line at which code hangs."""


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_are_lost_and_change_no_other_environment(name: str, processes: Any, calm: World, tmp_path: Path) -> None:
    rows, world = SEEDS[name], World(processes, tmp_path)
    status = world.call(plugin(blocks=dict(enumerate(rows))), "run", "run.yaml")
    lost = [event for course in world.courses().values() for event in course if event["type"] == "seed-lost"]
    assert status == PLUGIN_FAILS, world.said  # each blueprint has one seed
    assert "E320 no seed of a blueprint survived" in world.said
    lost_seeds = sorted((event["arm"], event["seed"], event["blueprint"]) for event in lost)
    assert lost_seeds == [("own", number, f"hostile/b{number}") for number in range(len(rows))]
    assert all(event["package"].startswith("local file") for event in lost)
    assert world.manifest["status"] == "done"
    assert differing(world, calm) == {("own", number) for number in range(len(rows))}


def test_seeds_that_meddle_with_their_worker_change_nothing(processes: Any, calm: World, tmp_path: Path) -> None:
    text, alone = plugin(blocks=dict(enumerate(HARMLESS))), ("run", "run.yaml", "--set", "compute.fused=false")
    world = World(processes, tmp_path / "group")
    assert world.call(text, "run", "run.yaml") == 0, world.said
    assert differing(world, calm) == {("own", 3)}, "who draws from NumPy's generator trains apart, with other rounding"
    world, undisturbed = (World(processes, tmp_path / name) for name in ("alone", "undisturbed"))
    assert [world.call(text, *alone), undisturbed.call(plugin(), *alone)] == [0, 0], world.said
    assert differing(world, undisturbed) == set()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_runs_elsewhere_ends_in_bounded_time_and_is_named(row, processes, calm, tmp_path) -> None:
    """A run that it ended is resumed with a mended plugin, to the results of one that was never disturbed."""
    world, text = World(processes, tmp_path), plugin({row.place: row.code})
    assert world.call(text, "run", "run.yaml", engine=row.engine) == row.status, world.said
    if row.says is not None:
        world.wait_for(lambda: str(row.says) in world.said)
    if world.path is None:
        return
    if row.status == KILLED and row.code in STUCK:
        assert "E406 the run stood still for 5 seconds" in world.said
        for line in {line_of(STUCK[row.code], text), line_of(row.code, text)}:
            assert f'hostile.py", line {line} in ' in world.said
            assert f'hostile.py", line {line} in ' in (world.path / "log.txt").read_text()
    if row.status == CRASHES:
        world.wait_for(lambda: world.manifest["status"] == "failed")
    if row.status == 0 or row.place == "finished":
        assert world.manifest["status"] == "done"
    else:
        expected = {143: "interrupted"}.get(row.status, "failed" if row.says else "running")
        assert world.manifest["status"] == expected
        (world.path / "hostile.py").write_text(plugin())
        assert world.call(plugin(), "resume", str(world.path), engine=row.engine) == 0, world.said
    assert world.results() == calm.results()
    assert differing(world, calm) == set()


@pytest.mark.parametrize(
    ("place", "code", "engine", "status"),
    [
        ("losses", HANG, "processes", 128 + signal.SIGTERM),
        ("step", HANG, "threads", 128 + signal.SIGTERM),
        ("step", DEADLOCK, "threads", KILLED),
    ],
)
def test_a_signal_ends_a_run_that_hangs_within_its_grace(place, code, engine, status, processes, calm, tmp_path):
    """The last checkpoint stands, and the resumed run ends as one that was never disturbed."""
    world, marker = World(processes, tmp_path), tmp_path / "hangs"
    (tmp_path / "run.yaml").write_text(RUN.replace("patience: 5", "patience: 300\ngrace: 2"))
    (tmp_path / "hostile.py").write_text(plugin({place: f"open('hangs', 'w').close(); {code}"}))
    pid = processes.start("run", "run.yaml", "--quiet", "--engine", engine, cwd=tmp_path)
    processes.wait_for(marker.exists)
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    assert processes.wait(60.0) == status, world.said
    assert "interrupted by signal 15" in world.said
    assert time.monotonic() - began < 20  # 2 + 5 seconds where nothing else runs on the machine
    assert world.manifest["status"] == "interrupted"
    assert world.path is not None
    (world.path / "hostile.py").write_text(plugin())
    assert world.call(plugin(), "resume", str(world.path), engine=engine) == 0, world.said
    assert world.results() == calm.results()
    assert differing(world, calm) == set()


def differing(world: World, calm: World) -> set[tuple[str, int]]:
    """Return the environments that had another course, by arm and RNG seed."""
    actual, expected = world.courses(), calm.courses()
    return {key for key in expected | actual if actual.get(key) != expected.get(key)}
