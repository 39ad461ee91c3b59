"""What course did the metric of a run take? A few figures, read from a few places of its events.

The events stand in their order, so that a step is found by halving the file, however long it is.

>>> spark([0.1, 0.2, 0.4, 0.8], BLOCKS)
'▁▂▄█'
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from esper_core.config.limits import CAPACITY
from esper_core.leyline.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from io import BufferedReader

    from esper_core.runs.records import Run

BLOCKS: Final = "▁▂▃▄▅▆▇█"
LETTERS: Final = "_.-:=+*#"
"""The same for a stream that has no blocks."""

POINTS: Final = 16
"""Figures of a course."""

LONGEST_LINE: Final = 1 << 20
"""Bytes of one event, above which the file is none of a run."""

ROUNDS_OF_A_COURSE: Final = 4
"""Rounds from which on the course is over them, and no longer over the steps of the latest."""

READ_AT_A_POINT: Final = 1 << 16
"""Bytes that are read of one step: where it has more environments, the mean is over the first of them."""


SOUGHT: Final = 1 << 22
"""Bytes within which there has to be a step, wherever a file of events is opened."""

BEHIND: Final = (1 << 62, 0)
"""The place of a control: behind all others."""


@dataclass(frozen=True, slots=True)
class Course:
    """The validation metric of an arm, mean over its environments: at the ends of the rounds, or in the latest one."""

    arm: str
    over: str
    """``rounds``, or ``steps`` where there are few of them."""
    values: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """The course as ``esper runs list --json`` prints it."""
        return {"arm": self.arm, "over": self.over, "values": list(self.values)}


def course_of(run: Run) -> Course | None:
    """The course of a run's best arm that may grow, or of the first; None where it has none that could be read."""
    try:
        with open_regular(run.path / "events.jsonl") as file:
            started = json.loads(file.readline(LONGEST_LINE))
            arm = _best(run.results, started["arms"])
            steps = _Steps(file, file.tell())
            last_round, last_step = steps.last()
            over = "rounds" if last_round + 1 >= ROUNDS_OF_A_COURSE else "steps"
            if over == "rounds":
                places = [(place, started["steps"] - 1) for place in _spread(last_round)]
            else:
                places = [(last_round, place) for place in _spread(last_step)]
            values = [fmean(found) for place in places if (found := steps.values(place, arm))]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    return Course(arm, over, tuple(values)) if values else None


def spark(values: Sequence[float], signs: str) -> str:
    """One sign for each value, the lowest and the highest of them from one end of the signs to the other."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high <= low:
        return signs[len(signs) // 2] * len(values)
    return "".join(signs[round((value - low) / (high - low) * (len(signs) - 1))] for value in values)


def _spread(last: int) -> list[int]:
    """Places from 0 to ``last``, both of them, as far apart as they can be.

    >>> _spread(3), _spread(75)
    ([0, 1, 2, 3], [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75])
    """
    count = min(POINTS, last + 1)
    return [round(place * last / max(1, count - 1)) for place in range(count)]


def _best(results: Mapping[str, Any] | None, arms: Sequence[str]) -> str:
    """The arm that did best among those that may grow; the first of them where nothing is known."""
    growing = [arm for arm in arms if not _is_control(arm)] or list(arms)
    if results is None:
        return growing[0]
    means = {arm: own["test"]["mean"] for arm, own in results["arms"].items() if own["test"]["mean"] is not None}
    up = 1 if results["metric"]["direction"] == "up" else -1
    return max(growing, key=lambda arm: up * means[arm] if arm in means else -math.inf)


def _is_control(arm: str) -> bool:
    """Whether an arm is the twin, or a control by capacity, which follows the others."""
    return arm == "twin" or _follows(arm)


def _follows(arm: str) -> bool:
    if not isinstance(arm, str):
        msg = f"no name of an arm: {arm}"
        raise TypeError(msg)
    return arm == CAPACITY or arm.startswith(f"{CAPACITY}-of-")


def _place(event: Mapping[str, Any]) -> tuple[int, int]:
    place = event["round"], event["step"]
    if not all(type(one) is int for one in place):
        msg = f"no place of a step: {place}"
        raise TypeError(msg)
    return place


class _Steps:
    """The steps of a file of events, found by their place; ``begin`` is where its second line begins."""

    def __init__(self, file: BufferedReader, begin: int) -> None:
        self._file = file
        self._begin = begin
        self._end = os.fstat(file.fileno()).st_size

    def last(self) -> tuple[int, int]:
        """Round and step of the last one that was told of. LookupError where there is none."""
        low, high = self._begin, self._first_after(BEHIND)
        back = 1 << 14
        while True:
            self._file.seek(max(low, high - back))
            if high - back > low:
                self._file.readline(LONGEST_LINE)
            found = [place for place, _ in self._until(high)]
            if found:
                return found[-1]
            if high - back <= low or back > LONGEST_LINE:
                msg = "no step was finished"
                raise LookupError(msg)
            back *= 8

    def values(self, place: tuple[int, int], arm: str) -> list[float]:
        """The validation metric of each environment of the arm in one step, as far as it is a number."""
        begin = self._first_after(place)
        self._file.seek(begin)
        found = []
        for own, event in self._until(begin + READ_AT_A_POINT):
            if own != place:
                break
            value = event["signals"]["validation_metric"]
            if event["arm"] == arm and isinstance(value, float | int) and math.isfinite(value):
                found.append(float(value))
        return found

    def _first_after(self, place: tuple[int, int]) -> int:
        """Where the first line begins that is of this place, of a later one, or of a control that follows."""
        low, high = self._begin, self._end
        while low < high:
            middle = (low + high) // 2
            self._file.seek(middle)
            if middle > self._begin:
                self._file.seek(middle - 1)
                self._file.readline(LONGEST_LINE)
            begin = self._file.tell()
            own = next(self._places(), None) if begin < high else None
            if own is None or own >= place:
                high = middle
            else:
                low = middle + 1
        self._file.seek(max(low - 1, 0))
        if low > self._begin:
            self._file.readline(LONGEST_LINE)
        else:
            self._file.seek(low)
        return self._file.tell()

    def _places(self) -> Iterator[tuple[int, int]]:
        """The places of the steps from here on; of a control one that is behind all others."""
        for event in self._told(min(self._end, self._file.tell() + SOUGHT)):
            yield BEHIND if _follows(event["arm"]) else _place(event)

    def _until(self, end: int) -> Iterator[tuple[tuple[int, int], Mapping[str, Any]]]:
        for event in self._told(end):
            if not _follows(event["arm"]):
                yield _place(event), event

    def _told(self, end: int) -> Iterator[Mapping[str, Any]]:
        """The finished steps of the whole lines that begin before ``end``."""
        while self._file.tell() < end:
            line = self._file.readline(LONGEST_LINE)
            if not line.endswith(b"\n"):
                return
            if b'"step-finished"' in line[:100]:
                yield json.loads(line)
