"""Where does a run keep what it found? In one folder, of which nothing is pickled.

manifest.json        what ran: id, status, argv, times, exit, process, seeds (the first, and how many), machine, plugins
config.yaml          the configuration, resolved; it can be run as it is
config.source.yaml   what was written            overrides.txt   what --set said
config.base-1.yaml   what it is built on, if it is: config.base-2.yaml is the base of that, and so on
packages.txt         what was installed          git.patch       uncommitted changes, capped
events.jsonl         everything that happened, as it happened
checkpoints/  latest where it is, and what it takes to go on from there (runs.checkpoints)
growth.json          what each network grew into
summary.json         the figures of the end      log.txt         what was said on the way
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from esper_core.leyline.constants import RUN_FORMAT
from esper_core.leyline.errors import Problem, RunFolderError
from esper_core.runs.files import told_plainly, write_json, write_whole
from esper_core.runs.naming import run_id
from esper_core.runs.provenance import git_state, machine, packages, process

if TYPE_CHECKING:
    from pathlib import Path

STATUS_RUNNING = "running"


class RunDirectory:
    """One run's folder. The manifest is rewritten whole whenever the run's status changes."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def create(cls, root: Path, *, name: str | None, argv: list[str]) -> RunDirectory:
        """A new folder below ``root``, with its first manifest in it; RunFolderError where there can be none."""
        began = datetime.now(UTC)
        with told_plainly(root):
            root.mkdir(parents=True, exist_ok=True)
        for _ in range(100):
            path = root / run_id(began.astimezone(), name)
            with told_plainly(path):
                try:
                    path.mkdir()
                except FileExistsError:
                    name = None if name is None else f"{name}-again"
                    continue
            directory = cls(path, _first_manifest(path.name, argv, began))
            directory._write_manifest()
            return directory
        raise RunFolderError(Problem("E411", f"no free name for a run in {root}"))

    def resume(self, argv: list[str], checkpoint: int | None) -> None:
        """Write down that the run goes on, from which checkpoint (None: from the start), and in which process."""
        now = {"at": _now(), "argv": argv, "checkpoint": checkpoint, "after": self.manifest.get("status")}
        resumed = [*self.manifest.get("resumed", []), now]
        fresh = {"status": STATUS_RUNNING, "exit": None, "finished": None, "process": process(), "machine": machine()}
        self.manifest = {**self.manifest, **fresh, "resumed": resumed}
        self.manifest.pop("reason", None)
        self._write_manifest()

    def begin(self, *, config: str, source: bytes, overrides: list[str], seeds: dict[str, int], plugins: Any) -> None:
        """Write down what is about to run."""
        state = git_state(self.path)
        self.manifest |= {
            "seeds": seeds,
            "plugins": plugins,
            "git": None if state is None else {"sha": state.sha, "dirty": state.dirty},
        }
        self.write("config.yaml", config)
        self.write("config.source.yaml", source)
        if overrides:
            self.write("overrides.txt", "\n".join(overrides) + "\n")
        self.write("packages.txt", "\n".join(packages()) + "\n")
        if state is not None and state.patch:
            self.write("git.patch", state.patch)
        self._write_manifest()

    def finish(self, *, status: str, exit_code: int, reason: str = "") -> None:
        """Write down how the run ended."""
        self.manifest |= {
            "status": status,
            "exit": exit_code,
            "reason": reason,
            "finished": _now(),
        }
        self._write_manifest()

    def write(self, name: str, content: str | bytes) -> None:
        """Write one file whole."""
        write_whole(self.path / name, content)

    def write_json(self, name: str, value: Any) -> None:
        """Write one JSON file whole."""
        write_json(self.path / name, value)

    def _write_manifest(self) -> None:
        write_json(self.path / "manifest.json", self.manifest)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _first_manifest(id_: str, argv: list[str], began: datetime) -> dict[str, Any]:
    return {
        "format": RUN_FORMAT,
        "id": id_,
        "status": STATUS_RUNNING,
        "argv": argv,
        "started": began.isoformat(timespec="seconds"),
        "finished": None,
        "exit": None,
        "process": process(),
        "machine": machine(),
    }
