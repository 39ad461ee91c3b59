"""What happens when a prepared run runs? It is written down, run, and closed with one status, however it ends."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from esper_core.app.guarding import health_check
from esper_core.app.interruption import heeded_signals
from esper_core.app.observing import Observers
from esper_core.app.resolved import resolved_config
from esper_core.app.results import results
from esper_core.app.surrounding import surrounded
from esper_core.config import dump_config
from esper_core.config.plain import plain
from esper_core.leyline.errors import EsperError, GovernorStop, Interrupted
from esper_core.leyline.events import RunFinished, RunStarted
from esper_core.leyline.running import RunContext, RunInfo, RunOutcome, frozen
from esper_core.plugins.discovery import LOCAL_FILE
from esper_core.runs import RunDirectory
from esper_core.telemetry import BestEffort, Bus, Clock, EventFile
from esper_core.trainer.answerable import answerable
from esper_core.trainer.loop import run_study

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from esper_core.app.compose import Composition
    from esper_core.app.preparing import Prepared
    from esper_core.app.resolution import Resolution
    from esper_core.leyline.events import EpisodeFinished
    from esper_core.telemetry import Listener
    from esper_core.trainer.pool import Ending

log = logging.getLogger("esper")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run found; the same as its summary.json."""

    path: Path
    results: Mapping[str, Any]
    timing: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """The one object that ``esper run --json`` prints."""
        return {"run": str(self.path), "status": "done", "results": self.results, "timing": self.timing}


def run(
    prepared: Prepared,
    *,
    runs_dir: Path,
    name: str | None = None,
    argv: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
) -> Outcome:
    """Run a study in a new run directory. Whatever happens, the directory says how it ended."""
    config = prepared.composition.resolution.loaded.config
    directory = RunDirectory.create(runs_dir, name=name or config.name, argv=list(argv))
    _write_beginning(directory, prepared)
    about, observers = _about(directory, prepared.composition), Observers(prepared.plugins)
    with _logged(directory.path / "log.txt"), _observed(observers, about) as done:
        outcome = _run(prepared, directory, about, observers, listeners)
        done(outcome)
    return outcome


def _run(
    prepared: Prepared, directory: RunDirectory, about: RunInfo, observers: Observers, listeners: Sequence[Listener]
) -> Outcome:
    with _closing(directory), heeded_signals() as pause:
        log.info("run %s begins", directory.path.name)
        observers.configured(prepared.settings, lambda: plain(resolved_config(prepared.composition.resolution)))
        events = EventFile(directory.path / "events.jsonl")
        sinks = _sinks(prepared.composition.resolution, directory.path)
        bus, clock = Bus([events, *listeners, *sinks, observers]), Clock()
        try:
            bus.publish(
                RunStarted(
                    run=about.id,
                    arms=about.arms,
                    rounds=about.rounds,
                    environments=about.environments,
                    steps=about.steps,
                )
            )
            observers.run_started(about)
            study = prepared.composition.study(bus, clock, pause, health_check(prepared.plugins))
            with _one_thread():
                finished = surrounded(prepared.plugins, RunContext(about), lambda: run_study(study))
            bus.publish(RunFinished(status="done"))
        except BaseException as error:
            bus.publish(RunFinished(status=_ending(error)[0], reason=_reason(error)))
            raise
        finally:
            events.close()
            for sink in sinks:
                sink.close()
        return _write_end(directory, prepared.composition, finished, clock)


def _write_beginning(directory: RunDirectory, prepared: Prepared) -> None:
    resolution = prepared.composition.resolution
    config = resolution.loaded.config
    directory.begin(
        config=dump_config(resolved_config(resolution)),
        source=resolution.loaded.source,
        overrides=list(resolution.loaded.overrides),
        seeds=list(range(config.seed, config.seed + config.rounds * config.environments)),
        plugins=[
            {
                "id": record.id,
                "package": record.package,
                "version": record.version,
                "entry_point": Path(record.origin).name if record.package == LOCAL_FILE else record.origin,
                "sha256": record.sha256,
            }
            for record in prepared.plugins.records
            if record.status == "active"
        ],
    )
    for file in prepared.plugins.files:
        directory.write(file.path.name, file.source)


def _about(directory: RunDirectory, composition: Composition) -> RunInfo:
    config = composition.resolution.loaded.config
    return RunInfo(
        id=directory.path.name,
        path=directory.path,
        arms=composition.arm_names,
        rounds=config.rounds,
        environments=config.environments,
        steps=config.episode.steps,
        device=str(composition.recipe.device),
    )


def _sinks(resolution: Resolution, run: Path) -> list[BestEffort]:
    """The sinks that the file asks for; one that cannot be built stops the run before it begins."""
    sinks = []
    for chosen in resolution.sinks:
        factory = chosen.component.load()
        with answerable(chosen.label, "while it was built"):
            sinks.append(BestEffort(factory(run, **chosen.settings), chosen.label))
    return sinks


def _write_end(
    directory: RunDirectory,
    composition: Composition,
    finished: Sequence[tuple[EpisodeFinished, Ending]],
    clock: Clock,
) -> Outcome:
    episodes = [episode for episode, _ in finished]
    config = composition.resolution.loaded.config
    found = results(composition.task.metric, composition.arm_names, episodes, config.margin)
    directory.write_json(
        "growth.json",
        {
            "format": 1,
            "episodes": [
                {
                    "round": episode.round,
                    "arm": episode.arm,
                    "seed": episode.seed,
                    "grown": [asdict(growth) for growth in ending.growth],
                }
                for episode, ending in finished
            ],
        },
    )
    outcome = Outcome(directory.path, found, {key: round(value, 4) for key, value in clock.summary().items()})
    directory.write_json("summary.json", outcome.as_json())
    return outcome


@contextmanager
def _observed(observers: Observers, run: RunInfo) -> Iterator[Callable[[Outcome], None]]:
    """A block after which observers are told how the run ended; it is given the outcome, if there is one."""
    outcomes: list[Outcome] = []
    try:
        yield outcomes.append
    except BaseException as error:
        observers.run_finished(run, RunOutcome(_ending(error)[0], _reason(error)))
        raise
    observers.run_finished(run, RunOutcome("done", results=frozen(outcomes[0].results)))


@contextmanager
def _closing(directory: RunDirectory) -> Iterator[None]:
    """A block after which the manifest says how it ended."""
    try:
        yield
    except BaseException as error:
        status, exit_code = _ending(error)
        directory.finish(status=status, exit_code=exit_code, reason=_reason(error))
        raise
    directory.finish(status="done", exit_code=0)


def _ending(error: BaseException) -> tuple[Any, int]:
    if isinstance(error, Interrupted):
        return "interrupted", error.status
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, GovernorStop):
        return "stopped", error.exit_code
    return "failed", error.exit_code if isinstance(error, EsperError) else 1


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, EsperError) else f"{type(error).__name__}: {error}"


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """A block in which what is said goes to log.txt, too."""
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()


@contextmanager
def _one_thread() -> Iterator[None]:
    """One intra-op thread: another number gives other bits, and small networks are no faster with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
