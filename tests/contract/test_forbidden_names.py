"""No private names of torch, and nothing that executes foreign data: pickle, eval, torch.load, unsafe YAML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    assert {name: found for name, pattern in UNSAFE.items() if (found := lines_with(pattern))} == {}


def test_b8_pt_05_no_value_depends_on_whether_a_name_was_bound() -> None:
    """No code tests whether a name is in ``locals()``."""
    assert lines_with(IN_LOCALS) == []


@pytest.mark.parametrize(
    ("pattern", "found", "left"),
    [
        (
            PRIVATE_TORCH,
            "norms = torch._foreach_norm(gradients)|torch.nn.utils._stateless.functional_call(m)|"
            "from torch._dynamo import explain|from torch.nn.modules import _functions|"
            "torch._C._cuda_resetPeakMemoryStats()|child = model._modules[name]|module._forward_hooks.clear()",
            "x.add_(1)|torch.nn.init.zeros_(w)|torch.__version__|from torch import nn",
        ),
        (UNSAFE["pickle"], "import pickle|from joblib import load", "from torch import nn"),
        (UNSAFE["torch.load"], "state = torch.load(path)", "esper_core.load(path)"),
        (UNSAFE["eval"], "value = eval(formula)", "model.eval()|self.eval()|def evaluate(x):"),
        (UNSAFE["unsafe YAML"], "yaml.load(text)|class Loader(yaml.Loader):", "yaml.safe_load(text)"),
        (UNSAFE["numpy pickle"], "numpy.load(path, allow_pickle=True)", "numpy.load(path)"),
        (UNSAFE["shell"], "subprocess.run(line, shell=True)", "subprocess.run(line)"),
        (IN_LOCALS, 'if "x" in locals():', "names = locals()"),
    ],
)
def test_the_search_finds_what_is_forbidden_and_leaves_the_rest_alone(pattern, found: str, left: str) -> None:
    assert all(pattern.search(line) for line in found.split("|"))
    assert not any(pattern.search(line) for line in left.split("|"))
