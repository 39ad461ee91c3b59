"""The example with LoRA: placed by a probe, it adapts a frozen transformer, which stays a plain one."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/lora.py"


@pytest.mark.slow
def test_a_frozen_transformer_is_adapted_and_its_adapters_are_merged(capsys: pytest.CaptureFixture[str]) -> None:
    reached, merged = runpy.run_path(str(EXAMPLE))["main"]()
    assert reached > 0.8  # 0 before
    assert merged
    output = capsys.readouterr().out
    assert "lora(rank=16) in blocks" in output
    assert "pays: its gain is" in output
    assert "is kept" in output
