"""Stores: where runs are kept besides their directory, found by entry points.

A package announces a store in the group ``esper.stores``, by the protocol of its URLs, or as ``any`` for all others:

    [project.entry-points."esper.stores"]
    s3 = "my_package.store:open_store"

The entry point names a function from the URL of a folder of runs to a ``Store``. ``store: s3://bucket/prefix`` in a
configuration uploads a run there, and commands take such a URL in place of a folder of runs.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from esper_core.leyline.errors import Problem, RunFolderError
from esper_core.leyline.files import read_bytes, user_cache
from esper_core.plugins import Extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

STORE_GROUP: Final = "esper.stores"
ANY: Final = "any"
"""Name of the store for protocols that no other store is named after."""

RUN_NAME: Final = r"[^./\\:\x00-\x1f\x7f][^/\\:\x00-\x1f\x7f]{0,199}"
"""Pattern of the id of a stored run: it names no hidden folder and stays inside its store."""

COPY_MARK: Final = ".stored.json"
"""Name of the file in a copy of a stored run: the URL that it was copied from, and when that was uploaded."""


class Claims(Protocol):
    """Makes this process the only one that uploads a run."""

    def claim_new(self, path: Path) -> bool:
        """Claim a new run. Returns whether no other run in the store has its id."""

    def claim(self, path: Path, checkpoint: int) -> None:
        """Claim a run that is resumed from this checkpoint.

        Raises:
            RunFolderError: E434, the store cannot be used; E437, the stored run is further than the run directory.
        """

    def uploading(
        self, named: Path, on_warning: Callable[[str], None]
    ) -> AbstractContextManager[Callable[[int, int], None]]:
        """Upload the claimed run while a block runs, and when it has ended.

        The block gets the function to call with each new checkpoint: its number, and the bytes of events before it.

        Args:
            named: The run directory, as the user names it.
            on_warning: Gets a warning if the last upload fails.
        """


class Store(Protocol):
    """A folder of runs in a store. Methods raise RunFolderError E434 if it cannot be used."""

    @property
    def url(self) -> str:
        """As the user named it, without a slash at its end."""

    def runs(self) -> Sequence[str]:
        """Return the ids of the runs, sorted. Raises RunFolderError E420 if there is no such folder."""

    def fetch_copy(self, id_: str, names: Sequence[str] = ()) -> Path:
        """Copy a run, without its checkpoint, into the user's cache, and return the folder.

        Args:
            id_: The run.
            names: Copy only these files.

        Raises:
            RunFolderError: E420, there is no such run; E435, it is damaged.
        """

    def fetch_whole(self, id_: str, runs_dir: Path) -> Path:
        """Fetch a run with its checkpoint into a folder of runs, to resume it there; return its run directory."""

    def claims(self) -> Claims:
        """Return what claims and uploads one run."""

    def upload(self, path: Path) -> str:
        """Upload a run directory that no process works on; return its URL."""


class NoClaims:
    """The claims of a run that is kept in its directory alone."""

    def claim_new(self, path: Path) -> bool:
        """Return True: every id is free."""
        return True

    def claim(self, path: Path, checkpoint: int) -> None:
        """Do nothing."""

    @contextmanager
    def uploading(self, named: Path, on_warning: Callable[[str], None]) -> Iterator[Callable[[int, int], None]]:
        """Upload nothing."""
        yield lambda checkpoint, events: None


def open_store(url: str) -> Store:
    """Return the store with this URL. Nothing is read yet.

    Raises:
        RunFolderError: E434, no installed package has such stores, or the URL cannot be used.
        PluginError: The package is broken.
    """
    stores = Extension.find(STORE_GROUP, "store")
    extension = stores.get(url.partition("://")[0]) or stores.get(ANY)
    if extension is None:
        hint = "Stores come with another package:  pip install esper-scale"
        raise RunFolderError(
            Problem("E434", f"the store {url} cannot be used: no package for it is installed", hint=hint)
        )
    function = extension.load(object, "a function from a URL to a store")
    return cast("Callable[[str], Store]", function)(url)


def claims_of(url: str | None) -> Claims:
    """Return the claims of a run that is uploaded to this store; None: it is not uploaded."""
    return NoClaims() if url is None else open_store(url).claims()


def split_url(url: str) -> tuple[str, str]:
    """Return the URL of a store and the id of the run that ``url`` names. Raises RunFolderError E434 if it names none.

    >>> split_url("s3://bucket/prefix/20261121-101512-quiet-otter")
    ('s3://bucket/prefix', '20261121-101512-quiet-otter')
    """
    folder, _, id_ = url.rstrip("/").rpartition("/")
    if folder.endswith(("/", ":")) or not re.fullmatch(RUN_NAME, id_):
        message = f"the store {url} cannot be used: it does not name a run"
        hint = "Give the URL of a store and the id of a run: s3://bucket/prefix/RUN."
        raise RunFolderError(Problem("E434", message, hint=hint))
    return folder, id_


def copied_from(path: Path) -> tuple[str, str] | None:
    """Return the URL of which a folder is a copy in the cache, and when that was uploaded; None for other folders."""
    if path.resolve().parent.parent != user_cache("esper").resolve():
        return None  # a foreign run directory must not name a URL to resume from
    try:
        mark: Any = json.loads(read_bytes(path / COPY_MARK, limit=10_000))
        return str(mark["url"]), str(mark["uploaded"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
