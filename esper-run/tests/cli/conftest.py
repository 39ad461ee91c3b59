"""The file of a small run, for the commands that read one."""

from pathlib import Path

import pytest

from tests.support.configurations import STRIPES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a run that takes a fraction of a second."""
    path = tmp_path / "small.yaml"
    path.write_text(STRIPES)
    return path
