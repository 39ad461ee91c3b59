"""What came of it all? The table as it is shipped: for each puzzle and node what was measured there.

Two files lie beside this module: ``growbench.npz`` with the numbers, and ``growbench.json``, its card: what it is, how
and when it was made, with which versions, and how it is checked.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import platform
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from esper_core.leyline import Candidate, Place
from esper_tasks.growbench.building import COLUMNS
from esper_tasks.growbench.plans import nodes, place_of
from esper_tasks.growbench.puzzles import Puzzle, puzzle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from esper_tasks.growbench.plans import Node
    from esper_tasks.growbench.puzzles import Part

FORMAT: Final = 1
NUMBERS: Final = "growbench.npz"
CARD: Final = "growbench.json"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """What came of every plan of some puzzles. values: (puzzles, nodes, columns). places: of each puzzle's slots.

    checksum: of the file that it was read from.
    """

    puzzles: tuple[Puzzle, ...]
    values: NDArray[np.float32]
    places: tuple[Mapping[str, Place], ...]
    checksum: str = ""

    def of_part(self, part: Part) -> tuple[int, ...]:
        """The numbers of the puzzles to learn on, or of those that are held out, in this table."""
        return tuple(number for number, one in enumerate(self.puzzles) if one.part == part)

    def row(self, puzzle: int, node: Node) -> NDArray[np.float32]:
        """(columns,): all that was measured at one node."""
        found: NDArray[np.float32] = self.values[puzzle, place_of()[node]]
        return found

    def column(self, name: str) -> NDArray[np.float32]:
        """(puzzles, nodes): one thing that was measured."""
        chosen: NDArray[np.float32] = self.values[:, :, COLUMNS.index(name)]
        return chosen


@cache
def shipped() -> Table:
    """The table that comes with this package."""
    home = resources.files("esper_tasks.growbench")
    return unpacked((home / NUMBERS).read_bytes(), json.loads((home / CARD).read_text()))


def load_table(folder: Path | str) -> Table:
    """A table that ``pack`` wrote."""
    home = Path(folder)
    return unpacked((home / NUMBERS).read_bytes(), json.loads((home / CARD).read_text()))


def unpacked(numbers: bytes, card: Mapping[str, Any]) -> Table:
    """The table in the two files; ValueError where they are not of this format, or do not belong together."""
    if card.get("format") != FORMAT or card.get("columns") != list(COLUMNS) or card.get("nodes") != len(nodes()):
        msg = (
            "this table is of another format than this version reads: build it again (python -m esper_tasks.growbench)"
        )
        raise ValueError(msg)
    if hashlib.sha256(numbers).hexdigest() != card.get("sha256"):
        msg = f"{NUMBERS} is not the file that {CARD} describes: its checksum is another"
        raise ValueError(msg)
    with np.load(io.BytesIO(numbers), allow_pickle=False) as file:
        values = file["values"]
    puzzles = tuple(puzzle(one["number"], one["part"]) for one in card["puzzles"])
    for own, told in zip(puzzles, card["puzzles"], strict=True):
        if {**told, **asdict(own)} != told:
            msg = f"the puzzle {own.name} is another one here than in the table: build it again. Received: {told}"
            raise ValueError(msg)
    places = [{slot: _place(own) for slot, own in several.items()} for several in card["places"]]
    return Table(puzzles, values, tuple(places[one["place"]] for one in card["puzzles"]), card["sha256"])


def pack(built: Sequence[tuple[Puzzle, Path]], folder: Path) -> None:
    """Write the table of the puzzles that were built, with its card. A puzzle that is missing is left out, and told."""
    found: list[tuple[Puzzle, NDArray[np.float32], str]] = []
    missing = []
    for one, file in built:
        if not file.exists():
            missing.append(one.name)
            continue
        with np.load(file, allow_pickle=False) as content:
            found.append((one, content["values"], bytes(content["places"]).decode()))
    if not found:
        msg = f"there is nothing to be packed: none of the puzzles was built. Received: {len(built)} of them"
        raise ValueError(msg)
    places = list(dict.fromkeys(own for _, _, own in found))
    stream = io.BytesIO()
    np.savez_compressed(stream, values=np.stack([values for _, values, _ in found]))
    card = {
        "format": FORMAT,
        "what": "growbench: what comes of every plan of growing, for small problems; trained by esper itself",
        "made": {
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "machine": platform.machine(),
            **_versions(),
            "command": "python -m esper_tasks.growbench --pack FOLDER",
        },
        "errors": (
            "each plan was trained once, on the puzzle's own seed; accuracies are shares of 600 validation and 500 "
            "or more test examples, so one standard error is up to 2.0 and 2.2 points"
        ),
        "missing": missing,
        "nodes": len(nodes()),
        "columns": list(COLUMNS),
        "sha256": hashlib.sha256(stream.getvalue()).hexdigest(),
        "places": [json.loads(own) for own in places],
        "puzzles": [{**asdict(one), "place": places.index(own)} for one, _, own in found],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NUMBERS).write_bytes(stream.getvalue())
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n")


def _place(plain: Mapping[str, Any]) -> Place:
    candidates = tuple(Candidate(**{**own, "traits": tuple(own["traits"])}) for own in plain["candidates"])
    return Place(**{**plain, "size": tuple(plain["size"]), "candidates": candidates})


def _versions(packages: Iterable[str] = ("torch", "esper-core", "esper-blueprints", "esper-tasks")) -> dict[str, str]:
    from importlib.metadata import version

    return {package: version(package) for package in packages}
