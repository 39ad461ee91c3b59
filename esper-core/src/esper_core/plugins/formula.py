"""Parameter formulas: evaluate the text in which a blueprint declares its number of parameters.

A formula is Python arithmetic on whole numbers. It is parsed with ``ast`` and only the nodes below are evaluated, so
no code of a package runs. Length, exponents and values are bounded, so a hostile formula is refused quickly.
"""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_LENGTH: Final = 200
"""Characters in a formula; this bounds its nesting, too."""

MAX_EXPONENT: Final = 64
"""Largest right side of ``**``."""

MAX_VALUE: Final = 10**18
"""Largest magnitude of any intermediate value."""

_ALLOWED: Final = "Allowed are whole numbers, names, + - * // ** ( ), min and max with two values or more."
_FOREIGN: Final = re.compile(r"[^0-9A-Za-z_ \t+\-*/(),]")
_FUNCTIONS: Final[dict[str, Callable[..., int]]] = {"max": max, "min": min}
_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.FloorDiv: operator.floordiv,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.Sub: operator.sub,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class FormulaError(ValueError):
    """A formula that cannot be evaluated."""


def evaluate_formula(text: str, variables: Mapping[str, int]) -> int:
    """Return the value of a formula with these values of its names. Raises FormulaError if it has none.

    >>> evaluate_formula("c*c*3**n + 2*c", {"c": 8, "n": 2})
    592
    """
    if not isinstance(text, str):
        msg = f'a formula is text such as "9*c*c". Received: {type(text).__name__}'
        raise FormulaError(msg)
    try:
        return _value(_parsed(text), variables)
    except FormulaError as error:
        msg = f'{str(error).rstrip(".")}. Received: "{_shortened(text)}"'
        raise FormulaError(msg) from None


def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        _fail(f"the formula has {len(text)} characters, {MAX_LENGTH} are allowed")
    # Before the parser, which takes more: comments, line breaks, and letters that it normalises to others.
    if foreign := _FOREIGN.search(text):
        _fail(f"{foreign[0]!r} is not allowed in a formula. {_ALLOWED}")
    try:
        return ast.parse(text.strip(" \t"), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        _fail(f"this is not a valid formula ({getattr(error, 'msg', None) or type(error).__name__})")


def _value(node: ast.expr, variables: Mapping[str, int]) -> int:
    """Evaluate a node; refuse every kind of node that is not listed here."""
    match node:
        # The pattern alone would take True and False, which are integers, too.
        case ast.Constant(value=int() as value) if type(value) is int:
            pass
        case ast.Name(id=name):
            if name not in variables:
                _fail(f'unknown name "{name}"; known here: {", ".join(sorted(variables))}')
            value = variables[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _OPERATORS:
            value = _OPERATORS[type(sign)](_value(operand, variables))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            operands = _value(left, variables), _value(right, variables)
            # Before the operation, because a huge power takes for ever to compute, and only then is its value bounded.
            if isinstance(sign, ast.FloorDiv) and operands[1] == 0:
                _fail(f'division by zero in "{_shortened(ast.unparse(node))}"')
            if isinstance(sign, ast.Pow) and not 0 <= operands[1] <= MAX_EXPONENT:
                _fail(f"an exponent must be from 0 to {MAX_EXPONENT}, not {operands[1]}")
            value = _OPERATORS[type(sign)](*operands)
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, _, *_]):
            value = _FUNCTIONS[name](*(_value(argument, variables) for argument in node.args))
        case _:
            _fail(f'"{_shortened(ast.unparse(node))}" is not allowed. {_ALLOWED}')
    if abs(value) > MAX_VALUE:
        _fail(f'"{_shortened(ast.unparse(node))}" is beyond {MAX_VALUE:.0e}')
    return value


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"


def _fail(message: str) -> NoReturn:
    raise FormulaError(message)
