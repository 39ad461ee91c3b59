"""The run directory: complete files, a manifest with the status, and errors of the disk."""

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from esper_core.leyline import RunFolderError
from esper_run.runs import RunDirectory
from esper_run.runs.directory import installed_packages, new_run_id, write_atomically


def begin(root: Path) -> RunDirectory:
    directory = RunDirectory.create(root, name=None, argv=["esper", "run", "x.yaml"])
    seeds = {"first": 0, "count": 2}
    directory.begin(config="task: a\n", source=b"task: a\n", overrides=["a=1"], plugins=[], seeds=seeds)
    return directory


def manifest(directory: RunDirectory) -> dict[str, object]:
    return json.loads((directory.path / "manifest.json").read_text())


def test_a_run_begins_as_running_and_ends_with_its_status(tmp_path):
    created = manifest(RunDirectory.create(tmp_path, name=None, argv=["esper", "run", "x.yaml"]))
    assert (created["status"], created["argv"]) == ("running", ["esper", "run", "x.yaml"])
    assert created["process"] == {"pid": os.getpid()}
    directory = begin(tmp_path / "deep" / "runs")
    assert manifest(directory)["status"] == "running"
    assert manifest(directory)["seeds"] == {"first": 0, "count": 2}
    directory.finish(status="done", exit_code=0)
    assert (manifest(directory)["status"], manifest(directory)["exit"]) == ("done", 0)
    files = {"manifest.json", "config.yaml", "config.source.yaml", "overrides.txt", "packages.txt"}
    assert {file.name for file in directory.path.iterdir()} >= files
    assert any(line.startswith("torch==") for line in (directory.path / "packages.txt").read_text().splitlines())


def test_machines_with_equal_packages_are_recorded_once(tmp_path):
    directory = begin(tmp_path)
    for torch in ("2.6", "2.13", "2.6"):
        directory.add_node({"torch": torch})
    assert manifest(directory)["nodes"] == [{"torch": "2.6"}, {"torch": "2.13"}]


def test_a_package_that_is_installed_between_two_runs_is_listed(site, install):
    install.metadata("first", "")
    before = installed_packages()
    os.utime(site, ns=(0, 0))  # however coarse the clock of the disk is
    install.metadata("second", "")
    assert [package for package in installed_packages() if package not in before] == ["second==1.0"]
    assert "first==1.0" in before


def test_run_ids_begin_with_their_time_and_those_of_one_name_and_second_differ(tmp_path):
    assert new_run_id(datetime(2026, 11, 21, 10, 15, 12), "x") == "20261121-101512-x"
    assert len(new_run_id(datetime(2026, 11, 21, 10, 15, 12)).split("-")) == 4
    assert len({RunDirectory.create(tmp_path, name="same", argv=[]).path for _ in range(3)}) == 3


def test_a_file_is_replaced_as_a_whole_or_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_atomically(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"E410 cannot write .*summary\.json: No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    with pytest.raises(RunFolderError, match="--runs-dir"):
        RunDirectory.create(path, name=None, argv=[])


def test_writing_does_not_follow_links(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    for name in ("summary.json", ".summary.json.part"):
        (tmp_path / name).symlink_to(precious)
    write_atomically(tmp_path / "summary.json", "new")
    assert precious.read_text() == "mine"
    assert not (tmp_path / "summary.json").is_symlink()
    assert (tmp_path / "summary.json").read_text() == "new"


def test_only_tracked_files_make_a_run_dirty(tmp_path, monkeypatch):
    def git(*arguments: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    tracked = tmp_path / "known.txt"
    tracked.write_text("a")
    git("add", "known.txt")
    git("commit", "-m", "first")
    begin(tmp_path / "runs")
    assert manifest(begin(tmp_path / "runs"))["git"]["dirty"] is False  # type: ignore[index]
    tracked.write_text("b")
    assert manifest(begin(tmp_path / "runs"))["git"]["dirty"] is True  # type: ignore[index]
    monkeypatch.setenv("PATH", "")
    assert manifest(begin(tmp_path / "runs"))["git"] is None, "git is not installed"
