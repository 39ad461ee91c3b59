"""No private names of torch, nothing that executes foreign data, and no files that are opened unsafely."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("esper-*/src/**/*.py"))

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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
