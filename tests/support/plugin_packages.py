"""Fixtures for plugins: packages made up of a module on disk and metadata that declares it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent

import pytest

from esper_core.leyline import ConfigError, PluginError
from esper_core.plugins import Plugins, load_plugins


@dataclass(frozen=True)
class FakeDistribution:
    """The part of an installed package that discovery reads."""

    name: str
    version: str = "0.2.0"
    requires: Sequence[str] | None = ("esper-core>=0.1",)
    entry_points: Sequence[EntryPoint] = ()


@dataclass(frozen=True)
class Workshop:
    """Writes packages into a folder on ``sys.path``."""

    folder: Path

    def write(self, module: str, source: str) -> Path:
        """Write a module; its first line of code is line 1."""
        path = self.folder.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source).lstrip("\n"), encoding="utf-8")
        return path

    def package(
        self,
        source: str | None = None,
        *,
        plugin: str = "extra",
        name: str | None = None,
        version: str = "0.2.0",
        requires: Sequence[str] | None = ("esper-core>=0.1",),
        target: str | None = None,
    ) -> FakeDistribution:
        """Return a package with one plugin, whose module has this source."""
        name = name or f"esper-{plugin}"
        module = name.replace("-", "_").lower()
        if source is not None:
            self.write(module, source)
        entry = EntryPoint(plugin, target or module, "esper.plugins")
        return FakeDistribution(name, version, requires, (entry,))

    def blueprints(self, *names: str, **settings: object) -> FakeDistribution:
        """Return a package with valid blueprints of these names."""
        lines = [
            "from esper_core import BlueprintSpec, hookimpl",
            "@hookimpl",
            "def esper_register_blueprints(registry):",
            "    pass",
            *(f'    registry.add("{name}", "nowhere:{name}", BlueprintSpec("vector"))' for name in names),
        ]
        return self.package("\n".join(lines), **settings)

    def tasks(self, *calls: str, **settings: object) -> FakeDistribution:
        head = "from esper_core import TaskSpec, hookimpl\n@hookimpl\ndef esper_register_tasks(registry):\n"
        return self.package(head + "".join(f"    {call}\n" for call in calls), **settings)


@pytest.fixture
def workshop(site: Path) -> Workshop:
    """A workshop whose modules can be imported until the end of the test."""
    return Workshop(site)


@pytest.fixture
def load(workshop: Workshop) -> Callable[..., Plugins]:
    """``load(package, …, disable=…)`` loads the plugins of these packages."""
    return lambda *packages, **settings: load_plugins(distributions=packages, **settings)


@pytest.fixture
def report(load: Callable[..., Plugins], workshop: Workshop) -> Callable[..., str]:
    """``report(package, …)`` returns every problem as printed, without the folder of the modules."""

    def tell(*packages: FakeDistribution, **settings: object) -> str:
        problems = load(*packages, **settings).problems
        return "\n".join(str(problem) for problem in problems).replace(f"{workshop.folder}/", "")

    return tell


@pytest.fixture
def refusal(workshop: Workshop) -> Callable[[Callable[[], object]], tuple[type, str]]:
    """``refusal(look)`` returns the type of the error that ``look()`` raises, and its text without the folder."""

    def catch(look: Callable[[], object]) -> tuple[type, str]:
        with pytest.raises((ConfigError, PluginError)) as caught:
            look()
        return type(caught.value), str(caught.value).replace(f"{workshop.folder}/", "")

    return catch
