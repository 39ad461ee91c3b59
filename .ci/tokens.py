"""Count tokens of Python files without comments and docstrings, by which budgets are set.

    python .ci/tokens.py esper-core/src/esper_core

Neither dense lines nor missing words change the count.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import Final

SKIPPED: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    }
)


def count(path: Path) -> int:
    """Return the number of tokens in a file, without its comments, and without texts that are statements."""
    source = path.read_text(encoding="utf-8")
    statements = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    docstrings = {
        (node.lineno, node.col_offset)
        for node in statements
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in SKIPPED and token.start not in docstrings for token in tokens)


def main() -> int:
    """Print the count of each file or folder that is named."""
    for name in sys.argv[1:]:
        path = Path(name)
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        print(f"{sum(map(count, files)):8,}  {len(files):3} modules  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
