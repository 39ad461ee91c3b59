"""The store ``any``: a folder of runs in a storage that fsspec knows, opened by its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from esper_core.leyline.errors import one_line
from esper_core.leyline.files import limit_of

if TYPE_CHECKING:
    from esper_scale.stores.storage import Storage

EXTRAS: Final = {"s3": "s3", "s3a": "s3"}
"""The extra of esper-scale to install for a protocol. For others fsspec says which package is missing."""

MAX_GIB: Final = 64
"""A stored run that is larger is not fetched, unless ESPER_STORE_MAX_GIB is set."""


def open_store(url: str) -> Storage:
    """Return the folder of runs with this URL. Nothing is read yet.

    Raises:
        RunFolderError: E434, the protocol is unknown or its package is not installed.
    """
    from fsspec.core import url_to_fs

    from esper_scale.stores.storage import Storage, unusable

    try:
        files, path = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        extra = EXTRAS.get(url.partition("://")[0])
        hint = f"Install it:  pip install 'esper-scale[{extra}]'" if extra else one_line(str(error))
        raise unusable(url, "the package for its protocol is not installed", hint) from error
    except Exception as error:  # whatever a file system raises for a URL or settings that it refuses
        raise unusable(url, one_line(str(error)), "Give a URL such as s3://bucket/prefix.") from error
    return Storage(url, files, path.rstrip("/"), limit_of("ESPER_STORE_MAX_GIB", MAX_GIB) << 30)
