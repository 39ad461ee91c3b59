"""Resolution of one-file plugins and settings in a file; each mistake is reported with its place."""

import json
import re
import sys
from dataclasses import asdict
from hashlib import sha256

import pytest

from esper_core.leyline import EsperError
from esper_run.app.compose import prepare

pytestmark = pytest.mark.members

NEVER = "raise AssertionError('was imported')"
FINE = "from esper_core import hookimpl\n"
BLOCK = """
from esper_core import BlueprintSpec, hookimpl

@hookimpl
def esper_register_blueprints(registry):
    registry.add("tiny", "my_plugin:Tiny", BlueprintSpec("sequence", summary="Small.", starts_as_identity=True))

def __getattr__(name):  # the heavy import stays away until the blueprint is used
    import torch

    class Tiny(torch.nn.Module):
        def __init__(self, site):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.scale * x

    if name != "Tiny":
        raise AttributeError(name)
    return Tiny
"""


@pytest.fixture
def refused(configured, tmp_path):
    """``refused("plugins: …")``: return the error's exit code and its message."""

    def tell(more: str) -> tuple[int, str]:
        with pytest.raises(EsperError) as caught:
            prepare(configured(more))
        return caught.value.exit_code, str(caught.value).replace(f"{tmp_path}/", "")

    return tell


def test_one_file_plugin_runs_and_is_kept_and_every_active_plugin_has_a_hash(
    install, configured, run_small, tmp_path, monkeypatch
):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "my_plugin.py").write_text(BLOCK)
    path = install("extra", FINE)
    result = run_small("plugins: {local: [own/my_plugin.py]}\n")
    plugins = {plugin["id"]: plugin for plugin in result["manifest"]["plugins"]}
    assert plugins["extra"]["sha256"] == sha256(path.read_bytes()).hexdigest()
    assert all(len(plugin["sha256"]) == 64 for plugin in plugins.values())
    kept = plugins["my-plugin"]
    hashed = sha256(BLOCK.encode()).hexdigest()
    assert (kept["package"], kept["version"], kept["sha256"]) == ("local file", hashed[:12], hashed)
    assert kept["entry_point"] == "my_plugin.py"
    assert (result["path"] / "my_plugin.py").read_text() == BLOCK
    monkeypatch.syspath_prepend(tmp_path / "own")  # as the folder of a script is, in a new process
    monkeypatch.delitem(sys.modules, "my_plugin")
    assert prepare(result["path"] / "config.yaml")
    (tmp_path / "own" / "my_plugin.py").write_text(f"{BLOCK}# edited since")
    monkeypatch.delitem(sys.modules, "my_plugin")
    assert prepare(result["path"] / "config.yaml")
    (tmp_path / "own" / "my_plugin.py").unlink()
    again = prepare(result["path"] / "config.yaml")
    assert "my-plugin/tiny" in {component.id for component in again.resolution.plugins.registry.components()}
    assert all(json.dumps(asdict(record)) for record in again.resolution.plugins.records)


NAMED = 'the plugin file "json.py" has the name of an installed module'
INVALID = 'the name of the plugin file "My-Plugin.py" is not a valid plugin id'


def test_file_with_the_name_of_a_module_that_pip_has_installed_elsewhere_is_refused(
    install, refused, tmp_path, monkeypatch
):
    """As in the packages of a user, beside those of the interpreter."""
    (folder := tmp_path / "site-packages").mkdir()
    for place in (folder, tmp_path):
        (place / "single_module.py").write_text(NEVER)
    monkeypatch.syspath_prepend(folder)
    status, text = refused("plugins:\n  local: [single_module.py]")
    assert (status, "has the name of an installed module" in text) == (2, True)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("site", 'expected a Python file as a plugin, received "site"', "A one-file plugin ends in .py."),
        ("json.py", NAMED, "Rename the file."),
        ("My-Plugin.py", INVALID, "Lower case letters and digits, joined by single _, at most 48 characters."),
    ],
)
def test_file_that_cannot_be_a_plugin_is_refused_with_its_place(install, refused, tmp_path, name, message, hint):
    if name != "site":
        (tmp_path / name).write_text(NEVER)
    expected = f"E227 {message}\n  small.yaml:13:11   plugins.local[0]\n  {hint}"
    assert refused(f"plugins:\n  local: [{name}]") == (2, expected)


SINK = """
from esper_core import SinkSpec, hookimpl
from pydantic import BaseModel, ConfigDict

class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    every: int = 10

@hookimpl
def esper_register_sinks(registry): registry.add("traces", "m:Traces", SinkSpec("Traces.", Settings))
"""


def test_unknown_plugins_and_invalid_settings_are_reported_with_their_places(install, refused):
    install("extra", SINK)
    sinks = "sinks:\n  - {use: traces, settings: {every: often, evry: 3}}\n  - nothing\n"
    code, text = refused(f"plugins:\n  disable: [taks]\n{sinks}")
    assert code == 2
    assert [line for line in text.splitlines() if line[0] != " "] == [
        'E208 unknown plugin "taks"',
        'E111 Input should be a valid integer, unable to parse string as an integer; received "often"',
        'E110 unknown key "evry"',
        'E225 unknown sink "nothing"',
    ]
    assert re.findall(r"^  small.yaml:(\S+)", text, re.MULTILINE) == ["13:13", "15:37", "15:44", "16:5"]
