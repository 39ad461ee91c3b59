"""``esper run`` and ``esper resume``: load, build, run, show the results."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from esper_core.leyline.constants import FIRST_LOOK, PREPARATION_SECONDS
from esper_core.leyline.errors import EsperError, Problem, RunFolderError
from esper_core.leyline.files import is_url
from esper_run.cli.exits import preparation
from esper_run.cli.output import print_json, print_line, print_problems, print_warnings
from esper_run.options import local_runs_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from esper_core.plugins import Plugins
    from esper_core.telemetry import Listener
    from esper_run.app.compose import Composition
    from esper_run.app.run import Outcome
    from esper_run.config import LoadedConfig

set_option = click.option(
    "--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one value of the file; repeatable."
)
_quiet_option = click.option("--quiet", is_flag=True, help="Print no progress.")
_engine_option = click.option(
    "--engine",
    metavar="NAME",
    help="What lanes are: threads, or an installed one such as processes or ray. Short for --set engine=NAME.",
)
_address_option = click.option(
    "--address",
    help="The cluster of --engine ray; default: one on this machine. Short for --set engine.settings.address=…",
)
_watch_option = click.option("--watch", is_flag=True, help="Serve a live page of the run to a browser, until Ctrl-C.")
_open_option = click.option("--open", "open_browser", is_flag=True, help="With --watch: open a browser.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object on stdout.")


@dataclass(frozen=True, slots=True)
class Execution:
    """How a run is executed and shown: the options that ``run`` and ``resume`` have in common."""

    engine: str | None
    address: str | None
    quiet: bool
    as_json: bool
    watch: bool
    open_browser: bool

    def overriding(self, overrides: Sequence[str]) -> tuple[str, ...]:
        """Return overrides with the engine that was asked for, and the cluster."""
        engine = self.engine or (None if self.address is None else "ray")
        options = {"engine": engine, "engine.settings.address": self.address}
        return (*overrides, *(f"{path}={value}" for path, value in options.items() if value is not None))


def _execution_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of an ``Execution`` to a command, which gets them as its argument ``execution``."""
    names = [field.name for field in fields(Execution)]

    @wraps(command)
    def collect(*arguments: Any, **named: Any) -> None:
        execution = Execution(**{name: named.pop(name) for name in names})
        if execution.open_browser and not execution.watch:
            msg = "--open needs --watch"
            raise click.UsageError(msg)
        command(*arguments, execution=execution, **named)

    for option in (_open_option, _watch_option, _json_option, _quiet_option, _address_option, _engine_option):
        collect = option(collect)
    return collect


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE|RUN")
@set_option
@local_runs_option
@click.option("--name", help="Name of the run; default: two random words. Short for --set name=NAME.")
@_execution_options
def run(
    file: Path,
    overrides: tuple[str, ...],
    runs_dir: Path,
    name: str | None,
    *,
    execution: Execution,
) -> None:
    """Run a configuration, or repeat the run of a run directory.

    \b
    esper run plugins.yaml
    esper run plugins.yaml --set environments=2 --set episode.steps=10
    esper run runs/20261121-101512-quiet-otter
    """
    named = () if name is None else (f"name={json.dumps(name)}",)
    composition = build(*load(config_file(file), execution.overriding((*overrides, *named))))

    from esper_run.app.run import run as run_composition

    execute = partial(run_composition, composition, runs_dir=runs_dir)
    click.get_current_context().exit(_execute_and_show(execute, runs_dir, execution))


@click.command()
@click.argument("run")
@local_runs_option
@_execution_options
def resume(run: str, runs_dir: Path, *, execution: Execution) -> None:
    """Resume an interrupted or killed run from its newest checkpoint.

    The results are those of a run that was not interrupted. RUN is a path, an id, the words of an id, or the URL of a
    stored run, which is fetched first.

    \b
    esper resume quiet-otter
    esper resume s3://bucket/prefix/20261121-101512-quiet-otter
    """
    from esper_run.runs.directory import changed_packages
    from esper_run.runs.records import load_run
    from esper_run.stores import open_store, split_url

    overrides = list(execution.overriding(()))
    if is_url(run):
        folder, id_ = split_url(run)
        store = open_store(folder)
        run = str(store.fetch_whole(id_, runs_dir))
        overrides.append(f"store={store.url}")
    record = load_run(run, runs_dir=runs_dir)
    if record.status == "done":
        print_line(
            f"{record.path} is done. Show its results:  esper runs show {quote(str(record.path))}", stream=sys.stderr
        )
        return
    if record.is_of_loop:
        message = f"{record.path} is of a Gardener in a loop of its own, which esper does not have"
        raise RunFolderError(Problem("E413", message, hint=record.resume_hint))
    from esper_run.app.compose import changed_files

    composition = build(*load(record.path / "config.yaml", overrides))
    print_warnings((*changed_packages(record.manifest, record.path), *changed_files(composition, record)))

    from esper_run.app.run import resume as resume_composition

    execute = partial(resume_composition, composition, record)
    click.get_current_context().exit(_execute_and_show(execute, record.path.parent, execution))


def config_file(path: Path) -> Path:
    """Return the file to read: for a run directory, the configuration in it."""
    inside = path / "config.yaml"
    return inside if path.is_dir() and inside.is_file() else path


def load(file: Path, overrides: Sequence[str] = ()) -> tuple[LoadedConfig, Plugins]:
    """Load a configuration and the plugins that take part in it."""
    from esper_run.app.resolution import load_run_plugins
    from esper_run.config import load_config

    loaded = load_config(file, overrides)
    with preparation(_seconds(loaded)):
        return loaded, load_run_plugins(loaded, file.parent)


def build(loaded: LoadedConfig, plugins: Plugins) -> Composition:
    """Resolve and compose a configuration, and print warnings. torch is imported only once all names are known.

    If that fails, unmarked hooks are among the warnings, since they may be the cause.
    """
    from esper_run.app.resolution import one_line, resolve, unmarked_hooks

    try:
        with preparation(_seconds(loaded)):
            resolution = resolve(loaded, plugins)
            if (store := resolution.config.store) is not None:
                from esper_run.stores import open_store

                open_store(store)

            from esper_run.app.compose import compose

            composition = compose(resolution)
    except EsperError as error:
        print_warnings(one_line(problem) for problem in unmarked_hooks(plugins) if problem not in error.problems)
        raise
    print_warnings([*composition.resolution.warnings, *map(one_line, composition.warnings)])
    print_warnings(_what_steps_are_too_few_for(composition))
    return composition


def _what_steps_are_too_few_for(composition: Composition) -> Iterator[str]:
    """Yield a warning for each part of a policy's plan that does not fit into an episode."""
    steps, gated = composition.config.episode.steps, composition.config.growth.gates != "off"
    for arm in composition.arms:
        # A policy that goes by gates, not by a plan, also needs their looks at a seed that acts, less that of the ramp.
        looks = (FIRST_LOOK - 1) * (gated and hasattr(arm.policy, "for_loop"))
        needed = f" and {looks} more for the gate before keeping" if looks else ""
        for note in arm.impossible(steps - looks):
            yield f"arm {arm.name}: {steps} steps are too few for {note}{needed}: raise episode.steps"


def _seconds(loaded: LoadedConfig) -> float:
    """Return how long preparations may take: an hour, or ``patience`` if that is longer."""
    patience = loaded.config.patience
    return PREPARATION_SECONDS if patience == "auto" else max(PREPARATION_SECONDS, patience)


def _execute_and_show(execute: partial[Outcome], runs_dir: Path, execution: Execution) -> int:
    """Run or resume with progress on stderr, and print the outcome, even if it could not be written.

    Returns the exit code.
    """
    from esper_run.cli.output import print_outcome
    from esper_run.cli.page_beside import PageBeside
    from esper_run.cli.plain_progress import PlainLines

    outcomes: list[Outcome] = []
    page = PageBeside(runs_dir, open_browser=execution.open_browser) if execution.watch else None
    shown: list[Listener] = [] if execution.quiet else [PlainLines()]
    try:
        execute(
            argv=sys.argv,
            listeners=shown if page is None else [page, *shown],
            on_outcome=outcomes.append,
            on_warning=lambda text: print_warnings([text]),
        )
    finally:
        for outcome in outcomes:
            print_problems(outcome.problems)
            print_json(outcome.as_json()) if execution.as_json else print_outcome(outcome)
    if page is not None:
        page.wait()
    return max((outcome.exit_code for outcome in outcomes), default=0)
