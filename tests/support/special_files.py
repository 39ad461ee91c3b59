"""Put what is no regular file, or no usable one, in the place of a file."""

import os
from pathlib import Path

NESTED = "[" * 100_000


def put(kind: str, place: Path) -> None:
    """Put a pipe, a folder, a link, deeply nested JSON or a terabyte of nothing in the place of a file."""
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "link":
        place.symlink_to(place.parent / "config.yaml")
    elif kind == "sparse":
        place.touch()
        os.truncate(place, 1 << 40)
    else:
        place.write_text(NESTED)
