"""The README: its length, its commands and snippets, and the picture of the default run."""

import re
from pathlib import Path
from xml.dom import minidom

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(PICTURE,) = re.findall(r"!\[.*?\]\((.*?)\)", README, flags=re.DOTALL)


def blocks(kind: str, page: str = README) -> list[str]:
    """Return the code blocks of a page that are of this kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)


def write_snippets(folder: Path) -> tuple[Path, Path]:
    """Save the snippets under the names that the text gives them; return both configurations."""
    (model,) = [block for block in blocks("python") if "def build(shape)" in block]
    (plugin,) = [block for block in blocks("python") if "esper_register_blueprints" in block]
    (configuration,) = [block for block in blocks("yaml") if "host: my_model:build" in block]
    (line,) = re.findall(r"Add `(plugins: .*?)`", README)
    (blueprints,) = re.findall(r"let the slot grow it: `(blueprints: .*?)`", README)
    with_plugin = configuration.replace("blueprints: [conv_light, pointwise]", blueprints)
    assert with_plugin != configuration
    (folder / "my_model.py").write_text(model, encoding="utf-8")
    (folder / "my_blueprint.py").write_text(plugin, encoding="utf-8")
    (folder / "my_run.yaml").write_text(configuration, encoding="utf-8")
    (folder / "with_plugin.yaml").write_text(f"{line}\n{with_plugin}", encoding="utf-8")
    return folder / "my_run.yaml", folder / "with_plugin.yaml"


def test_it_is_short_and_names_its_two_commands_near_the_top():
    assert len(README.split()) <= 500
    top = README.splitlines()[:15]
    assert any(line.startswith("make run") for line in top)
    assert any(line.startswith("make test") for line in top)
    assert all(len(block.splitlines()) <= 10 for block in blocks("python"))


def test_its_snippets_are_a_valid_configuration(tmp_path, monkeypatch, esper_cli):
    monkeypatch.chdir(tmp_path)
    for file in write_snippets(tmp_path):
        assert esper_cli("check", file.name).status == 0


def test_the_package_that_it_installs_and_runs_is_there():
    """tests/install/test_new_packages.py installs it and runs the configuration."""
    (commands,) = [block for block in blocks("sh") if "esper-blueprints-extra" in block]
    assert re.findall(r"examples/\S+", commands) == ["examples/esper-blueprints-extra", "examples/extra.yaml"]


def test_the_picture_shows_the_arms_of_the_default_run():
    drawn = minidom.parse(str(ROOT / PICTURE))
    told = [node.firstChild.data for node in drawn.getElementsByTagName("text") if node.firstChild is not None]
    words = {" ".join(text.split()) for text in told}
    assert {"heuristic", "twin", "conv_light"} <= words
    assert "capacity" not in words, "the comparison with the untuned static control is no headline"
