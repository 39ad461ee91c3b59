"""Shared set-up: processes that run ``esper``, the members as wheels, and environments with chosen members.

An environment is a real one with an interpreter of its own. Third-party packages are those of the environment that
runs the tests, shown to it by links: torch need not be installed again, and no index is asked. ``new_environment``
shows all of them, and ``installed_product`` only what a product requires.
"""

import importlib.metadata
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
MEMBERS = tuple(sorted(path.parent.name for path in ROOT.glob("esper-*/pyproject.toml")))

# No variable of ours, no path to our sources, and no directory of bytecode.
OURS = ("esper", "_esper", "_editable", "__editable__", "__pycache__")


def build_wheels(projects: Iterable[Path], folder: Path) -> list[Path]:
    """Builds a wheel of each project into ``folder``, offline."""
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*command, "--wheel-dir", str(folder), *(str(project) for project in projects)])
    return sorted(set(folder.glob("*.whl")) - before)


def run(command: Sequence[str], *, cwd: Path | None = None, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``command`` outside of the tests' own paths, and check its exit status."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "ESPER"))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=kept)
    assert done.returncode == exit_code, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


@dataclass(frozen=True)
class CleanEnvironment:
    """A virtual environment with links to third-party packages, and the members that were installed."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, third_party: Path) -> "CleanEnvironment":
        """Make an environment that also imports from ``third_party``."""
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        environment = cls(folder)
        site_packages = environment.evaluate("import sysconfig; print(sysconfig.get_path('purelib'))")
        Path(site_packages, "third-party.pth").write_text(f"{third_party}\n", encoding="utf-8")
        return environment

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def install(self, *wheels: Path) -> None:
        """Installs ``wheels`` with pip, without their dependencies."""
        self.pip_install("--no-deps", *(str(wheel) for wheel in wheels))

    def pip_install(self, *arguments: str) -> None:
        """Run ``pip install`` with these arguments, without an index."""
        run([sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-index", *arguments])

    def run(self, *arguments: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, for example ``run("esper", "--help")``, in its folder."""
        program, *options = arguments
        return run([str(self.folder / "bin" / program), *options], cwd=self.folder, exit_code=exit_code)

    def evaluate(self, program: str) -> str:
        """Return what ``program``, a few lines of Python, prints."""
        return run([self.python, "-c", program], cwd=self.folder).stdout.strip()


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel of each member, by the member's name."""
    built = build_wheels([ROOT / member for member in MEMBERS], tmp_path_factory.mktemp("wheels"))
    return {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in built}


@pytest.fixture(scope="session")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links to every installed package but ours."""
    folder = tmp_path_factory.mktemp("third-party")
    for kind in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(kind).iterdir():
            if not entry.name.startswith(OURS):
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="session")
def new_environment(
    tmp_path_factory: pytest.TempPathFactory, third_party: Path, wheels: dict[str, Path]
) -> Callable[..., CleanEnvironment]:
    """Make a clean environment with these members: ``new_environment("esper-core", "esper-watch")``."""

    def make(*members: str) -> CleanEnvironment:
        environment = CleanEnvironment.create(tmp_path_factory.mktemp("environment"), third_party)
        if members:
            environment.install(*(wheels[member] for member in members))
        return environment

    return make


def wheel_metadata(wheel: Path) -> Message:
    """Return the METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def required_third_party(products: Iterable[str], wheels: dict[str, Path]) -> set[str]:
    """Return the third-party packages that members require, directly or not, without those of extras."""
    waiting, seen = [*products], set()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        if name in wheels:
            lines = wheel_metadata(wheels[name]).get_all("Requires-Dist", [])
        else:
            lines = importlib.metadata.requires(name) or []
        requirements = map(Requirement, lines)
        waiting += [wanted.name for wanted in requirements if wanted.marker is None or wanted.marker.evaluate()]
    return seen - set(wheels)


@pytest.fixture(scope="session")
def installed_product(
    tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]
) -> Callable[..., CleanEnvironment]:
    """``installed_product("esper-run")``: members as ``pip install`` installs them, with what they require alone.

    pip finds the members that they require among the wheels. An environment is made once for the same members.
    """
    environments: dict[tuple[str, ...], CleanEnvironment] = {}

    def make(*products: str) -> CleanEnvironment:
        if products not in environments:
            links = tmp_path_factory.mktemp("required")
            for package in required_third_party(products, wheels):
                distribution = importlib.metadata.distribution(package)
                for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                    if not (links / name).exists():  # several packages may share a namespace
                        (links / name).symlink_to(distribution.locate_file(name))
            environment = CleanEnvironment.create(tmp_path_factory.mktemp("product"), links)
            environment.pip_install("--find-links", str(wheels["esper-core"].parent), *products)
            environments[products] = environment
        return environments[products]

    return make


PATIENCE = 60.0
"""Seconds to wait for a process; only a failing test waits that long."""


@dataclass
class Processes:
    """Starts ``esper`` in a process of its own, one at a time, without importing anything again."""

    server: subprocess.Popen[str]
    folder: Path
    pid: int = 0
    running: bool = False

    def start(
        self,
        *arguments: str | Path,
        out: Path | None = None,
        err: Path | None = None,
        terminal: str | None = None,
        ignored: Sequence[str] = (),
        cwd: Path | None = None,
        **env: str,
    ) -> int:
        """Start a command and return its process id. Output goes to ``terminal``, or to files."""
        if self.running:  # left by a test that failed
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        files = {"out": out or (None if terminal else self._empty("out"))}
        files["err"] = err or (None if terminal else self._empty("err"))
        request = {"argv": list(map(str, arguments)), "terminal": terminal, "ignored": list(ignored), "env": env}
        request["cwd"] = str(cwd or Path.cwd())
        request |= {name: file and str(file) for name, file in files.items()}
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        self.pid, self.running = self._number(), True
        return self.pid

    def wait(self, seconds: float = 600.0) -> int:
        """Return the exit status of the command that was started last; negative: the signal that ended it.

        After ``seconds`` it is killed, and the test fails.
        """
        in_time = bool(select.select([self.server.stdout], [], [], seconds)[0])
        if not in_time:
            os.kill(self.pid, signal.SIGKILL)
        status, self.running = self._number(), False
        assert in_time, f"it did not end in {seconds} seconds\n{self.err[-3000:]}"
        return status

    def call(self, *arguments: str | Path) -> int:
        self.start(*arguments)
        return self.wait()

    def wait_for(self, reached: Callable[[], object]) -> None:
        """Wait until the running command has reached a state."""
        deadline = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < deadline, f"nothing happened\n{self.err}"
            time.sleep(0.005)

    def interrupt(self, runs: Path, number: int = signal.SIGINT) -> Path:
        """Send a signal to the run in ``runs`` after its first step, and return its directory."""
        self.wait_for(lambda: any(b"step-finished" in file.read_bytes() for file in runs.glob("*/events.jsonl")))
        os.kill(self.pid, number)
        (run,) = runs.iterdir()
        return run

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text(encoding="utf-8")

    def _empty(self, name: str) -> Path:
        (self.folder / name).write_text("")
        return self.folder / name

    def _number(self) -> int:
        assert self.server.stdout is not None
        return int(self.server.stdout.readline())


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """``processes.start("run", file)``: the command line in another process."""
    command = [sys.executable, str(Path(__file__).with_name("forked_cli.py"))]
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield Processes(server, tmp_path_factory.mktemp("processes"))
        assert server.stdin is not None
        server.stdin.close()
