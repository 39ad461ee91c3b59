"""How are examples that were made together parted into three splits? The last two sixths are held out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_tasks.classification import as_split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from esper_core.leyline import Split, SplitName


def parted(inputs: NDArray[np.float64], targets: NDArray[np.int64]) -> dict[SplitName, Split]:
    """The first two thirds to train on, then a sixth for validation, then a sixth for the test.

    >>> import numpy as np
    >>> {name: len(split) for name, split in parted(np.zeros((60, 2)), np.zeros(60, dtype=np.int64)).items()}
    {'train': 40, 'validation': 10, 'test': 10}
    """
    held_out = len(targets) // 6
    validation_from, test_from = len(targets) - 2 * held_out, len(targets) - held_out
    return {
        "train": as_split(inputs[:validation_from], targets[:validation_from]),
        "validation": as_split(inputs[validation_from:test_from], targets[validation_from:test_from]),
        "test": as_split(inputs[test_from:], targets[test_from:]),
    }
