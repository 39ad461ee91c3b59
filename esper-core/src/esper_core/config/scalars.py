"""What does an unquoted word mean?

The core schema of YAML 1.2 says it: ``1e-3`` and ``0o17`` are numbers; ``no``, ``1:30``, ``1_000`` and dates are text.
"""

from __future__ import annotations

import math
import re

from esper_core.config.limits import MAX_NUMBER

Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((f"{sign}.{word}" for sign in ("", "+") for word in ("inf", "Inf", "INF")), float("inf")),
    **dict.fromkeys((f"-.{word}" for word in ("inf", "Inf", "INF")), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASES = {"0o": 8, "0x": 16}


class NumberError(ValueError):
    """A number that cannot be kept as it is written. The message says why."""


def meaning(word: str) -> Scalar:
    """The value of an unquoted scalar. NumberError where no number of ours could hold it.

    >>> [meaning(word) for word in ("1e-3", "0x1F", "0o17", "007", "1_000", "no", "~", "-.inf")]
    [0.001, 31, 15, 7, '1_000', 'no', None, -inf]
    """
    if word in _WORDS:
        return _WORDS[word]
    is_integer = _INTEGER.fullmatch(word) is not None
    if not is_integer and _FLOAT.fullmatch(word) is None:
        return word
    if len(word) > MAX_NUMBER:
        msg = f"a number of {len(word):,} characters; at most {MAX_NUMBER} are read"
        raise NumberError(msg)
    if is_integer:
        return int(word[2:], _BASES[word[:2]]) if word[:2] in _BASES else int(word)
    number = float(word)
    if math.isinf(number):
        msg = f"the number {word} is larger than a float can be"
        raise NumberError(msg)
    if number == 0 and re.search(r"[1-9]", re.split(r"[eE]", word)[0]):
        msg = f"the number {word} is closer to 0 than a float can be"
        raise NumberError(msg)
    return number
