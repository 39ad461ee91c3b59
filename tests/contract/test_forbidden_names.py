"""No private names of torch, no foreign data that is executed, no file opened unsafely, no unnamed threshold."""

import ast
import re
from collections.abc import Iterator

import pytest

from esper_core.leyline import constants
from esper_core.settings import GovernorConfig
from tests.contract.conftest import ROOT, SOURCES, tree

PRIVATE_TORCH = re.compile(
    r"\btorch\.(?:\w+\.)*_(?!_)\w|\bfrom torch[\w.]*\._\w|\bfrom torch[\w.]* import [^#\n]*\b_\w"
    r"|\._(?:modules|parameters|buffers|(?:forward|backward)(?:_pre)?_hooks|non_persistent_buffers_set)\b"
)
UNSAFE = {
    "pickle": re.compile(r"\b(?:import|from) (?:c?pickle|dill|cloudpickle|shelve|marshal|joblib)\b"),
    "torch.load": re.compile(r"\btorch\.(?:load|save)\("),
    "numpy pickle": re.compile(r"allow_pickle\s*=\s*True"),
    "eval": re.compile(r"(?<![\w.])(?:eval|exec)\("),
    "unsafe YAML": re.compile(r"\byaml\.(?:load|load_all|full_load|unsafe_load)\(|\byaml\.(?:Unsafe|Full)?Loader\b"),
    "shell": re.compile(r"shell\s*=\s*True|\bos\.system\("),
}
IN_LOCALS = re.compile(r"\bin (?:locals|globals)\(\)")


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    """Every line of our sources that ``pattern`` finds, with its place."""
    assert SOURCES
    return [
        f"{path.relative_to(ROOT).as_posix()}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_sim_med_6_no_private_torch_api() -> None:
    """No private function of torch is used in any member."""
    assert lines_with(PRIVATE_TORCH) == []


def test_nothing_executes_bytes_from_a_file() -> None:
    assert {name: lines for name, pattern in UNSAFE.items() if (lines := lines_with(pattern))} == {}


def test_b8_pt_05_no_value_depends_on_whether_a_name_was_bound() -> None:
    """No code tests whether a name is in ``locals()``."""
    assert lines_with(IN_LOCALS) == []


OPENING = {"open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes", "load_file", "FileHandler"}
"""Calls that open a file: functions by their name, methods by theirs."""

OPENERS = {
    "esper_core/leyline/files.py": "opens all files of runs, networks, plans and stores",
    "esper_core/plugins/loader.py": "hashes the source of an installed plugin",
    "esper_core/plugins/process_state.py": "opens no file: a method of that name",
    "esper_grow/command.py": "writes the page that the user named",
    "esper_grow/integrations/attachment.py": "writes beside a checkpoint of the user's trainer",
    "esper_grow/integrations/transformers.py": "reads a model that the user named",
    "esper_policies/ppo/trained_policies.py": "writes a policy that was trained",
    "esper_run/app/run.py": "opens an engine; log.txt is opened by append_regular",
    "esper_run/cli/main.py": "the null device",
    "esper_run/cli/output.py": "stdout",
    "esper_run/runs/directory.py": "makes new files of a run, and flushes its folder",
    "esper_run/stores.py": "makes a new file in the cache",
    "esper_run/watchdog/forks.py": "reads the status of a process",
    "esper_scale/engines/portable.py": "hashes an installed module",
    "esper_scale/engines/processes.py": "streams of a worker",
    "esper_scale/stores/storage.py": "makes new files, and reads and writes a storage, where links were refused",
    "esper_tasks/own_data.py": "data that the user named",
    "esper_testing/commands.py": "writes a new package",
    "esper_testing/fakes.py": "writes a package for a test",
}
"""Modules that open files otherwise than by ``esper_core.leyline.files``, which waits for nothing and has limits."""


def test_no_module_opens_files_of_a_run_by_itself() -> None:
    openers = set()
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) or getattr(node.func, "id", "") in (
                "open",
                "load_file",
                "FileHandler",
            ):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                if name in OPENING:
                    openers.add(path.relative_to(ROOT).as_posix().partition("/src/")[2])
    assert openers == OPENERS.keys()


STEERING = (
    "esper-core/src/esper_core/growth",
    "esper-core/src/esper_core/governor",
    "esper-core/src/esper_core/leyline",
    "esper-core/src/esper_core/trainer",
    "esper-policies/src",
    "esper-rewards/src",
)
PLAIN = {0.0, 0.5, 1.0, 2.0, 10.0, 100.0}
"""Numbers that need no name: zero, a half, one, two, and units."""


def unnamed(source: str) -> Iterator[str]:
    """Yield each calculation, comparison or call in a function that contains an unnamed number."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            body = function.body if isinstance(function.body, list) else [function.body]
            for part in (inner for statement in body for inner in ast.walk(statement)):
                if isinstance(part, ast.BinOp | ast.AugAssign | ast.Compare | ast.UnaryOp | ast.Call):
                    yield from (ast.unparse(part) for child in ast.iter_child_nodes(part) if _own_number(child))


def _own_number(part: ast.AST) -> bool:
    value = part.value if isinstance(part, ast.keyword) else part
    return isinstance(value, ast.Constant) and isinstance(value.value, float) and value.value not in PLAIN


@pytest.mark.parametrize("folder", STEERING)
def test_b8_drl_11_numbers_that_control_behaviour_have_names(folder: str) -> None:
    """A fraction in a calculation, a comparison or a call, such as a threshold or a weight, has a name."""
    sources = sorted((ROOT / folder).rglob("*.py"))
    assert sources
    by_file = {
        file.name: calculations
        for file in sources
        if (calculations := sorted(set(unnamed(file.read_text(encoding="utf-8")))))
    }
    assert by_file == {}


def test_b8_cr_09_history_and_surge_thresholds_of_the_governor_are_settings() -> None:
    """Windows, thresholds and shares of the governor are settings, and their defaults are the named constants."""
    defaults = {field.default for field in GovernorConfig.model_fields.values()}
    steering = ("HISTORY_STEPS", "SURGE_SIGMAS", "SURGE_RATIO", "SURGE_STEPS", "COLLAPSE_SHARE", "WATCH_STEPS")
    missing = [name for name in steering if getattr(constants, name) not in defaults]
    assert missing == []
