"""The examples in trainers keep a seed, in at most fifteen lines; that of LoRA adapts a frozen transformer."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "integrations"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("grow_in_*.py")), ids=lambda path: path.stem)
def test_an_example_has_at_most_fifteen_lines(path: Path) -> None:
    assert sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines()) <= 15


@pytest.mark.slow
@pytest.mark.members
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.library(name)) for name in ("lightning", "transformers", "accelerate")],
)
def test_an_example_keeps_a_seed(tmp_path: Path, name: str) -> None:
    command = [sys.executable, EXAMPLES / f"grow_in_{name}.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert "blueprints/conv_light is kept" in ended.stdout


@pytest.mark.slow
def test_a_frozen_transformer_is_adapted_and_its_adapters_are_merged(capsys: pytest.CaptureFixture[str]) -> None:
    reached, merged = runpy.run_path(str(EXAMPLES.parent / "lora.py"))["main"]()
    assert reached > 0.8  # 0 before
    assert merged
    output = capsys.readouterr().out
    assert "lora(rank=16) in blocks" in output
    assert "pays: its gain is" in output
    assert "is kept" in output
