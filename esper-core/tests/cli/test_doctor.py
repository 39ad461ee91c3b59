"""``esper doctor``: a finding for each thing that a run needs, the fix, and a status for scripts."""

from __future__ import annotations

import importlib.metadata
import json
import sys

import pytest

from esper_core.cli import doctor


@pytest.fixture
def found(esper, tmp_path, monkeypatch):
    """``found()``: status, and the findings by what was looked at."""
    monkeypatch.chdir(tmp_path)

    def examine(*arguments: str):
        answer = esper("doctor", "--json", *arguments)
        return answer.status, {one["what"]: one for one in json.loads(answer.out)}

    return examine


@pytest.mark.members
def test_all_is_well_here(esper, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = esper("doctor")
    assert (answer.status, answer.err) == (0, "")
    lines = {line.split("  ")[0]: line for line in answer.out.splitlines()}
    for what in ("python", "torch", "device", "esper-core", "plugins", "runs folder"):
        assert "  ok  " in lines[what]
    assert list(tmp_path.iterdir()) == []


def test_a_broken_plugin_and_safe_mode_are_warnings(esper, site_packages, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    site_packages.plugin("esper-bad", "1 / 0\n", id="bad")
    answer = esper("doctor")
    assert answer.status == 0
    assert "  fix it:  esper plugins show bad\n" in answer.out
    assert (
        "esper-bad 1.0 is broken: "
        'plugin "bad" (esper-bad 1.0) cannot be imported: ZeroDivisionError: division by zero\n'
    ) in answer.out
    monkeypatch.setenv("ESPER_SAFE_MODE", "1")
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert (findings["safe mode"].state, findings["safe mode"].mend) == ("warning", "unset ESPER_SAFE_MODE")


@pytest.mark.parametrize("place", ["a-file", "a-file/runs"])
def test_a_folder_that_cannot_be_written_fails(found, tmp_path, place: str) -> None:
    (tmp_path / "a-file").touch()
    status, findings = found("--runs-dir", str(tmp_path / place))
    assert status == 3
    assert findings["runs folder"] == {
        "what": "runs folder",
        "state": "failed",
        "found": f"{tmp_path / 'a-file'} is no folder",
        "mend": "esper run FILE --runs-dir ANOTHER",
    }


def test_a_disk_that_says_no_fails(found, tmp_path, monkeypatch) -> None:
    def refuse(**settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    status, findings = found()
    assert (status, findings["runs folder"]["mend"]) == (3, f"chmod u+w {tmp_path}")
    assert findings["runs folder"]["found"] == f"{tmp_path} cannot be written: Permission denied"


def test_a_package_that_the_default_run_needs_is_missed(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(doctor, "_NEEDED", ("esper-tasks", "esper-not-there"))
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert findings["esper-tasks"].state == "ok"
    assert findings["esper-not-there"].state == "warning"
    assert findings["esper-not-there"].mend == "pip install esper-not-there"


def test_an_environment_without_any_plugin_is_a_warning(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(importlib.metadata, "distributions", tuple)
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert (findings["plugins"].state, findings["plugins"].found) == ("warning", "none is active")
    assert findings["plugins"].mend == "pip install esper-blueprints esper-policies esper-rewards esper-tasks"


def test_a_package_with_damaged_metadata_is_a_warning_with_its_reinstallation(found, site_packages) -> None:
    site_packages.plugin("esper-torn", "", id="torn")
    site_packages.folder.joinpath("esper_torn-1.0.dist-info", "entry_points.txt").write_text("[other]\nnonsense\n")
    status, findings = found()
    assert (status, findings["metadata"]["state"]) == (0, "warning")
    assert findings["metadata"]["found"].startswith('the metadata of package "esper-torn" cannot be read: ')
    assert findings["metadata"]["mend"] == "pip install --force-reinstall esper-torn"


def test_a_torch_that_cannot_be_imported_fails(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = doctor._torch()
    assert (finding.what, finding.state, finding.mend) == (
        "torch",
        "failed",
        "pip install --force-reinstall torch",
    )
