"""pytest integration: ``parametrize_with_checks``, ``--esper-check`` and fixtures.

pytest imports this module in every suite where the package is installed, so it imports nothing but pytest itself.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from esper_core.leyline.events import Event
    from esper_core.plugins import Plugins
    from esper_testing.checks import Check
    from esper_testing.components import Settings, Target
    from esper_testing.sites import TinyHost

OPTION = "esper_check"
SETTINGS = "esper_set"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options ``--esper-check`` and ``--esper-set``."""
    group = parser.getgroup("esper", "conformance of Esper plugins")
    group.addoption(
        "--esper-check",
        action="append",
        default=[],
        metavar="PLUGIN",
        help="Run the conformance checks of this plugin, and no test file unless it is named. Can be repeated.",
    )
    group.addoption(
        "--esper-set",
        action="append",
        default=[],
        metavar="NAME.PATH=VALUE",
        help="Set one setting of a component that --esper-check checks: schedule.plan=[]. Can be repeated.",
    )


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Collect no files where ``--esper-check`` is given and no file is named."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return True if config.getoption(OPTION) and not named else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each check of the plugins that ``--esper-check`` names."""
    plugins, assignments = config.getoption(OPTION), config.getoption(SETTINGS)
    if not plugins:
        if assignments:
            msg = "--esper-set needs --esper-check PLUGIN"
            raise pytest.UsageError(msg)
        return
    from esper_core import EsperError
    from esper_testing.components import plugin_checks

    try:
        checks = plugin_checks(plugins, assignments=assignments)
    except EsperError as error:
        raise pytest.UsageError(str(error).replace("--set ", "--esper-set ")) from None
    items.extend(CheckItem.from_parent(session, name=check.id, check=check) for check in checks)


class CheckItem(pytest.Item):
    """A pytest item that runs one check."""

    def __init__(self, *, check: Check, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check = check

    def runtest(self) -> None:
        """Run the check."""
        _skipping(self.check).run()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the message of a failed check in one line; a traceback where the component raised."""
        return str(excinfo.value) if excinfo.errisinstance(AssertionError) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return how pytest names the item."""
        return self.path, None, self.name


def parametrize_with_checks(
    target: Target, *, settings: Settings | None = None, expected_failures: Mapping[str, str] | None = None
) -> pytest.MarkDecorator:
    """Run a test once for each check of a plugin. The test takes ``check`` and calls ``check.run()``.

        @parametrize_with_checks("my-plugin")
        def test_conformance(check):
            check.run()

    Args:
        target: a plugin's id, a package, a module with hooks, a component, or a list of these.
        settings: settings of components, by name.
        expected_failures: reasons for expected failures, by name of the check. If the check passes, the test fails.
    """
    from esper_testing.checks import demand_known
    from esper_testing.components import plugin_checks

    checks, expected = plugin_checks(target, settings), dict(expected_failures or {})
    demand_known(checks, expected)
    parameters = []
    for check in checks:
        reason = check.expectation(expected)
        marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True)]
        parameters.append(pytest.param(_skipping(check), id=check.id, marks=marks))
    return pytest.mark.parametrize("check", parameters)


def _skipping(check: Check) -> Check:
    """Return the check with ``NotApplicable`` turned into a skip of pytest."""
    from esper_testing.checks import NotApplicable

    def run() -> None:
        try:
            check.run()
        except NotApplicable as reason:
            pytest.skip(str(reason))

    return replace(check, run=run)


@pytest.fixture
def esper_plugins() -> Callable[..., Plugins]:
    """Return ``load(my_module, …)``, which loads these plugins and none that is installed.

    Each is a module with hooks, the name of one, or a ``FakeDistribution``.
    """
    from esper_core.plugins import load_plugins
    from esper_testing.fakes import FakeDistribution, fake_plugin

    def load(*plugins: Any, **settings: Any) -> Plugins:
        distributions = [plugin if isinstance(plugin, FakeDistribution) else fake_plugin(plugin) for plugin in plugins]
        return load_plugins(distributions=distributions, **{"safe_mode": False, **settings})

    return load


@pytest.fixture
def esper_tiny_host() -> Callable[..., TinyHost]:
    """Return ``make(kind)``, which builds a small host with buffers and dropout; graft a slot at its ``stem``."""
    from esper_testing.sites import tiny_host

    return tiny_host


@pytest.fixture
def esper_events() -> list[Event]:
    """Return the events of a small run: every type of event."""
    from esper_testing.fakes import recorded_events

    return recorded_events()


@pytest.fixture
def esper_run(tmp_path: Path) -> Path:
    """Return the directory of a finished run, with ``esper_events`` in its events.jsonl."""
    from esper_testing.fakes import write_run

    return write_run(tmp_path / "run")


class Answer(NamedTuple):
    """The exit status of a command, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, parsed as JSON."""
        return json.loads(self.out)


@pytest.fixture
def esper_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Return ``esper(*arguments)``, which runs the installed command ``esper`` in this process."""
    from importlib.metadata import entry_points

    monkeypatch.delenv("ESPER_SAFE_MODE", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    command = next(iter(entry_points(group="console_scripts", name="esper")), None)
    if command is None:
        pytest.fail("the fixture esper_cli calls the command esper:  pip install esper-run")
    main = command.load()

    def esper(*arguments: str) -> Answer:
        capsys.readouterr()
        status: object = 0
        try:
            main(list(arguments))
        except SystemExit as end:
            status = end.code
        out, err = capsys.readouterr()
        return Answer(status if isinstance(status, int) else 0 if status is None else 1, out, err)

    return esper
