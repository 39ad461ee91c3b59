"""One-file plugins on the command line are reported like installed packages."""

import sys
from pathlib import Path

import pytest

from tests.support.configurations import STRIPES

FORGETFUL = """\
from esper_core import RewardSpec, hookimpl

def esper_register_rewards(registry):
    registry.add("own", "own_probe:Own", RewardSpec())
"""


@pytest.fixture
def write_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``write_plugin(source, more)``: write own_probe.py, and return the file that names it."""

    def write(source: str, more: str = "") -> Path:
        tmp_path.joinpath("own_probe.py").write_text(source)
        file = tmp_path / "small.yaml"
        file.write_text(f"{STRIPES}plugins: {{local: [own_probe.py]}}\n{more}")
        return file

    yield write
    sys.modules.pop("own_probe", None)


pytestmark = pytest.mark.members


def test_unmarked_hook_is_a_warning_which_is_printed_with_an_error_too(esper, write_plugin) -> None:
    answer = esper("check", write_plugin(FORGETFUL))
    assert answer.status == 0
    (line,) = answer.err.splitlines()
    assert line.startswith('warning: E222 plugin "own-probe" (local file ')
    assert "has a function esper_register_rewards that is not marked as a hook" in line
    assert "own_probe.py:3  Put @hookimpl above it" in line
    answer = esper("check", write_plugin(FORGETFUL, "reward: own-probe/own\n"))
    assert answer.status == 2
    warning, _, problem = answer.err.partition("\n")
    assert warning.startswith("warning: E222 ")
    assert problem.startswith('E204 unknown reward "own-probe/own"')


def test_one_file_plugin_is_listed_and_shown(esper, write_plugin, tmp_path, monkeypatch) -> None:
    write_plugin(FORGETFUL)
    monkeypatch.syspath_prepend(str(tmp_path))  # it can also be imported from there, which is no conflict
    local = ["--local", tmp_path / "own_probe.py"]
    assert "E222" in esper("plugins", "list", *local).out
    answer = esper("plugins", "show", "own-probe", *local)
    assert (answer.status, answer.out.splitlines()[1].split()) == (0, ["status", "active"])
    assert "E222" in answer.out
    missing = esper("plugins", "list", "--local", tmp_path / "nothing.py")
    assert missing.status == 2
    assert missing.err.startswith(f'E227 there is no plugin file "{tmp_path / "nothing.py"}"\n')
