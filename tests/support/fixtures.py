"""Shared fixtures: packages that are installed for a test, the command line, and a terminal."""

import importlib.util
import io
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of libraries that are not installed, and tests marked ``members`` if only the core is."""
    is_core_alone = importlib.util.find_spec("esper_tasks") is None
    for test in items:
        if is_core_alone and test.get_closest_marker("members"):
            test.add_marker(pytest.mark.skip(reason="needs the project's other members"))
        for name in [mark.args[0] for mark in test.iter_markers("library")]:
            if importlib.util.find_spec(name) is None:
                test.add_marker(pytest.mark.skip(reason=f"needs {name}: make test-slow installs it"))


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests were started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python imports from until the end of the test."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("ESPER_SAFE_MODE", raising=False)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@dataclass(frozen=True)
class SitePackages:
    """Installs packages of one module as pip does."""

    folder: Path

    def __call__(
        self, id_: str, source: str, *, package: str = "", requires: str = "esper-core", version: str | None = "1.0"
    ) -> Path:
        """``install("extra", source)``: install esper-extra 1.0 with this plugin; its first line of code is line 1."""
        package = package or f"esper-{id_}"
        module = package.replace("-", "_").lower()
        self.metadata(package, f"[esper.plugins]\n{id_} = {module}\n", requires=requires, version=version)
        return self._write(module, source)

    def components(self, id_: str, source: str, **components: dict[str, str]) -> Path:
        """``install.components("extra", source, reward={"judge": "Judge"})``: install a plugin with these components.

        A specification can follow the class: ``{"judge": "Judge, RewardSpec('Fair.')"}``.
        """
        hooks = []
        for kind, classes in components.items():
            added = "".join(
                f"\n    registry.add({name!r}, {args if ',' in args else f'{args}, {kind.capitalize()}Spec()'})"
                for name, args in classes.items()
            )
            plural = "policies" if kind == "policy" else f"{kind}s"
            hooks.append(f"\n@hookimpl\ndef esper_register_{plural}(registry):{added}\n")
        specs = ", ".join(f"{kind.capitalize()}Spec" for kind in components)
        return self(id_, f"{dedent(source)}\nfrom esper_core import {specs}, hookimpl\n{''.join(hooks)}")

    def command(self, name: str, source: str, *, package: str = "esper-extra", requires: str = "esper-core") -> Path:
        """``install.command("grow", source)``: a package esper-extra 1.0 that brings its module's ``command``."""
        module = package.replace("-", "_")
        self.metadata(package, f"[esper.commands]\n{name} = {module}:command\n", requires=requires)
        return self._write(module, source)

    def metadata(
        self, package: str, entry_points: str | bytes, *, requires: str = "esper-core", version: str | None = "1.0"
    ) -> None:
        """Return the metadata of a package; without a version they are incomplete."""
        folder = self.folder / f"{package.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        if version is not None:
            text = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nRequires-Dist: {requires}\n"
            (folder / "METADATA").write_text(text)
        data = entry_points if isinstance(entry_points, bytes) else entry_points.encode()
        (folder / "entry_points.txt").write_bytes(data)

    def damaged(self, package: str) -> None:
        self.metadata(package, "[other]\nnonsense\n")

    def _write(self, module: str, source: str) -> Path:
        path = self.folder / f"{module}.py"
        path.write_text(dedent(source).lstrip("\n"))
        return path


@pytest.fixture
def install(site: Path) -> SitePackages:
    """``install("extra", source)``: install packages until the end of the test."""
    return SitePackages(site)


@pytest.fixture
def esper(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """``esper("plugins", "list")``: run the command and return its answer."""
    call = request.getfixturevalue("esper_cli")  # of esper-testing, which the core's tests do without
    return lambda *arguments: call(*map(str, arguments))


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal that shows colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


@pytest.fixture
def after_step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``after_step(2, act)``: call ``act()`` once, after this step of a run and its checkpoint."""
    from esper_run.app.checkpoints import CheckpointWriter  # which imports torch

    def arrange(step: int, act: Callable[[], None], round_: int = 0) -> None:
        def once(writer: CheckpointWriter, progress: Any) -> None:
            real(writer, progress)
            if (progress.round, progress.step) == (round_, step):
                monkeypatch.setattr(CheckpointWriter, "after_step", real)
                act()

        real = CheckpointWriter.after_step
        monkeypatch.setattr(CheckpointWriter, "after_step", once)

    return arrange
