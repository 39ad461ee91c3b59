"""``esper doctor``: a finding for each thing that a run needs, the fix, and a status for scripts."""

from __future__ import annotations

import importlib.metadata
import json
import sys

import pytest

from esper_core.cli import doctor


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def found(esper):
    """``found()``: status, and the findings by what was looked at."""

    def examine(*arguments: str):
        answer = esper("doctor", "--json", *arguments)
        return answer.status, {one["what"]: one for one in json.loads(answer.out)}

    return examine


@pytest.mark.members
def test_complete_installation_is_ok(esper, tmp_path) -> None:
    answer = esper("doctor")
    assert (answer.status, answer.err) == (0, "")
    lines = {line.split("  ")[0]: line for line in answer.out.splitlines()}
    for what in ("python", "torch", "device", "esper-core", "plugins", "runs folder"):
        assert "  ok  " in lines[what]
    assert list(tmp_path.iterdir()) == []


def test_broken_plugin_and_safe_mode_are_warnings(esper, site_packages, tmp_path, monkeypatch) -> None:
    site_packages.plugin("esper-bad", "1 / 0\n", id="bad")
    answer = esper("doctor")
    assert answer.status == 0
    assert "  fix it:  esper plugins show bad\n" in answer.out
    assert 'esper-bad 1.0 is broken: plugin "bad" (esper-bad 1.0) cannot be imported: ZeroDivisionError' in answer.out
    monkeypatch.setenv("ESPER_SAFE_MODE", "1")
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert (findings["safe mode"].state, findings["safe mode"].mend) == ("warning", "unset ESPER_SAFE_MODE")


@pytest.mark.parametrize("place", ["a-file", "a-file/runs"])
def test_runs_folder_that_is_a_file_fails(found, tmp_path, place: str) -> None:
    (tmp_path / "a-file").touch()
    status, findings = found("--runs-dir", str(tmp_path / place))
    assert status == 3
    assert findings["runs folder"] == {
        "what": "runs folder",
        "state": "failed",
        "found": f"{tmp_path / 'a-file'} is no folder",
        "mend": "esper run FILE --runs-dir ANOTHER",
    }


def test_folder_without_permission_fails(found, tmp_path, monkeypatch) -> None:
    def refuse(**settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    status, findings = found()
    assert (status, findings["runs folder"]["mend"]) == (3, f"chmod u+w {tmp_path}")
    assert findings["runs folder"]["found"] == f"{tmp_path} cannot be written: Permission denied"


def test_missing_package_of_the_default_run_is_a_warning(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(doctor, "_NEEDED", ("esper-tasks", "esper-not-there"))
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert findings["esper-tasks"].state == "ok"
    assert findings["esper-not-there"].state == "warning"
    assert findings["esper-not-there"].mend == "pip install esper-not-there"


def test_environment_without_plugins_is_a_warning(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(importlib.metadata, "distributions", tuple)
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert (findings["plugins"].state, findings["plugins"].found) == ("warning", "none is active")
    assert findings["plugins"].mend == "pip install esper-blueprints esper-policies esper-rewards esper-tasks"


def test_package_with_damaged_metadata_is_a_warning_with_its_reinstallation(found, site_packages) -> None:
    site_packages.damaged("esper-torn")
    status, findings = found()
    assert (status, findings["metadata"]["state"]) == (0, "warning")
    assert findings["metadata"]["found"].startswith('the metadata of package "esper-torn" cannot be read: ')
    assert findings["metadata"]["mend"] == "pip install --force-reinstall esper-torn"


def test_torch_that_cannot_be_imported_fails(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = doctor._torch()
    assert (finding.what, finding.state) == ("torch", "failed")
    assert finding.mend == "pip install --force-reinstall torch"
