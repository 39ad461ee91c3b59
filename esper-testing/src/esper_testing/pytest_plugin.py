"""pytest integration: ``parametrize_with_checks`` and fixtures.

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
        expected_failures: reasons for expected failures, by name of the check, or for one component as
            ``tiny-conv-keeps_shape``. If the check passes, the test fails.
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
