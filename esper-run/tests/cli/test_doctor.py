"""``esper doctor``: a finding for each thing that a run needs, the fix, and a status for scripts."""

import importlib.metadata
import sys

import pytest

from esper_run.cli import doctor


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def diagnose(esper):
    """``diagnose()``: return the status, and the findings by subject."""

    def examine(*arguments):
        answer = esper("doctor", "--json", *arguments)
        return answer.status, {finding["what"]: finding for finding in answer.json}

    return examine


@pytest.mark.members
def test_complete_installation_is_ok(esper, tmp_path) -> None:
    answer = esper("doctor")
    assert (answer.status, answer.err) == (0, "")
    lines = {line.split("  ")[0]: line for line in answer.out.splitlines()}
    for subject in ("python", "torch", "device", "esper-core", "plugins", "runs folder"):
        assert "  ok  " in lines[subject]
    assert list(tmp_path.iterdir()) == []


def test_broken_plugin_and_safe_mode_are_warnings(esper, diagnose, install, monkeypatch) -> None:
    install("bad", "1 / 0\n")
    answer = esper("doctor")
    assert answer.status == 0
    assert "  fix it:  esper plugins show bad\n" in answer.out
    assert 'esper-bad 1.0 is broken: plugin "bad" (esper-bad 1.0) cannot be imported: ZeroDivisionError' in answer.out
    monkeypatch.setenv("ESPER_SAFE_MODE", "1")
    finding = diagnose()[1]["safe mode"]
    assert (finding["state"], finding["fix"]) == ("warning", "unset ESPER_SAFE_MODE")


@pytest.mark.parametrize("place", ["a-file", "a-file/runs"])
def test_runs_folder_that_is_a_file_fails(diagnose, tmp_path, place: str) -> None:
    (tmp_path / "a-file").touch()
    status, findings = diagnose("--runs-dir", tmp_path / place)
    assert status == 3
    assert findings["runs folder"] == {
        "what": "runs folder",
        "state": "failed",
        "finding": f"{tmp_path / 'a-file'} is not a folder",
        "fix": "esper run FILE --runs-dir ANOTHER",
    }


def test_folder_without_permission_fails(diagnose, tmp_path, monkeypatch) -> None:
    def refuse(**settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    status, findings = diagnose()
    assert (status, findings["runs folder"]["fix"]) == (3, f"chmod u+w {tmp_path}")
    assert findings["runs folder"]["finding"] == f"{tmp_path} cannot be written: Permission denied"


def test_packages_that_are_missing_or_damaged_are_warnings(diagnose, install, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_NEEDED", ("esper-core", "esper-not-there"))
    install.damaged("esper-torn")
    status, findings = diagnose()
    states_and_fixes = {
        subject: (findings[subject]["state"], findings[subject]["fix"]) for subject in ("metadata", "esper-not-there")
    }
    assert (status, findings["esper-core"]["state"]) == (0, "ok")
    assert states_and_fixes["esper-not-there"] == ("warning", "pip install esper-not-there")
    assert states_and_fixes["metadata"] == ("warning", "pip install --force-reinstall esper-torn")
    assert findings["metadata"]["finding"].startswith('the metadata of package "esper-torn" cannot be read: ')


def test_environment_without_plugins_is_a_warning(diagnose, monkeypatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distributions", tuple)
    finding = diagnose()[1]["plugins"]
    assert (finding["state"], finding["finding"]) == ("warning", "none is active")
    assert finding["fix"] == "pip install esper-blueprints esper-policies esper-rewards esper-tasks"


def test_doctor_fails_if_torch_cannot_be_imported(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = doctor._torch()
    assert (finding.what, finding.state) == ("torch", "failed")
    assert finding.fix == "pip install --force-reinstall torch"
