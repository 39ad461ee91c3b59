"""The set-up without make in CONTRIBUTING.md works: its lines are run as written."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.install


def test_every_member_is_in_the_line_and_nothing_else() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (install,) = re.findall(r"^```sh\n(pip install .*)\nesper run .*\n```$", page, flags=re.MULTILINE)
    members = sorted(path.parent.name for path in ROOT.glob("esper-*/pyproject.toml"))
    assert sorted(re.findall(r" -e (\S+)", install)) == members
    assert re.sub(r" -e \S+", "", install) == "pip install -c constraints.txt"
