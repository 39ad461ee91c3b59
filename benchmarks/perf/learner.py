"""P6: how long does it take a policy to learn from a round? No policy learns yet, so there is nothing to measure."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.table import Table, answer

if TYPE_CHECKING:
    from collections.abc import Sequence


def measure(*, quick: bool = False) -> Sequence[Table]:
    """A table without figures."""
    del quick
    return [Table("P6", "learner update, 8 environments × 40 steps, at most 1 s", (), "not yet: no policy learns")]


if __name__ == "__main__":
    sys.exit(answer(measure))
