"""The example with LoRA: a frozen transformer learns another task, and stays a plain transformer."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/lora.py"


@pytest.mark.slow
def test_a_frozen_transformer_is_adapted_and_its_adapters_are_merged(capsys: pytest.CaptureFixture[str]) -> None:
    reached, merged = runpy.run_path(str(EXAMPLE))["main"]()
    assert reached > 0.95
    assert merged
    assert "lora_large is kept" in capsys.readouterr().out
