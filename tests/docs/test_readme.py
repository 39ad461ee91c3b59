"""The README: its length, its commands and snippets, and the picture of the default run."""

import re
from pathlib import Path
from xml.dom import minidom

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FLOORS, PICTURE = re.findall(r"!\[.*?\]\((.*?)\)", README, flags=re.DOTALL)


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
    assert all(any(line.startswith(command) for line in top) for command in ("make run", "make test"))
    assert FLOORS in README[: README.index("make run")], "it opens with the picture of the three floors"
    assert all(len(block.splitlines()) <= 10 for block in blocks("python"))


def test_its_snippets_are_a_valid_configuration_and_its_paths_exist(tmp_path, monkeypatch, esper_cli):
    assert [path for path in re.findall(r"(?:examples|docs)/[\w./-]+\w", README) if not (ROOT / path).exists()] == []
    monkeypatch.chdir(tmp_path)
    for file in write_snippets(tmp_path):
        assert esper_cli("check", file.name).status == 0


@pytest.mark.slow
def test_its_first_network_grows_and_earns_a_positive_reward(tmp_path, monkeypatch, esper_cli):
    monkeypatch.chdir(tmp_path)
    ran = esper_cli("run", write_snippets(tmp_path)[0].name)
    assert re.search(r"^heuristic .* \+\d+\.\d$", ran.out, re.MULTILINE), ran.err


def test_the_picture_shows_the_arms_of_the_default_run():
    drawn = minidom.parse(str(ROOT / PICTURE))
    words = {" ".join(node.firstChild.data.split()) for node in drawn.getElementsByTagName("text") if node.firstChild}
    assert {"heuristic", "twin", "conv_light"} <= words
    assert "capacity" not in words, "the comparison with the untuned static control is no headline"
