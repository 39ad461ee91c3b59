"""Stores come with packages: commands find them by the protocol of a URL, and say what is missing."""

import pytest

from esper_core.leyline import RunFolderError
from esper_core.plugins import Extension
from esper_run import load_run, run
from tests.support.configurations import STRIPES

FOLDERS = """
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

@dataclass
class FolderStore:
    url: str

    @property
    def folder(self):
        return Path(self.url.removeprefix("shelf://"))

    def runs(self):
        return sorted(path.name for path in self.folder.iterdir())

    def fetch_copy(self, id_, names=()):
        return self.folder / id_

    def claims(self):
        return self

    def claim_new(self, path):
        return not (self.folder / path.name).exists()

    @contextmanager
    def uploading(self, named, on_warning):
        yield lambda checkpoint, events: None
        shutil.copytree(named, self.folder / named.name)
"""


def test_a_store_of_a_package_is_used_for_its_protocol(install, tmp_path):
    install.metadata("esper-shelf", "[esper.stores]\nshelf = shelf:FolderStore\n")
    (install.folder / "shelf.py").write_text(FOLDERS)
    (tmp_path / "shelf").mkdir()
    (tmp_path / "run.yaml").write_text(f"{STRIPES}store: shelf://{tmp_path}/shelf\n")
    outcome = run(tmp_path / "run.yaml", runs_dir=tmp_path / "runs")
    stored = load_run(f"shelf://{tmp_path}/shelf/{outcome.path.name}")
    assert (stored.id, stored.status) == (outcome.path.name, "done")


def test_without_a_package_that_has_stores_the_error_names_one(monkeypatch, esper, tmp_path):
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
