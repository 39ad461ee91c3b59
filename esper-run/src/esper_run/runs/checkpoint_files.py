"""Checkpoints: write, find and restore run state.

checkpoints/000200/   tensors.safetensors, state.json, and COMPLETE with the length and SHA-256 of both files
latest                the name of the newest checkpoint

A checkpoint is written to a temporary folder, synced to disk and then renamed, so it is complete or absent.
"""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save

from esper_core.leyline.errors import GrowthError, Problem, RunFolderError
from esper_core.leyline.files import limit_of, read_bytes
from esper_core.leyline.protocols import State
from esper_run.runs.directory import report_os_errors, sync_folder, write_atomically, write_synced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMAT: Final = 4
"""Version of the checkpoint format. Other versions are refused."""

MAX_GIB: Final = "ESPER_MAX_TENSORS_GIB"
"""Variable of the environment with the largest size of a file with tensors that is read, in GiB."""

_TENSORS, _PLAIN, _COMPLETE = "tensors.safetensors", "state.json", "COMPLETE"


class Checkpoint(NamedTuple):
    """A checkpoint that was read. ``skipped`` lists newer ones that cannot be used, with the reasons."""

    number: int
    state: State
    skipped: tuple[str, ...]


class Checkpoints:
    """The checkpoints of one run directory, of which the ``kept`` newest are kept."""

    def __init__(self, run: Path, kept: int = 2) -> None:
        self._run = run
        self._folder = run / "checkpoints"
        self._kept = kept

    def write(self, number: int, state: State) -> None:
        """Write a checkpoint and delete old ones. At every moment there is a complete one, this or the one before.

        Raises:
            RunFolderError: the checkpoint cannot be written.
        """
        path, beside = self._path(number), self._folder / f".{number:06}.part"
        plain = json.dumps({"format": FORMAT, "state": state.plain}, allow_nan=False).encode()
        files = {_TENSORS: save(dict(state.tensors)), _PLAIN: plain}
        sums = {name: _checksum(data) for name, data in files.items()}
        files[_COMPLETE] = (json.dumps(sums, indent=2) + "\n").encode()
        with report_os_errors(path):
            try:
                self._folder.mkdir(exist_ok=True)
                shutil.rmtree(beside, ignore_errors=True)
                beside.mkdir()
                for name, data in files.items():
                    write_synced(beside / name, data)
                sync_folder(beside)
                if path.exists():  # left behind by a resume from an older one
                    shutil.rmtree(path)
                beside.rename(path)
                sync_folder(self._folder)
            except OSError:
                shutil.rmtree(beside, ignore_errors=True)
                raise
        self.return_to(number)
        for old in self._numbers()[: -self._kept]:
            shutil.rmtree(self._path(old), ignore_errors=True)

    def return_to(self, number: int) -> None:
        """Make this checkpoint the newest: delete the newer ones, and write its number to ``latest``."""
        for newer in self._numbers():
            if newer > number:
                shutil.rmtree(self._path(newer), ignore_errors=True)
        write_atomically(self._run / "latest", f"{number:06}\n")

    def newest(self, reason_unusable: Callable[[State], str | None] = lambda state: None) -> Checkpoint | None:
        """Return the newest checkpoint that is complete and can be used; None where there are no checkpoints.

        Args:
            reason_unusable: Returns why a complete checkpoint cannot be used, or None where it can.

        Raises:
            RunFolderError: There are checkpoints, and none can be used; or the folder cannot be read.
        """
        skipped: list[str] = []
        for number in reversed(self._numbers()):
            loaded = _read(self._path(number))
            reason = reason_unusable(loaded) if isinstance(loaded, State) else loaded
            if isinstance(loaded, State) and reason is None:
                return Checkpoint(number, loaded, tuple(skipped))
            skipped.append(f"{number:06}: {reason}")
        if skipped:
            message = f"no checkpoint in {self._folder} can be used"
            hint = "\n".join([*skipped[:5], "Start the run again."])
            raise RunFolderError(Problem("E413", message, hint=hint))
        return None

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06}"

    def _numbers(self) -> list[int]:
        try:
            return sorted(int(entry.name) for entry in self._folder.iterdir() if entry.name.isdecimal())
        except FileNotFoundError:
            return []
        except OSError as error:
            message = f"the checkpoints in {self._folder} cannot be read: {error.strerror or error}"
            raise RunFolderError(Problem("E413", message)) from error


def _read(path: Path) -> State | str:
    """Return the state in a checkpoint, or why it cannot be read."""
    try:
        sums = json.loads(read_bytes(path / _COMPLETE))
        data = {}
        for name in (_TENSORS, _PLAIN):
            # A file that grew is not read: it may be sparse and have a terabyte.
            data[name] = read_bytes(path / name, min(sums[name]["bytes"], tensor_bytes()))
            if sums[name] != _checksum(data[name]):
                return f"{name} changed since it was written"
        plain = json.loads(data[_PLAIN])
        if plain["format"] != FORMAT:
            return f"it has format {plain['format']}; this esper-run reads format {FORMAT}"
        return State(plain["state"], load(data[_TENSORS]))
    except OSError as error:
        return f"{PurePath(error.filename or path).name}: {error.strerror or error}"
    except (ValueError, LookupError, TypeError, RecursionError, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"


def tensor_bytes() -> int:
    """Return the largest size of a file with tensors that is read."""
    return limit_of(MAX_GIB, 64) << 30


def _checksum(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": sha256(data).hexdigest()}


def read_part(path: Path, most: int | None, hint: str) -> bytes:
    """Return the content of a file of a saved network or of adapters; GrowthError (E332) with the hint otherwise."""
    try:
        return read_bytes(path, most, follow=True)  # a model hub's cache keeps links to its files
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise GrowthError(Problem("E332", message, hint=hint)) from error
