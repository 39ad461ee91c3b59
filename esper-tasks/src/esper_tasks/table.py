"""How is a table of the user's own trained on? Each row of a CSV is an example: one column is told from the others."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from esper_core.leyline.errors import suggestion
from esper_tasks.own_data import Examples, found, own_task, parted_by_lot
from esper_tasks.refusing import refuse
from esper_tasks.settings import CsvSettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from esper_tasks.classification import Classification
    from esper_tasks.regression import Regression
    from esper_tasks.settings import Column, Predicted


def csv_table(
    *,
    path: str,
    target: Column,
    header: bool = True,
    delimiter: str = ",",
    ignore: tuple[Column, ...] = (),
    predict: Predicted = "class",
    normalise: bool = True,
    validation: float = 0.15,
    test: float = 0.15,
    seed: int = 0,
) -> Classification | Regression:
    """A table of your own: one column to be told from the others, which are numbers. Inputs (N, features).

    path: the file, in UTF-8; relative to the current folder. target: the column to be told. header: whether the first
    line names the columns; else they are called 1, 2, … delimiter: between two cells. ignore: columns that are left
    out. predict, normalise, validation, test, seed: see ``OwnDataSettings``.
    """
    settings = CsvSettings(
        path=path,
        target=target,
        header=header,
        delimiter=delimiter,
        ignore=ignore,
        predict=predict,
        normalise=normalise,
        validation=validation,
        test=test,
        seed=seed,
    )
    examples = _examples(_read(found(path, "path"), settings), settings)
    return own_task(parted_by_lot(examples, settings), "vector", settings)


@dataclass(frozen=True, slots=True)
class _Table:
    """The cells of a file, as text: each row with its line."""

    place: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[int, list[str]], ...]

    def column(self, name: Column, setting: str) -> int:
        """Where the column of this name stands; SettingError where there is none."""
        if str(name) not in self.columns:
            hint = suggestion(str(name), self.columns)
            if len(self.columns) == 1:
                hint = f'All of a line is one cell: "{self.columns[0][:60]}". Is the delimiter another, ";" or "\\t"?'
            refuse(setting, f'there is no column "{name}" in "{self.place}"', hint)
        return self.columns.index(str(name))


def _read(place: Path, settings: CsvSettings) -> _Table:
    try:
        with place.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=settings.delimiter, strict=True)
            rows = tuple((reader.line_num, row) for row in reader if row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        refuse("path", f'"{place}" cannot be read: {error}', "It is a text in UTF-8.")
    if len(rows) < 2:
        refuse("path", f'"{place}" holds no examples', f"Received: {len(rows)} lines that are not empty")
    if settings.header:
        columns, rows = tuple(cell.strip() for cell in rows[0][1]), rows[1:]
    else:
        columns = tuple(str(number + 1) for number in range(len(rows[0][1])))
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        hint = "Where the first line is no header, write  header: false"
        refuse("header", f'several columns of "{place}" are called "{twice[0]}"', hint)
    for line, row in rows:
        if len(row) != len(columns):
            refuse("path", f"{place}:{line} has {len(row)} cells, the first line has {len(columns)}")
    return _Table(place, columns, rows)


def _examples(table: _Table, settings: CsvSettings) -> Examples:
    target = table.column(settings.target, "target")
    left_out = {target, *(table.column(name, "ignore") for name in settings.ignore)}
    features = [place for place in range(len(table.columns)) if place not in left_out]
    if not features:
        hint = f"Columns: {', '.join(table.columns)}"
        refuse("target", "no column is left to tell the target from", hint)
    inputs = np.array([[_number(table, line, row, place) for place in features] for line, row in table.rows])
    if settings.predict == "number":
        targets = np.array([_number(table, line, row, target) for line, row in table.rows])
        return Examples(inputs, targets)
    return Examples(inputs, _labels(table, target))


def _number(table: _Table, line: int, row: Sequence[str], place: int) -> float:
    text = row[place].strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        _refuse_cell(table, line, place, text)
    return number


def _refuse_cell(table: _Table, line: int, place: int, text: str) -> NoReturn:
    name = table.columns[place]
    if text == "":
        refuse("path", f'{table.place}:{line}: column "{name}" is empty', "Fill it in, or delete the line.")
    hint = f'Received: "{text[:60]}". A column of texts can be left out:  ignore: ["{name}"]'
    if line == 1:
        hint += "\nWhere the first line names the columns, write  header: true"
    refuse("path", f'{table.place}:{line}: column "{name}" is no finite number', hint)


def _labels(table: _Table, target: int) -> NDArray[np.int64] | NDArray[np.str_]:
    """The classes: as whole numbers where all are, else as texts, so that 10 comes after 9."""
    labels = [row[target].strip() for _, row in table.rows]
    for (line, _), label in zip(table.rows, labels, strict=True):
        if label == "":
            message = f'{table.place}:{line}: column "{table.columns[target]}" is empty'
            refuse("path", message, "Each example needs its class: fill it in, or delete the line.")
    try:
        return np.array([int(label) for label in labels], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(labels)
