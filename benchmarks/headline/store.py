"""Records of trainings in a folder: one line of JSON each, a file for each cell."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from benchmarks.headline.cells import Setting
from benchmarks.headline.trainings import EsperSettings, Job, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

_DEFAULTS = {field.name: field.default for field in fields(Job)}


def job_of(record: Mapping[str, Any]) -> Job:
    """Return the job of which this is the record."""
    arguments = {name: record[name] for name in _DEFAULTS}
    arguments["setting"] = Setting(**arguments["setting"])
    arguments["start"] = None if arguments["start"] is None else Setting(**arguments["start"])
    return Job(**arguments)


class Store:
    """The records in a folder. A line that a killed process left unfinished is dropped, and its training repeated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states = folder / "states"
        folder.mkdir(parents=True, exist_ok=True)
        self._records: dict[Job, dict[str, Any]] = {}
        for file in sorted(folder.glob("*.jsonl")):
            self._read(file)

    def _read(self, file: Path) -> None:
        complete, _, torn = file.read_bytes().rpartition(b"\n")
        if torn:
            file.write_bytes(complete + b"\n" if complete else b"")
        for line in complete.splitlines():
            self.remember({**_DEFAULTS, **json.loads(line)})

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._records.values())

    def get(self, job: Job) -> dict[str, Any] | None:
        """Return the record of a training; None if there is none."""
        return self._records.get(job)

    def add(self, record: dict[str, Any]) -> None:
        """Append a record to the file of its cell, without what is the default of a job."""
        short = {name: value for name, value in record.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}
        with (self.folder / f"{record['cell']}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(short, separators=(",", ":"), allow_nan=False) + "\n")
        self.remember(record)

    def remember(self, record: dict[str, Any]) -> None:
        """Keep a record without writing it."""
        self._records[job_of(record)] = record

    def train(
        self,
        jobs: Iterable[Job],
        settings: Callable[[Job], EsperSettings],
        processes: int = 1,
        on_record: Callable[[Mapping[str, Any]], None] = lambda record: None,
    ) -> int:
        """Train what has no record yet, in so many processes; return how many trainings that were."""
        missing = [job for job in dict.fromkeys(jobs) if self.get(job) is None]
        if processes == 1:
            for job in missing:
                self._finish(train(job, settings(job), self.states), on_record)
            return len(missing)
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            running = [pool.submit(train, job, settings(job), self.states) for job in missing]
            try:
                for done in as_completed(running):
                    self._finish(done.result(), on_record)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return len(missing)

    def _finish(self, record: dict[str, Any], on_record: Callable[[Mapping[str, Any]], None]) -> None:
        self.add(record)
        on_record(record)
