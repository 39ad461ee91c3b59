"""Cache the steps of episodes in a file, so that no process trains a step that another one has trained.

An episode is a function of its seed and its actions. ``CachedPlay`` looks each step up by both, and trains only what is
missing, to the same numbers. The file is an SQLite database of JSON records, which several processes can share. Its
keys include a fingerprint of everything the numbers depend on, so that a change of it never finds an old record:
the resolved configuration, the data, the loaded source code, the installed packages, and the machine.

Not part of the fingerprint are files that a host or a blueprint reads by itself, such as pretrained weights.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sqlite3
import sys
import sysconfig
import weakref
from collections import OrderedDict
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from esper_core.app.episode import Episode, EpisodeStep
    from esper_core.leyline import Action, State

    Record = dict[str, Any]
    Prefix = tuple[int, tuple[Action, ...]]

FILE: Final = "steps.sqlite"
STATES_KEPT: Final = 64
"""States of the engine that are kept in memory, to continue from when an episode takes a new action."""
WAIT_SECONDS: Final = 60.0
"""How long to wait for another process that is writing."""

log = logging.getLogger("esper")


class CachedPlay:
    """Steps through episodes like an ``Episode``, and returns a record of each step, which may come from the cache.

    Args:
        describe: Returns what is needed of a moment, as data that JSON can hold.
        home: Folder of the cache. None trains every step.

    Attributes:
        trained: Steps that were trained.
        recalled: Steps that came from the cache.
    """

    def __init__(
        self, play: Episode, describe: Callable[[EpisodeStep], Record], home: Path | str | None = None
    ) -> None:
        self.play = play
        self.trained = self.recalled = 0
        self._describe = describe
        self._store = None if home is None else _Store(Path(home), fingerprint(play))
        self._here: Prefix | None = None
        self._engine: Prefix | None = None
        """Where the engine is, unless other code has moved it since ``_moves``."""
        self._moves = play.moves
        self._states: OrderedDict[Prefix, State] = OrderedDict()

    def begin(self, seed: int) -> Record:
        """Begin the episode of a seed, and return the record of its first step."""
        return self._go_to((int(seed), ()))

    def act(self, action: Action) -> Record:
        """Carry out an action, and return the record of the next step, or of the end."""
        if self._here is None:
            msg = "no episode has begun: call begin(seed) first"
            raise RuntimeError(msg)
        seed, actions = self._here
        return self._go_to((seed, (*actions, action)))

    def _go_to(self, prefix: Prefix) -> Record:
        record = None if self._store is None else self._store.get(prefix)
        if record is None:
            record = self._train(prefix)
        else:
            self.recalled += 1
        self._here = prefix
        return record

    def _train(self, prefix: Prefix) -> Record:
        """Train the path to a step from the nearest place where the engine is, or whose state is kept."""
        seed, actions = prefix
        if self.play.moves != self._moves:
            self._engine = None
        places = [(seed, actions[:n]) for n in range(len(actions) - 1, -1, -1)]
        start = next((place for place in places if place == self._engine or place in self._states), None)
        if start is None:
            self._engine = None
            start = (seed, ())
            record = self._arrived(start, self.play.begin(seed))
        elif start != self._engine:
            self._engine = None
            self.play.load_state_dict(self._states[start])
            self._engine = start
        for action in actions[len(start[1]) :]:
            if self._store is not None:
                self._states[start] = self.play.state_dict()
                while len(self._states) > STATES_KEPT:
                    self._states.popitem(last=False)
            self._engine = None  # until the step is trained: the governor may stop the run in it
            start = (seed, (*start[1], action))
            record = self._arrived(start, self.play.act(action))
        return record

    def _arrived(self, prefix: Prefix, moment: EpisodeStep) -> Record:
        self.trained += 1
        self._engine, self._moves = prefix, self.play.moves
        record = self._describe(moment)
        if self._store is not None:
            self._store.put(prefix, record)
        return record


class _Store:
    """Records in a database. An error of the database is a warning, and ends its use: steps are trained then."""

    def __init__(self, home: Path, key: str | None) -> None:
        self._key = key
        self._path = home / FILE
        self._database: sqlite3.Connection | None = None
        if key is None:
            return
        try:
            home.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                self._path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            weakref.finalize(self, self._database.close)
            self._database.execute("CREATE TABLE IF NOT EXISTS steps (key TEXT PRIMARY KEY, record TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            self._close(error)

    def get(self, prefix: Prefix) -> Record | None:
        """Return the record of a step, or None if there is none."""
        rows = self._execute("SELECT record FROM steps WHERE key = ?", self._name(prefix))
        return json.loads(rows[0][0]) if rows else None

    def put(self, prefix: Prefix, record: Record) -> None:
        """Write the record of a step, unless another process has."""
        self._execute("INSERT OR IGNORE INTO steps VALUES (?, ?)", self._name(prefix), json.dumps(record))

    def _execute(self, statement: str, *values: str) -> list[Any]:
        if self._database is None:
            return []
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self._close(error)
            return []

    def _close(self, error: Exception) -> None:
        log.warning("%s is not used any more, and steps are trained instead: %s", self._path, error)
        if self._database is not None:
            self._database.close()
            self._database = None

    def _name(self, prefix: Prefix) -> str:
        return sha256(f"{self._key} {prefix!r}".encode()).hexdigest()


def fingerprint(play: Episode) -> str | None:
    """Return a key of everything that the numbers of an ``Episode`` depend on.

    None, with a warning, if source code was changed after this process began: what runs may not be what the file says.
    """
    digest = sha256(json.dumps(play.config, sort_keys=True, default=str).encode())
    for name in ("train", "validation", "test"):
        split = play.split(name)
        for tensor in (split.inputs, split.targets):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    began = _process_began()
    for path in _own_sources():
        if path.stat().st_mtime > began:
            log.warning("%s was changed after this process began: steps are not cached. Start a new process.", path)
            return None
        digest.update(f"{path.name} {sha256(path.read_bytes()).hexdigest()}".encode())
    machine = [
        sys.version,
        platform.machine(),
        torch.__config__.show(),
        str(torch.get_default_dtype()),
        str(play.device),
    ]
    if play.device.type == "cuda":
        machine += [torch.cuda.get_device_name(play.device), torch.get_float32_matmul_precision()]
    switches = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_SWITCHES))
    digest.update(json.dumps([_packages(), machine, switches]).encode())
    return digest.hexdigest()


_SWITCHES: Final = ("ATEN_", "CUBLAS_", "CUDNN_", "DNNL_", "MKL_", "NVIDIA_TF32", "ONEDNN_", "OPENBLAS_", "TORCH_ALLOW")
"""Environment variables that choose how libraries compute."""


def _packages() -> list[str]:
    return sorted(f"{one.metadata['Name']}=={one.version}" for one in metadata.distributions())


def _own_sources() -> Iterator[Path]:
    """Yield the source files of all loaded packages and modules that are neither installed nor of Python itself.

    A package counts as a whole, because its modules may be imported later. The script that runs is left out.
    """
    elsewhere = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    for name in sorted({name.partition(".")[0] for name in sys.modules} - {"__main__"}):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        folders = [Path(one) for one in getattr(module, "__path__", [])]
        if file is not None and not folders and file.endswith(".py") and not file.startswith(elsewhere):
            yield Path(file)
        for folder in folders:
            if not f"{folder}{os.sep}".startswith(elsewhere):
                yield from sorted(folder.rglob("*.py"))


def _process_began() -> float:
    """Return about when this process began: when ``logging`` was imported, which torch needs."""
    record = logging.makeLogRecord({})
    return record.created - record.relativeCreated / 1000
