"""Where does it stand what another process played? In a folder of files, each of which is whole or does not count.

Many processes may use one folder, for many configurations: a file says which it is of, and what its bytes add up to. It
is written beside its place and renamed; what a crash leaves behind, or a disk loses, is told by the sum and trained
again, so nobody waits for the disk. Nothing is ever wrong for what stands here: the worst is that it is not there.

What is in the way is told once, by a warning, and it goes on without.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections import deque
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from safetensors import SafetensorError
from safetensors.torch import load, save

from esper_core.app.run import log
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["moment", "state", "twin"]

FORMAT: Final = 1
"""Of a file. One of another format does not count."""

PORTION: Final = 16
"""As many files of the largest size fit into the room, and so much of it may be written before it is looked after."""

STALE: Final = 3600.0
"""Seconds after which a file that was begun is nobody's any more."""

BLOCK: Final = 4096
"""Bytes of a disk that no two files share."""

_NAME: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}\.(moment|state|twin)")
_BEGUN: Final = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]{{8}}\.part")


class PrefixFolder:
    """What is known of one configuration in a folder that it may share with others.

    key: that of the configuration, in hexadecimal. room: bytes that all files in the folder may take. Where they take
    more, those go first that were not read or written for longest; states have half of the room at most, for a state
    takes as much as thousands of moments, and can be trained again. One process leaves room for what another one writes
    meanwhile; several that write a lot at once may take some sixteenths more for a while.
    """

    def __init__(self, home: Path, key: str, room: int) -> None:
        if room < 1:
            msg = f"room is a number of bytes, from 1. Received: {room}"
            raise ValueError(msg)
        self.home, self.key, self.room = home, key, room
        self._open = self._writable = True
        self._unseen = 0
        """Bytes that may still be written before it is looked how much there is."""
        self._told: set[str] = set()

    def read(self, kind: Kind, name: str) -> State | None:
        """What is kept under this name, which then was of use; None where nothing is, or nothing whole."""
        if not self._open:
            return None
        path = self._path(kind, name)
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._tell(f"what cannot be read in {self.home} is trained again: {error.strerror or error}")
            return None
        found = self._unpacked(data, kind, name)
        if isinstance(found, State):
            with suppress(OSError):  # a folder that may only be read
                os.utime(path)
            return found
        self.drop(kind, name, found)
        return None

    def drop(self, kind: Kind, name: str, why: str) -> None:
        """Take away what is kept under this name, and say why: it is no good."""
        path = self._path(kind, name)
        self._tell(f"{path} does not count, and is trained again: {why}")
        with suppress(OSError):
            path.unlink()

    def write(self, kind: Kind, name: str, state: State) -> None:
        """Keep something, unless it is kept already."""
        if not (self._open and self._writable):
            return
        try:
            path = self._path(kind, name)
            if not path.exists():
                self._write(path, self._packed(kind, name, state))
        except OSError as error:
            self._writable = False
            self._tell(f"nothing more is kept in {self.home}: {error.strerror or error}")

    def close(self, why: str) -> None:
        """Use the folder no more, and say why."""
        self._open = False
        self._tell(f"{self.home} is left alone from now on: {why}")

    def _write(self, path: Path, data: bytes) -> None:
        if len(data) * PORTION > self.room:
            self._tell(
                f"what takes more than {self.room // PORTION:,} bytes is not kept in {self.home}: a {path.suffix[1:]}"
            )
            return
        self._make_room(len(data))
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            beside.write_bytes(data)
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise

    def _path(self, kind: Kind, name: str) -> Path:
        digest = sha256(f"{self.key}\n{kind}\n{name}".encode()).hexdigest()
        return self.home / f"{self.key[:16]}-{digest[:32]}.{kind}"

    def _packed(self, kind: Kind, name: str, state: State) -> bytes:
        """The sum of the rest, a line of JSON, and the tensors."""
        told = {"format": FORMAT, "key": self.key, "kind": kind, "name": name, "state": state.plain}
        rest = json.dumps(told, allow_nan=False).encode() + b"\n" + save(dict(state.tensors))
        return sha256(rest).hexdigest().encode() + b"\n" + rest

    def _unpacked(self, data: bytes, kind: Kind, name: str) -> State | str:
        """The state that a file holds, or why it does not count."""
        digest, _, rest = data.partition(b"\n")
        if sha256(rest).hexdigest().encode() != digest:
            return "it is not what was written"
        words, _, numbers = rest.partition(b"\n")
        try:
            told = json.loads(words)
            known = [told[own] for own in ("format", "key", "kind", "name")]
            if known != [FORMAT, self.key, kind, name]:
                return "it is of something else"
            return State(told["state"], load(numbers))
        except (ValueError, LookupError, TypeError, RecursionError, SafetensorError) as error:
            return f"{type(error).__name__}: {error}"

    def _make_room(self, size: int) -> None:
        """Look after the folder before so much is written, where enough was since the last time."""
        portion = self.room // PORTION
        if self._unseen < _taken(size):
            self._sweep(self.room - 2 * portion)
            self._unseen = portion
        self._unseen -= _taken(size)

    def _sweep(self, room: int) -> None:
        """Remove what was of use longest ago, until what is left takes no more than this."""
        self.home.mkdir(parents=True, exist_ok=True)
        states: list[tuple[float, int, Path]] = []
        others: list[tuple[float, int, Path]] = []
        with os.scandir(self.home) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # another process was quicker
                    told = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name):
                        kept = states if entry.name.endswith(".state") else others
                        kept.append((told.st_mtime, _taken(told.st_size), Path(entry.path)))
                    elif _BEGUN.fullmatch(entry.name) and time.time() - told.st_mtime > STALE:
                        Path(entry.path).unlink()
        left = _reduced(states, room // 2)
        _reduced([*left, *others], room)

    def _tell(self, warning: str) -> None:
        if warning not in self._told:
            self._told.add(warning)
            log.warning("%s", warning)


def _taken(size: int) -> int:
    """Bytes of the disk that a file takes."""
    return -(-size // BLOCK) * BLOCK


def _reduced(files: Iterable[tuple[float, int, Path]], room: int) -> Iterable[tuple[float, int, Path]]:
    """Remove the oldest files until the others take no more than this; those that are left."""
    left = deque(sorted(files))
    total = sum(size for _, size, _ in left)
    while left and total > room:
        _, size, path = left.popleft()
        path.unlink(missing_ok=True)
        total -= size
    return left
