"""The run directory: create it, lock it, write its files atomically, and record how the run began and ended.

manifest.json        id, status, command line, times, exit code, process, seeds, machine, plugins, SHA-256 of the data;
                     in the end that of the next two files
growth.json          what grew in each network
networks/            the best network of each arm, in validation (see ``runs.network_files``)
summary.json         the results, and the length and SHA-256 of events.jsonl
config.yaml          the resolved configuration, which can be run as it is
config.source.yaml   the configuration file as it was written           overrides.txt   the values of --set
packages.txt         the installed packages          git.patch           uncommitted changes, up to a limit
events.jsonl         every event of the run
checkpoints/  latest the state to resume from (see ``runs.checkpoint_files``)
log.txt              the log of the run

Nothing in it is pickled. One process at a time holds the directory's lock; a run whose status is "running" and whose
lock is free has died.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
import sys
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from pydantic_core import to_jsonable_python

from esper_core.leyline.constants import RUN_FORMAT
from esper_core.leyline.errors import Problem, RunFolderError
from esper_core.leyline.files import open_regular, read_bytes, refuse_special

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STATUS_RUNNING = "running"
PATCH_LIMIT = 1 << 20
"""Largest number of bytes of uncommitted changes that are kept."""

_LOCK = ".lock"
_LOCK_SECONDS = 0.5
"""How long to wait for the lock, which a reader may hold for a moment to see whether the run is alive."""

_ADJECTIVES = """
bright calm clear crisp early fair gentle golden keen late lively mellow mild nimble patient proud quiet
quick ready silver slow snowy sunny swift tidy vivid warm wild wise
""".split()  # noqa: SIM905
_NOUNS = """
alder aspen badger birch clover crane curlew elder fern finch hare hazel heron iris juniper lark linden lotus
moss oak osprey otter pine poplar reed robin sparrow thistle thrush willow wren yarrow
""".split()  # noqa: SIM905


class RunDirectory:
    """One run's folder. The manifest is rewritten whenever the run's status changes."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def create(
        cls, root: Path, *, name: str | None, argv: list[str], is_free: Callable[[Path], bool] = lambda path: True
    ) -> RunDirectory:
        """Create a folder for a new run below ``root`` and write its first manifest.

        Args:
            root: Folder of the runs.
            name: What the id of the run ends with; None: two random words.
            argv: The command.
            is_free: Returns whether the run may have the id that this folder has.

        Raises:
            RunFolderError: the folder cannot be created.
        """
        with report_os_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        for _ in range(100):
            path = root / new_run_id(datetime.now(UTC).astimezone(), name)
            with report_os_errors(path):
                try:
                    path.mkdir()
                    _give_up_unless(is_free, path)
                except FileExistsError:
                    name = None if name is None else f"{name}-again"
                    continue
            manifest = {"format": RUN_FORMAT, "id": path.name, "argv": argv, "started": _now()}
            directory = cls(path, manifest)
            directory._begin_process()
            return directory
        raise RunFolderError(Problem("E411", f"found no free name for a run in {root}"))

    def resume(self, argv: list[str], checkpoint: int | None) -> None:
        """Record that the run is resumed by this process, from a checkpoint or from the start (None)."""
        now = {"at": _now(), "argv": argv, "checkpoint": checkpoint, "after": self.manifest.get("status")}
        self.manifest["resumed"] = [*self.manifest.get("resumed", []), now]
        self.manifest.pop("reason", None)
        self._begin_process()

    def begin(self, *, config: str, source: bytes, overrides: list[str], **facts: Any) -> None:
        """Record what is about to run; ``facts`` are for the manifest."""
        git, patch = git_state(self.path)
        self.manifest |= {**facts, "git": git}
        self.write("config.yaml", config)
        self.write("config.source.yaml", source)
        if overrides:
            self.write("overrides.txt", "\n".join(overrides) + "\n")
        self.write("packages.txt", "\n".join(installed_packages()) + "\n")
        if patch:
            self.write("git.patch", patch)
        self._write_manifest()

    def add_node(self, node: Mapping[str, Any]) -> None:
        """Record what is installed on machines of a cluster that compute for the run, once for equal ones."""
        if node not in (nodes := self.manifest.setdefault("nodes", [])):
            nodes.append(node)
            self._write_manifest()

    def write_results(self, episodes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
        """Write growth.json, which says what grew in each episode, and summary.json.

        The manifest gets their SHA-256 when the run finishes.
        """
        files = {"growth.json": {"format": 1, "episodes": episodes}, "summary.json": summary}
        texts = {name: json_text(content) for name, content in files.items()}
        for name, text in texts.items():
            self.write(name, text)
        sums = {name: sha256(text.encode()).hexdigest() for name, text in texts.items()}
        with suppress(OSError):  # the report shows it, too
            sums["config.yaml"] = sha256(read_bytes(self.path / "config.yaml")).hexdigest()
        self.manifest["sha256"] = sums

    def finish(self, *, status: str, exit_code: int, reason: str = "") -> None:
        """Record how the run ended."""
        self.manifest |= {"status": status, "exit": exit_code, "reason": reason, "finished": _now()}
        self._write_manifest()

    def write(self, name: str, content: str | bytes) -> None:
        """Write one file atomically."""
        write_atomically(self.path / name, content)

    def _begin_process(self) -> None:
        origin = {"process": {"pid": os.getpid()}, "machine": machine()}
        self.manifest |= {"status": STATUS_RUNNING, "exit": None, "finished": None, **origin}
        self._write_manifest()

    def _write_manifest(self) -> None:
        write_json(self.path / "manifest.json", self.manifest)


def _give_up_unless(is_free: Callable[[Path], bool], path: Path) -> None:
    """Remove a folder that was just made and raise FileExistsError, unless the run may have its id."""
    is_ours = False
    try:
        is_ours = is_free(path)
    finally:
        if not is_ours:
            path.rmdir()
    if not is_ours:
        raise FileExistsError(path)


@contextmanager
def run_lock(run: Path) -> Iterator[None]:
    """Hold the lock of a run directory, which the system releases when the process dies.

    Raises:
        RunFolderError: E412, another process holds it; E410, it cannot be written.
    """
    path = run / _LOCK
    lock = FileLock(path, timeout=_LOCK_SECONDS)
    with report_os_errors(path):
        refuse_special(path)
        try:
            lock.acquire()
        except Timeout as error:
            message = f"{run} is in use by another process"
            hint = f"Wait for it to end, or stop it with Ctrl-C. {run / 'manifest.json'} has its process id."
            raise RunFolderError(Problem("E412", message, hint=hint)) from error
    try:
        yield
    finally:
        lock.release()


def is_locked(run: Path) -> bool:
    """Return whether a process holds the lock of a run directory. Nothing is written there."""
    path = run / _LOCK
    try:
        with open_regular(path) as file:
            if fcntl is None:
                with FileLock(path, timeout=0):
                    return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, Timeout):
        return True
    except (OSError, ValueError):  # there is no lock file, or none that can be locked
        return False
    return False


def new_run_id(began: datetime, name: str | None = None) -> str:
    """Return an id such as ``20261121-101512-quiet-otter``, or with ``name`` in place of two random words.

    They are drawn from the system's random numbers, so that no seeded generator is used.
    """
    return f"{began:%Y%m%d-%H%M%S}-{name or f'{secrets.choice(_ADJECTIVES)}-{secrets.choice(_NOUNS)}'}"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file beside its place, flush it to disk and rename it. A link in its place is replaced, not followed.

    Raises:
        RunFolderError: the file cannot be written. An older file at ``path`` is unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.part")
    with report_os_errors(path):
        try:
            beside.unlink(missing_ok=True)  # from an interrupted write, or a link
            write_synced(beside, data)
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise
        sync_folder(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and flush it to disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, where the system allows to open a folder."""
    if hasattr(os, "O_DIRECTORY"):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def write_json(path: Path, value: Any) -> None:
    """Write standard JSON atomically."""
    write_atomically(path, json_text(value))


def json_text(value: Any) -> str:
    """Return standard JSON; NaN and infinities, which JSON does not have, become null."""
    return json.dumps(to_jsonable_python(value, inf_nan_mode="null"), indent=2) + "\n"


def checksum_of_start(path: Path, length: int) -> dict[str, Any]:
    """Return the SHA-256 of the first bytes of a file, and how many there are: ``length``, or all it has.

    Raises OSError where the file cannot be read.
    """
    digest, left = sha256(), length
    with open_regular(path) as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return {"bytes": length - left, "sha256": digest.hexdigest()}


def events_before(run: Path) -> Mapping[str, Any] | None:
    """Return length and SHA-256 of the events before the newest checkpoint; None where none tells."""
    folder = max((run / "checkpoints").glob("[0-9]*"), key=lambda path: path.name, default=None)
    try:
        events = None if folder is None else json.loads(read_bytes(folder / "state.json"))["state"]["events"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None  # it is damaged, which resuming reports
    return events if isinstance(events, dict) and type(events.get("bytes")) is int else None


@contextmanager
def report_os_errors(path: Path) -> Iterator[None]:
    """Turn an OSError in the ``with`` block into a RunFolderError about ``path``."""
    try:
        yield
    except OSError as error:
        raise RunFolderError.about(path, error) from error


def git_state(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the commit of the git repository around ``folder``, whether tracked files were changed, and the changes.

    Without a repository or without git: None and no changes.
    """
    if not (sha := _git(folder, "rev-parse", "HEAD")):
        return None, ""
    patch = _git(folder, "diff", "HEAD")
    return {"sha": sha.strip(), "dirty": bool(patch)}, patch[:PATCH_LIMIT]


def _git(folder: Path, *arguments: str) -> str:
    """Return what a git command prints; nothing if it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def machine() -> dict[str, Any]:
    """Describe the machine, without a name that identifies it."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "torch": installed_version("torch"),
        "esper-core": installed_version("esper-core"),
    }


def installed_packages() -> list[str]:
    """Return ``name==version`` of every installed package, sorted."""
    return _packages_in(tuple((folder, _changed_at(folder)) for folder in sys.path))


@cache
def _packages_in(folders: tuple[tuple[str, int], ...]) -> list[str]:
    """Parse what is installed in folders that were last changed at these times, which takes about 0.1 s."""
    packages = [
        distribution.metadata for distribution in metadata.distributions(path=[folder for folder, _ in folders])
    ]
    return sorted(
        {f"{package['Name']}=={package['Version']}" for package in packages if package["Name"]}, key=str.casefold
    )


def _changed_at(folder: str) -> int:
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def installed_version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def changed_packages(manifest: Mapping[str, Any], run: Path) -> Iterator[str]:
    """Yield a warning for each package that the run used in another version, since its numbers may differ now."""
    machine_before = manifest.get("machine", {})
    before = {package: machine_before.get(package) for package in ("torch", "esper-core")}
    before |= {plugin["package"]: plugin.get("version") for plugin in manifest.get("plugins", [])}
    for package, version in before.items():
        now = installed_version(package)
        if None not in (version, now) and now != version:
            yield f"{run.name} was started with {package} {version}; {now} is installed, and results may differ"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
