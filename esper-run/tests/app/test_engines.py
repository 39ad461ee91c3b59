"""Engines come with packages: a run finds them by name, and says what is missing."""

import pytest

from esper_core.leyline import ConfigError, PluginError
from esper_run import load_run, run
from esper_run.app.compose import prepare
from esper_run.engines import KNOWN_ELSEWHERE
from tests.support.configurations import STRIPES

COUNTING = """
from pydantic import BaseModel
from esper_run.app.threads import ThreadsSession
from esper_run.engines import Engine

opened = []

class Settings(BaseModel):
    nodes: int = 1

class Session(ThreadsSession):
    def close(self):
        opened.append("closed")

def open_engine(context):
    opened.append(context.settings.nodes)
    return Session(context.composition)

ENGINE = Engine("Counts.", open_engine, Settings)
NO_ENGINE = open_engine
"""


@pytest.fixture
def counting(install):
    """A package with an engine, and one whose entry point names something else."""
    install.metadata("esper-counts", "[esper.engines]\ncounts = counting:ENGINE\nwrong = counting:NO_ENGINE\n")
    (install.folder / "counting.py").write_text(COUNTING)


@pytest.fixture
def file(tmp_path):
    def write(engine):
        (tmp_path / "run.yaml").write_text(f"{STRIPES}engine: {engine}\n")
        return tmp_path / "run.yaml"

    return write


@pytest.mark.usefixtures("counting")
def test_an_engine_of_a_package_computes_a_run_with_its_settings(file, tmp_path):
    import counting

    outcome = run(file("{use: counts, settings: {nodes: 3}}"), runs_dir=tmp_path / "runs")
    assert counting.opened == [3, "closed"]
    assert load_run(outcome.path).config()["engine"] == {"use": "counts", "settings": {"nodes": 3}}


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize(
    ("engine", "error", "message"),
    [
        ("count", ConfigError, r'E126 unknown engine "count"(?s:.*)Did you mean "counts"'),
        ("{use: counts, settings: {nodes: many}}", ConfigError, r"E111 (?s:.*)engine\.settings\.nodes"),
        ("{use: threads, settings: {nodes: 2}}", ConfigError, r'E121 engine "threads" has no settings'),
        ("wrong", PluginError, r"E219 engine \"wrong\" \(esper-counts 1.0\) is not an esper_run.engines.Engine"),
    ],
)
def test_a_wrong_engine_or_setting_is_reported_at_its_place(file, engine, error, message):
    with pytest.raises(error, match=message):
        prepare(file(engine))


@pytest.mark.parametrize("engine", KNOWN_ELSEWHERE)
def test_an_engine_of_a_package_that_is_not_installed_names_the_package(file, engine, monkeypatch):
    monkeypatch.setattr("esper_run.engines.installed_engines", dict)
    with pytest.raises(ConfigError, match=rf"E126 unknown engine \"{engine}\"\n(?s:.*)pip install 'esper-scale"):
        prepare(file(engine))
