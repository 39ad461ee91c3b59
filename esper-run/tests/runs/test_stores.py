"""Stores come with packages: commands find them by the protocol of a URL, and say what is missing or broken."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from esper_core.leyline import PluginError, RunFolderError
from esper_core.plugins import Extension
from esper_run import load_run, run
from esper_run.runs.records import list_runs
from esper_run.stores import open_store
from tests.support.configurations import STRIPES

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "store-runs.md"
EXAMPLE = Path(__file__).parents[3] / "examples" / "sqlite_store.py"
NAME = "20261121-101512-quiet-otter"


@pytest.fixture
def store(install, tmp_path, monkeypatch):
    """The URL of a store of the package in the guide."""
    entry_point = re.search(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]
    ((name, target),) = tomllib.loads(entry_point)["project"]["entry-points"]["esper.stores"].items()
    install.metadata("esper-sqlite", f"[esper.stores]\n{name} = {target}\n")
    (install.folder / "sqlite_store.py").write_text(EXAMPLE.read_text())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"sqlite://{tmp_path}/runs.db"


def test_a_run_in_a_store_of_a_package_is_resumed_after_its_directory_is_lost(
    esper, store, tmp_path, after_step
) -> None:
    (tmp_path / "run.yaml").write_text(f"{STRIPES}checkpoints: {{every: 1}}\nstore: {store}\n")

    def interrupt() -> None:
        raise KeyboardInterrupt

    after_step(1, interrupt)
    assert esper("run", tmp_path / "run.yaml", "--runs-dir", tmp_path / "runs", "--quiet").status == 130
    (stored,) = list_runs(store)
    assert stored.status == "interrupted"
    shutil.rmtree(tmp_path / "runs")
    answer = esper("resume", f"{store}/{stored.id}", "--runs-dir", tmp_path / "elsewhere", "--quiet")
    assert answer.status == 0, answer.err
    whole = run(tmp_path / "run.yaml", overrides=["store=null"], runs_dir=tmp_path / "whole")
    resumed = load_run(f"{store}/{stored.id}")
    assert (resumed.status, resumed.results) == ("done", load_run(whole.path).results)
    with pytest.raises(RunFolderError, match="E420 there is no run"):
        load_run(f"{store}/{NAME}")


def add_store(install, package, protocol, source):
    """Install a package with a store; its class is ``Backend``."""
    module = package.replace("-", "_")
    install.metadata(package, f"[esper.stores]\n{protocol} = {module}:Backend\n")
    (install.folder / f"{module}.py").write_text(source)


RAISES = "class Backend:\n    def __init__(self, url): pass\n    def runs(self): return 1 / 0\n"


def test_a_store_for_a_protocol_is_preferred_to_the_one_for_any(install) -> None:
    add_store(install, "esper-shelf", "memory", "Backend = 'shelf'.replace\n")  # not the store of esper-scale
    with pytest.raises(PluginError, match=r'E231 store "memory" \(esper-shelf 1.0\) raised TypeError when it opened'):
        open_store("memory://shelf")


def test_two_packages_with_stores_for_one_protocol_are_an_error(install) -> None:
    for package in ("esper-shelf", "esper-rack"):
        add_store(install, package, "shelf", RAISES)
    with pytest.raises(PluginError, match=r'store "shelf"(?s:.*)esper-rack(?s:.*)esper-shelf'):
        open_store("shelf://runs")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (RAISES, r"E231 store .* raised ZeroDivisionError when it listed the runs in shelf://runs: division by zero"),
        (
            "def Backend(url):\n    raise OSError('no shelf')\n",
            "E231 store .* raised OSError when it opened .*no shelf",
        ),
        ("import absent\n", "E210 store .* cannot be imported"),
    ],
)
def test_an_exception_of_a_store_names_its_package_and_line(install, source, message) -> None:
    add_store(install, "esper-shelf", "shelf", source)
    with pytest.raises(PluginError, match=message) as caught:
        list_runs("shelf://runs")
    (problem,) = caught.value.problems
    assert '"shelf" (esper-shelf 1.0)' in problem.message
    assert problem.file is None or problem.file.endswith("esper_shelf.py")


def test_without_a_package_that_has_stores_the_error_names_one(monkeypatch, esper, tmp_path) -> None:
    find = Extension.find
    monkeypatch.setattr(Extension, "find", lambda group, kind: {} if kind == "store" else find(group, kind))
    with pytest.raises(
        RunFolderError, match=r"E434 the store s3://bucket cannot be used(?s:.*)pip install esper-scale"
    ):
        load_run("s3://bucket/some-run")
    (tmp_path / "run.yaml").write_text(f"{STRIPES}store: s3://bucket/prefix\n")
    answer = esper("check", tmp_path / "run.yaml")
    assert answer.status == 1
    assert "pip install esper-scale" in answer.out + answer.err
