"""A store that keeps runs in an SQLite database, for the entry points ``esper.stores`` of a package."""

from __future__ import annotations

import secrets
import sqlite3
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from esper_core.leyline import Problem, RunFolderError
from esper_run.stores import ClaimLost, StoredRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from esper_run.stores import Snapshot

TABLES = """
CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, status TEXT, checkpoint INTEGER, uploaded TEXT);
CREATE TABLE IF NOT EXISTS files (run TEXT, name TEXT, data BLOB);
CREATE TABLE IF NOT EXISTS claims (run TEXT PRIMARY KEY, token TEXT, renewed REAL);
"""


class Database:
    """A folder of runs: a StoreBackend."""

    def __init__(self, url: str) -> None:
        self.path = url.removeprefix("sqlite://")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that nobody else writes beside."""
        with closing(sqlite3.connect(self.path)) as database:
            database.executescript(TABLES)
            with database:
                database.execute("BEGIN IMMEDIATE")  # a SELECT alone would begin no transaction
                yield database

    def runs(self) -> list[str]:
        """Return the ids of the runs."""
        with self.transaction() as database:
            return [id_ for (id_,) in database.execute("SELECT id FROM runs")]

    def find(self, id_: str) -> StoredRun | None:
        """Return what is stored of a run."""
        with self.transaction() as database:
            run = database.execute("SELECT status, checkpoint, uploaded FROM runs WHERE id = ?", (id_,)).fetchone()
            names = [name for (name,) in database.execute("SELECT name FROM files WHERE run = ?", (id_,))]
        return None if run is None else StoredRun(run[0], run[1], datetime.fromisoformat(run[2]), names)

    def fetch(self, id_: str, folder: Path, is_wanted: Callable[[str], bool]) -> StoredRun:
        """Write the files of a run into a folder."""
        run = self.find(id_)
        if run is None:
            raise RunFolderError(Problem("E420", f"there is no run {id_} in {self.path}"))
        with self.transaction() as database:
            for name, data in database.execute("SELECT name, data FROM files WHERE run = ?", (id_,)):
                if is_wanted(name):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(data)
        return run

    def claim(self, id_: str, after: str | None) -> DatabaseClaim:
        """Return the right to upload a run; that of another process lasts five minutes after its last renewal."""
        token = secrets.token_hex(8)
        with self.transaction() as database:
            claim = database.execute("SELECT token, renewed FROM claims WHERE run = ?", (id_,)).fetchone()
            if claim is not None and claim[0] != after and time.time() - claim[1] < 300:
                raise RunFolderError(Problem("E412", f"another process uploads {id_}", hint="Wait five minutes."))
            database.execute("REPLACE INTO claims VALUES (?, ?, ?)", (id_, token, time.time()))
        return DatabaseClaim(self, id_, token)


class DatabaseClaim:
    """The right to upload a run."""

    def __init__(self, store: Database, id_: str, token: str) -> None:
        self.store, self.id, self.token = store, id_, token

    def upload(self, snapshot: Snapshot) -> None:
        """Replace the run as a whole."""
        files = [(self.id, name, b"".join(read())) for name, read in snapshot.files.items()]
        self.renew()
        with self.store.transaction() as database:
            database.execute("DELETE FROM files WHERE run = ?", (self.id,))
            database.executemany("INSERT INTO files VALUES (?, ?, ?)", files)
            run = (self.id, snapshot.status, snapshot.checkpoint, datetime.now(UTC).isoformat())
            database.execute("REPLACE INTO runs VALUES (?, ?, ?, ?)", run)

    def renew(self) -> None:
        """Keep the claim."""
        with self.store.transaction() as database:
            query = "UPDATE claims SET renewed = ? WHERE run = ? AND token = ?"
            if not database.execute(query, (time.time(), self.id, self.token)).rowcount:
                raise ClaimLost

    def release(self) -> None:
        """Let other processes claim the run."""
        with self.store.transaction() as database:
            database.execute("DELETE FROM claims WHERE run = ? AND token = ?", (self.id, self.token))
