"""Set-up for examples of errors that their pages do not show: files, packages, runs, objects.

``SCENES`` maps codes to functions or context managers that take the folder in which the example runs, ``NAMES`` to
functions that create objects for the example.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import shutil
import sys
from typing import TYPE_CHECKING, Final
from unittest import mock

import torch
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn

from esper_core import BlueprintSpec, graft
from esper_core.growth import Garden, OptimizerKeeper, Variety
from esper_core.leyline import Action, Op, Stage
from esper_core.settings import GrowthConfig, OptimizerConfig
from esper_grow import save
from esper_run import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from esper_core.leyline import Site

RUN: Final = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy:
  use: schedule
  settings: {plan: [{step: 0, op: germinate, slot: early, blueprint: conv_light}]}
environments: 2
episode: {steps: 3, batches: 1, batch_size: 20}
capacity: false
"""

STOPS: Final = """\
import os
import signal

from esper_core import hookimpl


@hookimpl
def esper_step_finished(events):
    if events[0].step == 1:
        os.kill(os.getpid(), signal.SIGTERM)
"""


def small(folder: Path) -> None:
    """Write ``run.yaml``, which any machine runs in a second."""
    (folder / "run.yaml").write_text(RUN, encoding="utf-8")


def many_problems(folder: Path) -> None:
    """Write a file with a thousand unknown keys."""
    (folder / "f.yaml").write_text("task: stripes\n" + "".join(f"key-{number}: 1\n" for number in range(1000)))


def large_file(folder: Path) -> None:
    """Write a file that is one byte too large."""
    (folder / "f.yaml").write_bytes(b"#" * (2**20 + 1))


def wide_file(folder: Path) -> None:
    """Write a file in another encoding, as some editors do."""
    (folder / "f.yaml").write_bytes("task: stripes\n".encode("utf-16"))


@contextlib.contextmanager
def no_gpu(folder: Path) -> Iterator[None]:
    """Hide every CUDA device of this machine."""
    none = mock.patch("torch.cuda.is_available", return_value=False)
    with mock.patch("torch.cuda.device_count", return_value=0), none:
        yield


def ended(folder: Path, name: str, *more: str) -> Path:
    """Run ``run.yaml``, however it ends, and return the folder of the run."""
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        small(folder)
        with contextlib.redirect_stderr(io.StringIO()):
            cli.main(["run", "run.yaml", "--quiet", "--name", name, *more])
    (run,) = folder.glob(f"runs/*-{name}")
    return run


def stopped(folder: Path) -> Path:
    """Make a run that was stopped in its second step and can be resumed."""
    file = folder / "stops.py"
    file.write_text(STOPS, encoding="utf-8")
    run = ended(folder, "quiet-otter", "--set", "plugins.local=[stops.py]")
    file.write_text("", encoding="utf-8")
    return run


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold the lock of a run, as a process that works in it does."""
    from esper_run.runs.directory import run_lock

    with run_lock(stopped(folder)):
        yield


def no_whole_checkpoint(folder: Path) -> None:
    """Make a run whose checkpoints are damaged, each in another way."""
    older, newer = sorted(stopped(folder).glob("checkpoints/*/"))[-2:]
    (older / "COMPLETE").unlink()
    with (newer / "tensors.safetensors").open("ab") as file:
        file.write(b"more")


def no_event(folder: Path) -> None:
    """Write an invalid event into the events of a run."""
    events = ended(folder, "quiet-otter") / "events.jsonl"
    text = events.read_text(encoding="utf-8")
    events.write_text(text.replace('"status":"done"', '"status":"fine"'), encoding="utf-8")


def cut_off(folder: Path) -> None:
    """Make a run whose summary is empty."""
    (ended(folder, "quiet-otter") / "summary.json").write_bytes(b"")


def died(folder: Path) -> None:
    """Make a run that finished, and one whose process was killed."""
    ended(folder, "quiet-otter")
    run = ended(folder, "swift-heron")
    (run / "summary.json").unlink()
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    manifest |= {"status": "running", "process": None, "sha256": {}}
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def name_taken(folder: Path) -> None:
    """Make a run that has the only name available here."""
    ended(folder, "quiet-otter")


class _Narrow(nn.Linear):
    """A block that returns fewer features than it receives."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.channels, site.channels)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs)[:, :-1]


def _garden(*varieties: Variety) -> tuple[nn.Module, Garden]:
    """Graft a network with the slot ``early``; return it with its garden."""
    model = graft(nn.Sequential(nn.Linear(4, 4)), {"early": "0"}, example=torch.randn(2, 4))
    keeper = OptimizerKeeper(model.parameters(), host_settings=OptimizerConfig(), seed_settings=OptimizerConfig())
    return model, Garden(
        model, keeper, {"early": varieties}, seed=0, batches=1, settings=GrowthConfig(gates="off", incubation="shadow")
    )


class _Choosing(nn.Module):
    """Chooses what it computes by the values of its inputs."""

    def __init__(self, site: Site) -> None:
        super().__init__()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs, or their negatives."""
        return inputs if inputs.sum() > 0 else -inputs


def _wide(name: str = "own/wide", version: int = 1) -> Variety:
    spec = BlueprintSpec("vector", version=version)
    return Variety(name, spec, lambda site: nn.Linear(site.channels, site.channels))


def empty_garden() -> dict[str, object]:
    """Return a garden in which nothing grows."""
    return {"garden": _garden(_wide())[1]}


def living_garden() -> dict[str, object]:
    """Return a garden with a living seed, and its network."""
    model, garden = _garden(_wide())
    garden.apply(Action(Op.GERMINATE, "early", "own/wide", speed=0), step=0)
    return {"garden": garden, "model": model}


def kept_branch() -> dict[str, object]:
    """Return a network with a kept seed that branches on the values of its inputs."""
    model, garden = _garden(Variety("own/choosing", BlueprintSpec("vector"), _Choosing))
    garden.apply(Action(Op.GERMINATE, "early", "own/choosing", speed=0), step=0)
    garden.living_seeds()[0].stage = Stage.FOSSILISED
    return {"model": model}


def failing_seed() -> dict[str, object]:
    """Return a network with a living seed that returns a wrong shape."""
    model, garden = _garden(Variety("own/narrow", BlueprintSpec("vector"), _Narrow))
    garden.apply(Action(Op.GERMINATE, "early", "own/narrow", speed=0), step=0)
    garden.open_step()
    garden.apply(Action(Op.ADVANCE, "early"), step=1)
    return {"model": model}


def newer_journal(folder: Path) -> None:
    """Save a network and change the format of its growth journal."""
    save(_garden(_wide())[0], folder / "grown")
    file = folder / "grown" / "growth.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "format": 5}), encoding="utf-8")


def newer_blueprint(folder: Path) -> None:
    """Save a network that grew with a later version of an installed blueprint."""
    model, garden = _garden(_wide("blueprints/mlp", version=9))
    garden.apply(Action(Op.GERMINATE, "early", "blueprints/mlp", speed=0), step=0)
    save(model, folder / "grown")


@contextlib.contextmanager
def _installed(
    folder: Path, name: str, source: str, *, entry: str, group: str = "esper.plugins", requires: str = "esper-core"
) -> Iterator[None]:
    """Install a package with one module, as pip would."""
    site, module = folder / "site", name.replace("-", "_")
    metadata = site / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / f"{module}.py").write_text(source, encoding="utf-8")
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {requires}\n"
    (metadata / "METADATA").write_text(head, encoding="utf-8")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry}\n", encoding="utf-8")
    with mock.patch.object(sys, "path", [str(site), *sys.path]):
        importlib.invalidate_caches()
        yield


def for_another_core(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Install a package that is older than this esper-core."""
    return _installed(folder, "esper-extra", "", entry="extra = esper_extra", requires="esper-core<0.1")


def damaged(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Install a package with an invalid line in its metadata."""
    return _installed(folder, "esper-extra", "", entry="nonsense")


def with_a_command(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Install a package that adds a command."""
    return _installed(folder, "esper-extra", "", entry="grow = esper_extra:command", group="esper.commands")


def own_loop() -> dict[str, object]:
    """Return the model and the data of a training loop, and the arguments of its Gardener."""

    def per_example(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs), targets, reduction="none")

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    batches = [(torch.randn(20, 4), torch.randint(0, 3, (20,))) for _ in range(3)]
    saved = torch.optim.Adam([*model.parameters(), *nn.Linear(2, 2).parameters()]).state_dict()
    settings = {"loss": per_example, "slots": ["0"], "example": batches[0], "validation": batches}
    return {"model": model, "batches": batches, "settings": settings, "saved": saved}


def own_script() -> dict[str, object]:
    """Return what a probe takes: a model, its loss, and batches of 50 examples."""
    names = own_loop()
    batches = [(torch.randn(50, 4), torch.randint(0, 3, (50,))) for _ in range(3)]
    return {"model": names["model"], "loss": names["settings"]["loss"], "batches": batches}  # type: ignore[index]


@contextlib.contextmanager
def stored(folder: Path) -> Iterator[Path]:
    """Run a configuration with a store in memory; return the run directory."""
    with mock.patch.object(MemoryFileSystem, "store", {}), mock.patch.object(MemoryFileSystem, "pseudo_dirs", [""]):
        yield ended(folder, "quiet-otter", "--set", "store=memory://runs")


@contextlib.contextmanager
def damaged_store(folder: Path) -> Iterator[None]:
    """Store a run, and lose its directory and the stored files."""
    with stored(folder) as run:
        shutil.rmtree(run)
        for path in [path for path in MemoryFileSystem.store if "/files/" in path]:
            del MemoryFileSystem.store[path]
        yield


@contextlib.contextmanager
def behind(folder: Path) -> Iterator[None]:
    """Store a run, and keep a directory without its results."""
    with stored(folder) as run:
        (run / "summary.json").unlink()
        yield


SCENES: Final[Mapping[str, Callable[[Path], object]]] = {
    "E100": many_problems,
    "E102": large_file,
    "E103": wide_file,
    "E123": no_gpu,
    "E212": for_another_core,
    "E223": damaged,
    "E224": with_a_command,
    "E331": newer_journal,
    "E333": newer_blueprint,
    "E411": name_taken,
    "E412": in_use,
    "E413": no_whole_checkpoint,
    "E421": no_event,
    "E430": cut_off,
    "E431": died,
    "E435": damaged_store,
    "E437": behind,
    **dict.fromkeys(("E228", "E229", "E231", "E233", "E236", "E237", "E401", "E402", "E410"), small),
}


NAMES: Final[Mapping[str, Callable[[], dict[str, object]]]] = {
    **dict.fromkeys(("E301", "E302", "E303", "E307", "E308", "E309"), empty_garden),
    **dict.fromkeys(("E304", "E336"), living_garden),
    "E320": failing_seed,
    "E337": kept_branch,
    **dict.fromkeys(("E340", "E341", "E342", "E344", "E345", "E346", "E347", "E348", "E357", "E358"), own_loop),
    **dict.fromkeys(("E350", "E351", "E352", "E353", "E354"), own_script),
}
"""The objects that the example of an error uses without creating them, as a comment on its page says."""


@contextlib.contextmanager
def scene(code: str, folder: Path) -> Iterator[None]:
    """Set up what the example of ``code`` needs while it runs."""
    setup = SCENES[code](folder) if code in SCENES else None
    with setup if isinstance(setup, contextlib.AbstractContextManager) else contextlib.nullcontext():
        yield
