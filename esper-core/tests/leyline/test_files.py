"""Files are read only if they are regular files, and what cannot be read is reported with a code."""

import os

import pytest

from esper_core.leyline import RunFolderError
from esper_core.leyline.files import open_regular, read_bytes, read_json


def test_a_regular_file_is_read_directly_and_through_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"[1, 2]")
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link") == b"[1, 2]"
    assert read_bytes(str(tmp_path / "file"), 3) == b"[1,"
    assert read_json(tmp_path / "file") == [1, 2]


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_anything_else_is_refused_without_waiting(kind, tmp_path):
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match=f"expected a regular file, received a {kind}"):
        open_regular(path)
    with pytest.raises(RunFolderError, match="E430"):
        read_json(path)


def test_a_file_that_is_not_json_is_refused_and_a_missing_one_left_to_the_caller(tmp_path):
    path = tmp_path / "summary.json"
    for content, reason in ((b"{", ""), (b"\xff", ""), (b"[" * 100_000, ": maximum recursion depth")):
        path.write_bytes(content)
        with pytest.raises(RunFolderError, match=f"E430 .*{path}(.|\n)*it is not JSON{reason}"):
            read_json(path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "growth.json")
