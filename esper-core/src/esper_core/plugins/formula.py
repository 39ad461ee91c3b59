"""How many parameters does a formula promise? Whole numbers only, by a small reader of our own: nothing is executed.

A formula is text from somebody else's package, so it is bounded in length, nesting, exponent and magnitude: a hostile
one is refused as quickly as a good one is worked out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST: Final = 200
"""Characters that a formula may have."""

DEEPEST: Final = 20
"""Parentheses, signs and powers that may stand inside one another."""

HIGHEST_EXPONENT: Final = 64
"""Largest right side of ``**``."""

LARGEST: Final = 10**18
"""Largest magnitude of any value on the way."""

_FUNCTIONS: Final[dict[str, Callable[[list[int]], int]]] = {"max": max, "min": min}
_TOKEN: Final = re.compile(r"[ \t]*(?:(?P<number>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>\*\*|//|[-+*(),]))")
_LANGUAGE: Final = "Possible are whole numbers, names, + - * // ** ( ) min max."


class FormulaError(ValueError):
    """A formula that cannot be worked out."""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def evaluate_formula(text: str, variables: Mapping[str, int]) -> int:
    """The value of a formula. Raises FormulaError, whose message ends with what was received.

    >>> evaluate_formula("c*c*3**n + 2*c", {"c": 8, "n": 2})
    592
    >>> evaluate_formula("max(c // 4, 1)", {"c": 2})
    1
    """
    if not isinstance(text, str):
        msg = f'a formula is text such as "9*c*c"; received {type(text).__name__}'
        raise FormulaError(msg)
    if len(text) > LONGEST:
        msg = f"the formula has {len(text)} characters, {LONGEST} are allowed; received {_quoted(text)}"
        raise FormulaError(msg)
    return _Reader(text, variables).whole()


def _quoted(text: str) -> str:
    return f'"{text[:60]}…"' if len(text) > 60 else f'"{text}"'


class _Reader:
    """Reads a formula from left to right, and works out its value on the way."""

    def __init__(self, text: str, variables: Mapping[str, int]) -> None:
        self._text = text
        self._variables = variables
        self._tokens = self._split()
        self._next = 0
        self._depth = 0

    def whole(self) -> int:
        """The value of all of the text."""
        value = self._sum()
        if (token := self._peek()).kind != "end":
            self._fail(f'expected an operator at character {token.at}, found "{token.text}"')
        return value

    def _sum(self) -> int:
        value = self._product()
        while (token := self._take("+", "-")) is not None:
            other = self._product()
            value = self._bounded(value + other if token.text == "+" else value - other, token)
        return value

    def _product(self) -> int:
        value = self._signed()
        while (token := self._take("*", "//")) is not None:
            other = self._signed()
            if token.text == "//" and other == 0:
                self._fail(f"division by zero at character {token.at}")
            value = self._bounded(value * other if token.text == "*" else value // other, token)
        return value

    def _signed(self) -> int:
        if (token := self._take("+", "-")) is None:
            return self._power()
        self._descend(token)
        value = self._signed()
        self._depth -= 1
        return -value if token.text == "-" else value

    def _power(self) -> int:
        base = self._atom()
        if (token := self._take("**")) is None:
            return base
        self._descend(token)
        exponent = self._signed()
        self._depth -= 1
        if not 0 <= exponent <= HIGHEST_EXPONENT:
            self._fail(
                f"an exponent must be from 0 to {HIGHEST_EXPONENT}, and at character {token.at} it is {exponent}"
            )
        return self._bounded(base**exponent, token)

    def _atom(self) -> int:
        token = self._peek()
        self._next += 1
        if token.kind == "number":
            if len(token.text) > len(str(LARGEST)):
                self._fail(f"the number at character {token.at} is too large")
            return self._bounded(int(token.text), token)
        if token.kind == "name":
            return self._call(token) if token.text in _FUNCTIONS else self._variable(token)
        if token.text == "(":
            self._descend(token)
            value = self._sum()
            self._close(token)
            return value
        found = "the formula ends" if token.kind == "end" else f'"{token.text}" stands'
        return self._fail(f"expected a number, a name or an opening parenthesis where {found}, at character {token.at}")

    def _variable(self, token: _Token) -> int:
        if token.text not in self._variables:
            allowed = ", ".join(sorted(self._variables))
            self._fail(f'unknown name "{token.text}" at character {token.at}; known here: {allowed}')
        return self._bounded(self._variables[token.text], token)

    def _call(self, name: _Token) -> int:
        if (opening := self._take("(")) is None:
            self._fail(f"{name.text} at character {name.at} needs its arguments in parentheses")
        self._descend(opening)
        values = [self._sum()]
        while self._take(",") is not None:
            values.append(self._sum())
        self._close(opening)
        if len(values) == 1:
            self._fail(f"{name.text} at character {name.at} needs two values or more")
        return _FUNCTIONS[name.text](values)

    def _close(self, opening: _Token) -> None:
        if self._take(")") is None:
            self._fail(f"the parenthesis at character {opening.at} is not closed")
        self._depth -= 1

    def _descend(self, token: _Token) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            self._fail(f"more than {DEEPEST} levels inside one another at character {token.at}")

    def _bounded(self, value: int, token: _Token) -> int:
        if abs(value) > LARGEST:
            self._fail(f'the value at "{token.text}", character {token.at}, is beyond {LARGEST:.0e}')
        return value

    def _peek(self) -> _Token:
        return self._tokens[min(self._next, len(self._tokens) - 1)]

    def _take(self, *signs: str) -> _Token | None:
        token = self._peek()
        if token.kind != "sign" or token.text not in signs:
            return None
        self._next += 1
        return token

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at, end = 0, len(self._text.rstrip(" \t"))
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None or match.lastgroup is None:
                self._fail_on_character(at)
            tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup) + 1))
            at = match.end()
        tokens.append(_Token("end", "", end + 1))
        return tokens

    def _fail_on_character(self, at: int) -> NoReturn:
        while self._text[at] in " \t":
            at += 1
        found = self._text[at]
        remedy = "Use // for division." if found == "/" else _LANGUAGE
        self._fail(f"{found!r} at character {at + 1} has no meaning in a formula. {remedy}")

    def _fail(self, what: str) -> NoReturn:
        msg = f"{what.rstrip('.')}. Received: {_quoted(self._text)}"
        raise FormulaError(msg)
