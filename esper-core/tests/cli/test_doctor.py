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
    for what in ("python", "torch", "device", "threads", "esper-core", "plugins", "safe mode", "runs folder", "output"):
        assert lines[what].split("  ")[-2].strip() == "ok" or "  ok  " in lines[what]
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


def test_what_the_core_requires_is_held_against_what_is_installed(found, monkeypatch) -> None:
    own = importlib.metadata.requires

    def requires(package: str) -> list[str] | None:
        return (
            ["click>=99", "zzz-missing>=1", "pluggy", "colour; extra == 'x'"]
            if package == "esper-core"
            else own(package)
        )

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    wrong = [finding for finding in doctor._requirements() if finding.state == "failed"]
    assert [(finding.found.split(",")[0], finding.mend) for finding in wrong] == [
        ("needs click>=99", 'pip install "click>=99"'),
        ("needs zzz-missing>=1", 'pip install "zzz-missing>=1"'),
    ]
    assert wrong[1].found == "needs zzz-missing>=1, not installed"
    assert found()[0] == 3


def test_packages_that_do_not_fit_each_other_fail(monkeypatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda package: ["esper-core>=9"])
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "esper-tasks" else "0.1.0")
    findings = {finding.what: finding for finding in doctor._packages()}
    assert findings["esper-rewards"] == doctor.Diagnosis(
        "esper-rewards",
        "failed",
        "0.1.0: esper-rewards needs esper-core >=9, and this is 0.1.0",
        "pip install --upgrade esper-core esper-rewards",
    )
    assert findings["esper-tasks"].mend == "pip install esper-tasks"


def test_an_old_python_fails(monkeypatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    assert doctor._python() == doctor.Diagnosis(
        "python", "failed", "3.10.2, 3.11 or later is needed", "uv venv --python 3.11"
    )


def test_a_torch_that_cannot_be_imported_fails(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = doctor._torch()
    assert (finding.what, finding.state, finding.mend) == (
        "torch",
        "failed",
        "pip install --force-reinstall torch",
    )
