"""The guarantees of the page on reliability have tests, and tests of those that concern structure or a user's run.

A test that guards a guarantee starts with its id: ``test_run_07_…`` for RUN-07.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest

from esper_core.leyline import Reward
from esper_core.leyline.events import StepFinished
from esper_run import read_events
from tests.contract.conftest import ROOT, SOURCES, imports, tree
from tests.end_to_end.conftest import run_once
from tests.support.hostile_plugin import plugin

PAGE = ROOT / "docs" / "project" / "reliability.md"
KINDS = (ast.For, ast.While, ast.FunctionDef, ast.Attribute)


RUN = """
plugins: {local: [dots.py]}
task: stripes
host: cnn1d
slots:
  early: {blueprints: [dots/b0]}
  middle: {blueprints: [dots/b0]}
  late: {blueprints: [dots/b0]}
arms:
  random: {policy: random}
  heuristic: {policy: {use: heuristic, settings: {preview: 2, patience: 2, first: 0.0, last: 1.0}}}
environments: 1
twin: false
capacity: false
episode: {steps: 24, batches: 1, batch_size: 20}
"""


TEST = re.compile(r"def test_((?:b[18]_(?:drl|pt|cr)_|sim_(?:crit|high|med|low)_|run_)\d+)_")


def test_every_row_has_a_test_and_every_such_test_has_a_row():
    files = [*ROOT.glob("esper-*/tests/**/test_*.py"), *ROOT.glob("tests/**/test_*.py")]
    named = {name for file in files for name in TEST.findall(file.read_text(encoding="utf-8"))}
    rows = re.findall(r"^\| ([A-Z0-9]+-[A-Z0-9-]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name.upper().replace("_", "-") for name in named} == set(rows)


@pytest.fixture(scope="module")
def nodes():
    """Yield every loop, function and private attribute in the sources of the members, with its place."""
    located: list[tuple[str, ast.AST]] = []
    for path in SOURCES:
        text, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        nodes = [node for node in ast.walk(tree(path)) if isinstance(node, KINDS)]
        kept = [node for node in nodes if not isinstance(node, ast.Attribute) or is_strange(node, text)]
        located += [(f"{place}:{node.lineno}", node) for node in kept]
    return located


def is_strange(node: ast.Attribute, text: str) -> bool:
    """Return whether a private name is read from an object that the module does not define."""
    name = node.attr
    if ast.unparse(node) in ("os._exit", "sys._current_frames") or name in (
        "_fields",
        "_replace",
        "_version",
    ):  # all documented
        return False
    if not name.startswith("_") or name.endswith("_") or ast.unparse(node.value) == "self":
        return False
    return re.search(rf"def {name}\b|self\.{name}\b|\"{name}\"|^\s*{name}\b", text, re.MULTILINE) is None


def imports_in(node: ast.AST) -> bool:
    """Return whether ``node`` imports anything."""
    return any(isinstance(inner, ast.Import | ast.ImportFrom) for inner in ast.walk(node))


def test_b8_cr_03_nothing_is_imported_in_a_loop(nodes):
    assert [place for place, node in nodes if isinstance(node, ast.For | ast.While) and imports_in(node)] == []


def test_b8_cr_05_validators_import_nothing(nodes):
    functions = [(place, node) for place, node in nodes if isinstance(node, ast.FunctionDef)]
    validators = [
        (place, node) for place, node in functions if "validator" in " ".join(map(ast.unparse, node.decorator_list))
    ]
    assert validators
    assert [place for place, node in validators if imports_in(node)] == []


def test_b8_cr_04_no_module_reads_a_private_name_of_another(nodes):
    assert [(place, node.attr) for place, node in nodes if isinstance(node, ast.Attribute)] == []


def test_b8_cr_07_a_policy_has_no_loop_of_its_own():
    """No policy imports the trainer or a task, and only ppo, which is a network, imports torch.

    So a policy can decide, but not train or measure a network.
    """
    home = ROOT / "esper-policies" / "src" / "esper_policies"
    network, other_modules = home.glob("ppo/*.py"), (path for path in home.rglob("*.py") if path.parent.name != "ppo")
    folders = network, other_modules
    of_network, imported = ({module for path in paths for module, _ in imports(path)} for paths in folders)
    assert "esper_core.leyline" in imported & of_network
    assert [name for name in imported if re.match(r"torch|esper_core\.trainer|esper_tasks", name)] == []
    assert [name for name in of_network if re.match(r"esper_core\.(?!leyline)|esper_tasks", name)] == []


def test_run_07_a_reward_receives_the_whole_network_and_no_action():
    """So there is one reward per environment, and none for single slots or actions."""
    assert list(inspect.signature(Reward.score).parameters) == ["self", "now", "before", "twin", "twin_before"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The directory of a run with two policies, three slots, and a blueprint of a one-file plugin."""
    folder = tmp_path_factory.mktemp("dots")
    (folder / "dots.py").write_text(plugin(), encoding="utf-8")
    run_once(folder, RUN)
    return folder


@pytest.mark.parametrize("arm", ["random", "heuristic"])
def test_run_14_a_policy_can_choose_components_of_a_plugin(arm, folder):
    assert {blueprint for _, blueprint in grown(folder, arm)} == {"dots/b0"}


@pytest.mark.parametrize("arm", ["random", "heuristic"])
def test_b8_drl_06_a_policy_can_use_every_slot(arm, folder):
    assert {slot for slot, _ in grown(folder, arm)} == {"early", "middle", "late"}


def grown(folder: Path, arm: str) -> set[tuple[str, str]]:
    """Return the seeds that an arm germinated, with their slots."""
    (file,) = (folder / "runs").glob("*/events.jsonl")
    steps = [event for event in read_events(file) if isinstance(event, StepFinished) and event.arm == arm]
    return {(slot.name, seed.blueprint) for step in steps for slot in step.signals.slots for seed in slot.seeds}


@pytest.mark.parametrize(
    ("setting", "nearest"),
    [("task=stripe", "stripes"), ("host=cnn1", "cnn1d"), ("slots.early.blueprints=[dots/b00]", "dots/b0")],
)
def test_b8_cr_01_an_unknown_name_is_an_error_before_anything_is_trained(setting, nearest, folder, esper_cli):
    runs = folder / "none"
    answer = esper_cli("run", f"{folder}/run.yaml", "--runs-dir", f"{runs}", "--set", setting, "--quiet", "--json")
    assert answer.status == 2
    assert f'Did you mean "{nearest}"' in answer.err
    assert not runs.exists()
