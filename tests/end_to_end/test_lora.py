"""The example with LoRA: placed by a probe, it adapts a frozen transformer, which stays a plain one."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/lora.py"


@pytest.mark.slow
def test_a_frozen_transformer_is_adapted_and_its_adapters_are_merged(capsys: pytest.CaptureFixture[str]) -> None:
    reached, merged = runpy.run_path(str(EXAMPLE))["main"]()
    assert reached > 0.8  # 0 before
    assert merged
    said = capsys.readouterr().out
    assert "lora_large in blocks" in said
    assert "pays: its gain is" in said
    assert "is kept" in said
