"""The stores of fsspec as a run finds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_scale.stores.storage import Storage, fetch_copy, fetch_whole
from esper_scale.stores.uploads import Claims, upload_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class FsspecStore:
    """A folder of runs in a storage that fsspec knows."""

    storage: Storage

    @property
    def url(self) -> str:
        """As the user named it, without a slash at its end."""
        return self.storage.url

    def runs(self) -> list[str]:
        """Return the ids of the runs, sorted."""
        return self.storage.runs()

    def fetch_copy(self, id_: str, names: Sequence[str] = ()) -> Path:
        """Copy a run, without its checkpoint, into the user's cache, and return the folder."""
        return fetch_copy(self.storage.run(id_), names)

    def fetch_whole(self, id_: str, runs_dir: Path) -> Path:
        """Fetch a run with its checkpoint into a folder of runs; return its run directory."""
        return fetch_whole(self.storage.run(id_), runs_dir)

    def claims(self) -> Claims:
        """Return what claims and uploads one run."""
        return Claims(self.storage)

    def upload(self, path: Path) -> str:
        """Upload a run directory that no process works on; return its URL."""
        return upload_run(path, self.storage)


def open_store(url: str) -> FsspecStore:
    """Return the store with this URL. Raises RunFolderError E434 if its protocol is unknown or not installed."""
    return FsspecStore(Storage.open(url))
