"""Files are read only if they are regular files, and what cannot be read is reported with a code."""

import pytest

from esper_core.leyline import RunFolderError
from esper_core.leyline.files import open_regular, read_json
from tests.support.special_files import put


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_anything_else_is_refused_without_waiting(kind, tmp_path):
    path = tmp_path / "x"
    put(kind, path) if kind != "device" else path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match=f"expected a regular file, received a {kind}"):
        open_regular(path, follow=True)
    with pytest.raises(RunFolderError, match="E430"):
        read_json(path)
