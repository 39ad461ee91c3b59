"""Stores come with another package, which an error names where it is missing."""

import pytest

from esper_core.leyline import RunFolderError
from esper_core.plugins import Extension
from esper_run import load_run
from tests.support.configurations import STRIPES


def test_without_a_package_that_has_stores_the_error_names_one(monkeypatch, esper, tmp_path) -> None:
    find = Extension.find
    monkeypatch.setattr(Extension, "find", lambda group, kind: {} if kind == "store" else find(group, kind))
    message = r"E434 the store s3://bucket cannot be used(?s:.*)pip install esper-scale"
    with pytest.raises(RunFolderError, match=message):
        load_run("s3://bucket/some-run")
    (tmp_path / "run.yaml").write_text(f"{STRIPES}store: s3://bucket/prefix\n")
    answer = esper("check", tmp_path / "run.yaml")
    assert answer.status == 1
    assert "pip install esper-scale" in answer.out + answer.err
