"""What does pytest learn from Esper? Checks of a plugin without a test file, and fixtures.

Every suite on a machine where this package is installed imports this module, so it imports nothing but pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from esper_core.leyline.events import Event
    from esper_core.plugins import Plugins
    from esper_testing.calling import Answer
    from esper_testing.tiny import TinyHost

OPTION = "esper_check"
SETTINGS = "esper_set"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--esper-check`` and ``--esper-set``."""
    group = parser.getgroup("esper", "conformance of Esper plugins")
    group.addoption(
        "--esper-check",
        action="append",
        default=[],
        metavar="PLUGIN",
        help="Run the conformance checks of this plugin, and no test file that is not named. Can be given again.",
    )
    group.addoption(
        "--esper-set",
        action="append",
        default=[],
        metavar="NAME.PATH=VALUE",
        help="Set one setting of a component that --esper-check checks: schedule.plan=[]. Can be given again.",
    )


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """With ``--esper-check`` alone no file is looked at."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return True if config.getoption(OPTION) and not named else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds a test for each check of the plugins that were asked for."""
    plugins, given = config.getoption(OPTION), config.getoption(SETTINGS)
    if not plugins:
        if given:
            msg = "--esper-set goes with --esper-check PLUGIN"
            raise pytest.UsageError(msg)
        return
    from esper_core import EsperError
    from esper_testing.installed import plugin_checks

    try:
        checks = plugin_checks(plugins, given=given)
    except EsperError as error:
        raise pytest.UsageError(str(error).replace("--set ", "--esper-set ")) from None
    items.extend(CheckItem.from_parent(session, name=check.id, check=check) for check in checks)


class CheckItem(pytest.Item):
    """One check as a test of its own."""

    def __init__(self, *, check: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check = check

    def runtest(self) -> None:
        """Run the check."""
        from esper_testing.parametrize import for_pytest

        for_pytest(self.check).run()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What is broken in a line; where the component raised, the way to it."""
        return str(excinfo.value) if excinfo.errisinstance(AssertionError) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """How pytest names it."""
        return self.path, None, self.name


@pytest.fixture
def esper_plugins() -> Callable[..., Plugins]:
    """``esper_plugins(my_module, …)``: loads these and nothing that is installed.

    Each is a module with hooks, the name of one, or a ``FakeDistribution``.
    """
    from esper_core.plugins import load_plugins
    from esper_testing.fakes import FakeDistribution, fake_plugin

    def load(*plugins: Any, **settings: Any) -> Plugins:
        distributions = [one if isinstance(one, FakeDistribution) else fake_plugin(one) for one in plugins]
        return load_plugins(distributions=distributions, **{"safe_mode": False, **settings})

    return load


@pytest.fixture
def esper_tiny_host() -> Callable[..., TinyHost]:
    """``esper_tiny_host("sequence")``: a host that is hard to leave undisturbed; a slot goes behind ``stem``."""
    from esper_testing.tiny import tiny_host

    return tiny_host


@pytest.fixture
def esper_events() -> list[Event]:
    """The events of a small run: every kind there is."""
    from esper_testing.event_samples import recorded_events

    return recorded_events()


@pytest.fixture
def esper_run(tmp_path: Path) -> Path:
    """The folder of a finished run, with ``esper_events`` in its events.jsonl."""
    from esper_testing.fakes import write_run

    return write_run(tmp_path / "run")


@pytest.fixture
def esper_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """``esper_cli("plugins", "list")``: what the command answers, with ``status``, ``out`` and ``err``."""
    from esper_testing.calling import answering

    monkeypatch.delenv("ESPER_SAFE_MODE", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return answering(capsys)
