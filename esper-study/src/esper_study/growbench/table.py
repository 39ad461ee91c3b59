"""Tables: what was measured at every node of some puzzles, and the two files that hold it.

``growbench.npz`` has the numbers. ``growbench.json`` describes them: format, columns, puzzles, slots, versions, the
size of errors, and the checksum of the other file. The table that comes with this package lies beside this module.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import platform
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from esper_core.leyline import Candidate, SlotDescription, SlotState
from esper_study.growbench.graph import node_index, nodes
from esper_study.growbench.puzzles import SLOTS, Puzzle, puzzle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from esper_study.growbench.graph import Node
    from esper_study.growbench.puzzles import Part

FORMAT: Final = 1
NUMBERS: Final = "growbench.npz"
CARD: Final = "growbench.json"

HOST_COLUMNS: Final = ("train_loss", "validation_loss", "validation_metric", "parameters", "test_metric")
GRADIENT_FIELDS: Final = (
    "global_norm",
    "mean_parameter_norm",
    "largest_parameter_norm",
    "vanishing",
    "exploding",
    "non_finite",
)
GAIN_FIELDS: Final = ("n", "mean", "deviation", "skewness", "worst", "best")
COLUMNS: Final = (
    *HOST_COLUMNS,
    *(f"state_{slot}" for slot in SLOTS),
    "incubation_loss",
    "seed_parameters",
    *(f"gradients_{name}" for name in GRADIENT_FIELDS),
    *(f"gain_{name}" for name in GAIN_FIELDS),
)
"""Measurements of a node. NaN means not measured; ``state_SLOT`` is an index into SLOT_STATES."""

SLOT_STATES: Final = tuple(SlotState)

_PACKAGES: Final = ("torch", "esper-core", "esper-blueprints", "esper-tasks")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The measurements of every node of some puzzles.

    Attributes:
        values: Array of shape (puzzles, nodes, columns).
        places: What is known about the slots of each puzzle.
        checksum: SHA-256 of the file that the values were read from.
    """

    puzzles: tuple[Puzzle, ...]
    values: NDArray[np.float32]
    places: tuple[Mapping[str, SlotDescription], ...]
    checksum: str = ""

    def of_part(self, part: Part) -> tuple[int, ...]:
        """Return the indices of the puzzles of a part."""
        return tuple(number for number, puzzle in enumerate(self.puzzles) if puzzle.part == part)

    def row(self, puzzle: int, node: Node) -> NDArray[np.float32]:
        """Return all columns of one node of one puzzle."""
        columns: NDArray[np.float32] = self.values[puzzle, node_index()[node]]
        return columns

    def column(self, name: str) -> NDArray[np.float32]:
        """Return one column as an array of shape (puzzles, nodes)."""
        chosen: NDArray[np.float32] = self.values[:, :, COLUMNS.index(name)]
        return chosen


@cache
def shipped_table() -> Table:
    """Return the table that comes with this package."""
    home = resources.files("esper_study.growbench")
    return _unpack((home / NUMBERS).read_bytes(), json.loads((home / CARD).read_text()))


def load_table(folder: Path | str) -> Table:
    """Load a table that ``pack_table`` wrote.

    Raises:
        ValueError: If the files have another format, do not belong together, or describe other puzzles.
    """
    home = Path(folder)
    return _unpack((home / NUMBERS).read_bytes(), json.loads((home / CARD).read_text()))


def pack_table(files: Sequence[tuple[Puzzle, Path]], folder: Path) -> None:
    """Write a table from the files of trained puzzles. Puzzles without a file are left out and listed as missing.

    Raises:
        ValueError: If none of the files exists.
    """
    trained: list[tuple[Puzzle, NDArray[np.float32], str]] = []
    for packed, file in files:
        if file.exists():
            with np.load(file, allow_pickle=False) as content:
                trained.append((packed, content["values"], bytes(content["places"]).decode()))
    if not trained:
        msg = f"nothing to pack: none of the puzzles has been trained. Received: {len(files)} puzzles without a file"
        raise ValueError(msg)
    places = list(dict.fromkeys(place for _, _, place in trained))
    stream = io.BytesIO()
    np.savez_compressed(stream, values=np.stack([values for _, values, _ in trained]))
    card = {
        "format": FORMAT,
        "what": "growbench: what every plan of growth leads to, for small problems; trained by esper itself",
        "made": {
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "machine": platform.machine(),
            **{package: metadata.version(package) for package in _PACKAGES},
            "command": "python -m esper_study.growbench --pack FOLDER",
        },
        "errors": (
            "each plan was trained once, on the puzzle's own seed; accuracies are shares of 600 validation and 500 "
            "or more test examples, so one standard error is up to 2.0 and 2.2 points"
        ),
        "missing": [packed.name for packed, file in files if not file.exists()],
        "nodes": len(nodes()),
        "columns": list(COLUMNS),
        "sha256": hashlib.sha256(stream.getvalue()).hexdigest(),
        "places": [json.loads(place) for place in places],
        "puzzles": [{**asdict(packed), "place": places.index(place)} for packed, _, place in trained],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NUMBERS).write_bytes(stream.getvalue())
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n")


def _unpack(numbers: bytes, card: Mapping[str, Any]) -> Table:
    if card.get("format") != FORMAT or card.get("columns") != list(COLUMNS) or card.get("nodes") != len(nodes()):
        msg = (
            f"{CARD} describes a table of another format than this version reads. Train it again: "
            "python -m esper_study.growbench --pack FOLDER"
        )
        raise ValueError(msg)
    if hashlib.sha256(numbers).hexdigest() != card.get("sha256"):
        msg = f"the checksum of {NUMBERS} is not the one in {CARD}: the files do not belong together, or are damaged"
        raise ValueError(msg)
    with np.load(io.BytesIO(numbers), allow_pickle=False) as file:
        values = file["values"]
    puzzles = tuple(puzzle(record["number"], record["part"]) for record in card["puzzles"])
    for rebuilt, recorded in zip(puzzles, card["puzzles"], strict=True):
        if {**recorded, **asdict(rebuilt)} != recorded:
            msg = f"puzzle {rebuilt.name} differs from the one in the table: train it again. Received: {recorded}"
            raise ValueError(msg)
    places = [{slot: _place(place) for slot, place in several.items()} for several in card["places"]]
    return Table(puzzles, values, tuple(places[record["place"]] for record in card["puzzles"]), card["sha256"])


def _place(plain: Mapping[str, Any]) -> SlotDescription:
    candidates = tuple(
        Candidate(**{**candidate, "traits": tuple(candidate["traits"])}) for candidate in plain["candidates"]
    )
    return SlotDescription(**{**plain, "size": tuple(plain["size"]), "candidates": candidates})
