"""Is what the README says so? Its figures are those of the default run, its picture and snippets work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path
from xml.dom import minidom

import pytest

from esper_watch.views import stage_legend

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(PICTURE,) = re.findall(r"!\[.*?\]\((.*?)\)", README, flags=re.DOTALL)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_the_lines_for_a_program_run_as_they_stand_there() -> None:
    """Copied into a file and run: nothing has to be filled in, and what they print is what is told."""
    (snippet,) = [block for block in blocks("python") if "graft(" in block]
    answer = subprocess.run([sys.executable, "-"], input=snippet, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    (told,) = re.findall(r"  # (\[.*\])$", snippet, flags=re.MULTILINE)
    assert answer.stdout == f"{told}\n"


def test_the_lines_that_graft_are_four() -> None:
    (snippet,) = [block for block in blocks("python") if "graft(" in block]
    yours, _, own = snippet.partition("\n\n")
    assert "esper" not in yours
    assert len([line for line in own.splitlines() if line]) == 4


def test_the_smallest_plugin_is_one() -> None:
    from esper_core.plugins import load_plugins

    (snippet,) = [block for block in blocks("python") if "esper_register_blueprints" in block]
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 10
    module = types.ModuleType("readme_plugin")
    sys.modules["readme_plugin"] = module
    try:
        exec(compile(snippet, "README.md", "exec"), module.__dict__)
        hook = module.esper_register_blueprints

        class Registry:
            added: tuple[object, ...] = ()

            def add(self, *what: object) -> None:
                Registry.added = what

        hook(Registry())
        assert Registry.added[0] == "tiny-conv"
        assert load_plugins().registry.find("blueprint", "conv_light").spec.accepts
    finally:
        del sys.modules["readme_plugin"]


def test_the_picture_is_a_drawing_of_a_run_with_these_arms() -> None:
    drawn = minidom.parse(str(ROOT / PICTURE))
    told = [node.firstChild.data for node in drawn.getElementsByTagName("text") if node.firstChild is not None]
    assert {"heuristic", "twin", "capacity", "early conv_light"} <= {" ".join(text.split()) for text in told}


def test_the_picture_is_drawn_as_the_code_draws_today() -> None:
    """Its legend has the words and the colours of now, and no bar has one that the legend lacks."""
    drawn = minidom.parse(str(ROOT / PICTURE))
    texts = [(node, node.firstChild.data) for node in drawn.getElementsByTagName("text") if node.firstChild]
    (pruned,) = [node.getAttribute("y") for node, told in texts if told == "✕ pruned"]
    *legend, _ = stage_legend(untrained=False)
    assert [told for node, told in texts if node.getAttribute("y") == pruned] == [*dict(legend), "✕ pruned"]
    classes = [node.getAttribute("class") for node in drawn.getElementsByTagName("g")]
    kinds = [css_class for _, css_class in legend]
    assert [one for one in classes if one.startswith("stage-")] == kinds
    assert {one.removeprefix("mark ") for one in classes if one.startswith("mark stage-")} <= {*kinds}


def test_there_were_as_many_problems_as_are_told() -> None:
    found = json.loads((ROOT / "benchmarks" / "science" / "gardeners" / "results.json").read_text(encoding="utf-8"))
    assert f"On {found['problems']['held_out']} small problems" in README


def ends_of_the_picture() -> dict[str, str]:
    """By arm where its curve ends."""
    return dict(re.findall(r"(\w+) ends at ([\d.]+) %", (ROOT / PICTURE).read_text(encoding="utf-8")))


@pytest.mark.slow
def test_the_table_is_that_of_the_default_run(tmp_path: Path) -> None:
    """The figures as they are rounded there: last digits may be other ones on another machine."""
    from esper_core import read_events
    from esper_core.app.compose import prepare
    from esper_core.app.run import run
    from esper_core.leyline.events import EpisodeFinished

    outcome = run(prepare(ROOT / "plugins.yaml"), runs_dir=tmp_path)
    results = outcome.results
    finished = [one for one in read_events(outcome.path / "events.jsonl") if isinstance(one, EpisodeFinished)]
    (table,) = [block for block in blocks("text") if block.startswith("arm ")]
    rows = {line.split()[0]: line for line in table.splitlines()[1:4]}
    for arm, told in results["arms"].items():
        shown = float(rows[arm].split()[1])
        assert 100 * told["test"]["mean"] == pytest.approx(shown, abs=3.0)
        ends = [one.validation_metric for one in finished if one.arm == arm]
        assert 100 * sum(ends) / len(ends) == pytest.approx(float(ends_of_the_picture()[arm]), abs=3.0)
    verdicts = {(one["a"], one["b"]): one["verdict"] for one in results["comparisons"]}
    assert verdicts["heuristic", "twin"] == verdicts["heuristic", "capacity"] == "better"
