"""No private names of torch, and nothing that executes foreign data: pickle, eval, torch.load, unsafe YAML."""

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
