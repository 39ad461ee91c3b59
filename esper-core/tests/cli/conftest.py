"""The command line, called as the shell calls it, with packages installed for a test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from esper_core.cli import main


@dataclass(frozen=True)
class Answer:
    """What a command ended with, and what it printed."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class SitePackages:
    """A folder that Python imports from, and finds installed packages in."""

    folder: Path

    def install(
        self,
        name: str,
        source: str,
        *,
        group: str = "esper.plugins",
        entry: str = "extra",
        requires: str = "esper-core",
    ) -> Path:
        """A package with one module and one entry point, as pip would leave it."""
        module = name.replace("-", "_")
        path = self.folder / f"{module}.py"
        path.write_text(source, encoding="utf-8")
        metadata = self.folder / f"{module}-1.0.dist-info"
        metadata.mkdir()
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {requires}\n"
        metadata.joinpath("METADATA").write_text(head, encoding="utf-8")
        metadata.joinpath("entry_points.txt").write_text(f"[{group}]\n{entry}\n", encoding="utf-8")
        return path

    def plugin(self, name: str, source: str, *, id: str = "extra", requires: str = "esper-core") -> Path:
        """A package that brings a plugin."""
        entry = f"{id} = {name.replace('-', '_')}"
        return self.install(name, source, entry=entry, requires=requires)

    def command(self, name: str, source: str, *, command: str, requires: str = "esper-core") -> Path:
        """A package that brings a command: the module's ``command``."""
        entry = f"{command} = {name.replace('-', '_')}:command"
        return self.install(name, source, group="esper.commands", entry=entry, requires=requires)

    def damaged(self, name: str) -> None:
        """A package whose metadata cannot be read."""
        self.plugin(name, "", id="torn")
        metadata = self.folder / f"{name.replace('-', '_')}-1.0.dist-info"
        metadata.joinpath("entry_points.txt").write_text("[other]\nnonsense\n", encoding="utf-8")


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SitePackages]:
    """Installed packages that are gone when the test is over."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield SitePackages(tmp_path)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def esper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """``esper("plugins", "list")``: what the command answers."""
    monkeypatch.delenv("ESPER_SAFE_MODE", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        out, err = capsys.readouterr()
        return Answer(end.value.code, out, err)

    return call
