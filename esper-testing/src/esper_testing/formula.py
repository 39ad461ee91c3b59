"""What does a blueprint's parameter formula come to at a site? Whole-number arithmetic, read, never executed."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def formula_value(formula: str, variables: Mapping[str, int]) -> int:
    """The value of ``formula`` where its names mean ``variables``; ValueError where it is something else.

    >>> formula_value("2*(5**n*c*c + c)", {"c": 8, "n": 1, "l": 40})
    656

    formula: whole numbers, names, + - * // % ** and brackets. variables: as ``Site.formula_variables`` gives them.
    """
    try:
        tree = ast.parse(formula.strip(), mode="eval")
    except SyntaxError:
        msg = f"a parameter formula must be an expression. Received: {formula}"
        raise ValueError(msg) from None
    return _value(tree.body, variables, formula)


def _value(node: ast.expr, variables: Mapping[str, int], formula: str) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in variables:
            return variables[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, variables, formula)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left, variables, formula), _value(right, variables, formula))
    known = ", ".join(variables)
    msg = f'"{ast.unparse(node)}" means nothing in a formula over {known}. Received: {formula}'
    raise ValueError(msg)
