"""Where does a run keep what it found? In one folder, of which nothing is pickled.

manifest.json        what ran: id, status, argv, times, exit, process, seeds (the first, and how many), machine, plugins
config.yaml          the configuration, resolved; it can be run as it is
config.source.yaml   what was written            overrides.txt   what --set said
config.base-1.yaml   what it is built on, if it is: config.base-2.yaml is the base of that, and so on
packages.txt         what was installed          git.patch       uncommitted changes, capped
events.jsonl         everything that happened, as it happened
checkpoints/  latest where it is, and what it takes to go on from there (runs.checkpoints)
growth.json          what each network grew into
summary.json         the figures of the end      log.txt         what was said on the way

Write files as a whole or not at all: beside their place, synced to the disk, and then renamed.

Who writes to a run directory? One process at a time: it holds the folder's lock for as long as it lives.

What is a run called? By when it began, and two words that a person can say.

Does a run that says that it is running still run? Its manifest names the process, by number and start.

Where does a run come from? The machine, the interpreter, the packages, and the state of the code.

Is installed what was installed when a run began? Other versions may give other numbers.
"""

from __future__ import annotations

import errno
import json
import math
import os
import weakref
import secrets
import platform
import shutil
import subprocess
import sys
from datetime import UTC
from datetime import datetime
from typing import TYPE_CHECKING
from typing import Any
from esper_core.leyline.constants import RUN_FORMAT
from esper_core.leyline.errors import Problem
from esper_core.leyline.errors import RunFolderError
from contextlib import contextmanager
from contextlib import suppress
from functools import partial
from typing import TextIO
from collections.abc import Mapping
from pathlib import Path
from dataclasses import dataclass
from importlib import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, or leave the one that is there. A link in its place is replaced, never followed.

    RunFolderError where the disk does not take it.
    """
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.part")
    with told_plainly(path):
        try:
            if os.path.lexists(beside):  # of a save that was cut off, or a link
                beside.unlink()
            with beside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise
        settle(path.parent)


def settle(folder: Path) -> None:
    """Have the disk know the folder's names too, where the system lets a folder be opened."""
    if hasattr(os, "O_DIRECTORY"):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def write_json(path: Path, value: Any) -> None:
    """Write JSON that every reader takes: numbers that are none are null, for JSON has no NaN."""
    write_whole(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """The value with text keys, lists for tuples, and null for NaN and infinities."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def told_plainly(path: Path) -> Iterator[None]:
    """A block whose OSErrors become one clear message about ``path``; a name with a zero in it is one too."""
    try:
        yield
    except OSError as error:
        raise RunFolderError.about(path, error) from error
    except ValueError as error:
        raise RunFolderError.about(path, OSError(errno.EINVAL, str(error))) from error


_MANNERS = """
bright calm clear crisp daring early eager fair gentle golden hardy humble keen late lively lucid
mellow merry mild mossy nimble patient plain proud quick quiet ready rosy sandy silent silver slow
snowy solid still stout sunny swift tidy upright vivid warm wild wise
""".split()  # noqa: SIM905
_CREATURES = """
acorn alder aspen badger beech birch bracken clover crane curlew elder fern finch gorse hare hazel
heron iris ivy juniper kestrel larch lark lichen linden lotus marten moss oak osprey otter pine
plover poplar reed robin rowan sedge sorrel sparrow swift thistle thrush vole willow wren yarrow yew
""".split()  # noqa: SIM905


def run_id(began: datetime, name: str | None = None) -> str:
    """``20261121-101512-quiet-otter``, or with ``name`` in place of the words."""
    return f"{began:%Y%m%d-%H%M%S}-{name or two_words()}"


def two_words() -> str:
    """A manner and a creature. Drawn from the system, so that no seed is touched."""
    return f"{secrets.choice(_MANNERS)}-{secrets.choice(_CREATURES)}"


PATCH_LIMIT = 1 << 20
"""Bytes of an uncommitted diff that are kept."""


@dataclass(frozen=True, slots=True)
class GitState:
    """The commit the run began on, whether files that git knows differed from it, and the difference."""

    sha: str
    dirty: bool
    patch: str


def machine() -> dict[str, Any]:
    """What computed, without a name by which the machine could be found."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "torch": installed("torch"),
        "esper-core": installed("esper-core"),
    }


def process() -> dict[str, int | None]:
    """Which process runs: whether it still lives tells a run that goes on from one that was killed.

    pid: its number. start: when it began, in clock ticks since the machine did, as field 22 of /proc/PID/stat tells it;
    None on a system without. Numbers are given anew: only both together are the same process.
    """
    return {"pid": os.getpid(), "start": _start(Path("/proc/self/stat"))}


def packages() -> list[str]:
    """``name==version`` of everything that is installed, sorted."""
    told = [distribution.metadata for distribution in metadata.distributions()]  # each is read and parsed here
    found = {f"{one['Name']}=={one['Version']}" for one in told if one["Name"]}
    return sorted(found, key=str.casefold)


def git_state(folder: Path) -> GitState | None:
    """The state of the repository that holds ``folder``; None where there is none, or no git."""
    if shutil.which("git") is None:
        return None
    sha = _git(folder, "rev-parse", "HEAD")
    if not sha:
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no") or ""
    patch = _git(folder, "diff", "HEAD") or ""
    return GitState(sha.strip(), bool(status.strip()), patch[:PATCH_LIMIT])


def _start(stat: Path) -> int | None:
    try:
        told = stat.read_text()
    except OSError:
        return None
    return int(told.rpartition(")")[2].split()[19])


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def installed(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


STATUS_RUNNING = "running"


class RunDirectory:
    """One run's folder. The manifest is rewritten whole whenever the run's status changes."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def create(cls, root: Path, *, name: str | None, argv: list[str]) -> RunDirectory:
        """A new folder below ``root``, with its first manifest in it; RunFolderError where there can be none."""
        began = datetime.now(UTC)
        with told_plainly(root):
            root.mkdir(parents=True, exist_ok=True)
        for _ in range(100):
            path = root / run_id(began.astimezone(), name)
            with told_plainly(path):
                try:
                    path.mkdir()
                except FileExistsError:
                    name = None if name is None else f"{name}-again"
                    continue
            directory = cls(path, _first_manifest(path.name, argv, began))
            directory._write_manifest()
            return directory
        raise RunFolderError(Problem("E411", f"no free name for a run in {root}"))

    def resume(self, argv: list[str], checkpoint: int | None) -> None:
        """Write down that the run goes on, from which checkpoint (None: from the start), and in which process."""
        now = {"at": _now(), "argv": argv, "checkpoint": checkpoint, "after": self.manifest.get("status")}
        resumed = [*self.manifest.get("resumed", []), now]
        fresh = {"status": STATUS_RUNNING, "exit": None, "finished": None, "process": process(), "machine": machine()}
        self.manifest = {**self.manifest, **fresh, "resumed": resumed}
        self.manifest.pop("reason", None)
        self._write_manifest()

    def begin(self, *, config: str, source: bytes, overrides: list[str], seeds: dict[str, int], plugins: Any) -> None:
        """Write down what is about to run."""
        state = git_state(self.path)
        self.manifest |= {
            "seeds": seeds,
            "plugins": plugins,
            "git": None if state is None else {"sha": state.sha, "dirty": state.dirty},
        }
        self.write("config.yaml", config)
        self.write("config.source.yaml", source)
        if overrides:
            self.write("overrides.txt", "\n".join(overrides) + "\n")
        self.write("packages.txt", "\n".join(packages()) + "\n")
        if state is not None and state.patch:
            self.write("git.patch", state.patch)
        self._write_manifest()

    def finish(self, *, status: str, exit_code: int, reason: str = "") -> None:
        """Write down how the run ended."""
        self.manifest |= {
            "status": status,
            "exit": exit_code,
            "reason": reason,
            "finished": _now(),
        }
        self._write_manifest()

    def write(self, name: str, content: str | bytes) -> None:
        """Write one file whole."""
        write_whole(self.path / name, content)

    def write_json(self, name: str, value: Any) -> None:
        """Write one JSON file whole."""
        write_json(self.path / name, value)

    def _write_manifest(self) -> None:
        write_json(self.path / "manifest.json", self.manifest)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _first_manifest(id_: str, argv: list[str], began: datetime) -> dict[str, Any]:
    return {
        "format": RUN_FORMAT,
        "id": id_,
        "status": STATUS_RUNNING,
        "argv": argv,
        "started": began.isoformat(timespec="seconds"),
        "finished": None,
        "exit": None,
        "process": process(),
        "machine": machine(),
    }


try:
    import fcntl
except ImportError:  # Windows has another way, which nobody has needed so far
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def held(run: Path) -> Iterator[None]:
    """A block in which the run directory is this process's; RunFolderError where it is another's.

    The system lets go of the lock when the process is gone, however it went. A fork of it has no part in the lock.
    """
    path = run / LOCK
    with told_plainly(path):
        lock = path.open("a+")
    with lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                owner = lock.read().strip()
                message = f"{run} is in use by another process" + (f" ({owner})" if owner else "")
                hint = "Wait for it to end, or stop it: Ctrl-C lets it finish its step and write a checkpoint."
                raise RunFolderError(Problem("E412", message, hint=hint)) from error
            os.register_at_fork(after_in_child=partial(_let_go, weakref.ref(lock)))
        with told_plainly(path):
            lock.truncate(0)
            lock.write(f"process {os.getpid()}\n")
            lock.flush()
        yield


def _let_go(lock: weakref.ref[TextIO]) -> None:
    """In a fork: be no reason for which the lock stays when its process is gone."""
    if (own := lock()) is not None:
        own.close()


def is_alive(process: Any) -> bool:
    """Whether the process that a manifest names is there: ``{"pid": 23568, "start": 3382413}``.

    A number is given anew when its process is gone, and after the machine was started anew; then the start is another.
    Where the system does not tell starts, a process of that number counts. A run that goes on on another machine, which
    shares the disk, looks as if it had died.
    """
    if not isinstance(process, Mapping):
        return False
    pid, start = process.get("pid"), process.get("start")
    if type(pid) is not int or not 0 < pid < 2**31:
        return False
    stat = Path(f"/proc/{pid}/stat")
    if start is None or not Path("/proc/self/stat").exists():
        return _exists(pid)
    try:
        told = stat.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return told[0] not in "ZX" and told[19] == str(start)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def changed_packages(manifest: Mapping[str, Any], run: Path) -> Iterator[str]:
    """A warning for each package that the run's numbers hang on, and that has another version now."""
    before = {"torch": manifest["machine"].get("torch"), "esper-core": manifest["machine"].get("esper-core")}
    before |= {plugin["package"]: plugin["version"] for plugin in manifest.get("plugins", [])}
    for package, version in before.items():
        now = installed(package)
        if version is not None and now is not None and now != version:
            yield f"{run.name} began with {package} {version}, and goes on with {now}: its numbers may be others"
