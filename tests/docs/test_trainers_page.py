"""The page on the loops of other libraries, grow-in-a-trainer.md, shows the examples that the slow tests run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_examples():
    page = (ROOT / "docs" / "guides" / "grow-in-a-trainer.md").read_text(encoding="utf-8")
    files = [
        ROOT / "examples" / "integrations" / f"grow_in_{name}.py"
        for name in ("lightning", "transformers", "accelerate")
    ]
    assert re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) == [file.read_text() for file in files]
