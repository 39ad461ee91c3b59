"""What is wrong where a text is not YAML? PyYAML's complaints in plain words, each with the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from esper_core.config.showing import cut, visible
from esper_core.leyline import Problem

if TYPE_CHECKING:
    from yaml.error import Mark, MarkedYAMLError


class _Reading(NamedTuple):
    """What PyYAML says (a part of its context or problem), what it means, and the way out."""

    says: str
    means: str
    hint: str
    begins: str = ""
    """What was begun at the context's position, if that is where one should look."""
    code: str = "E104"
    at_context: bool = False
    """Whether the context's position is the place to show."""


_READINGS = (
    _Reading("character '\\t' that cannot", "a tab, where only spaces may stand", "Replace it with spaces."),
    _Reading(
        "scanning an alias",
        "a value that begins with *, and is no alias",
        'Put it in quotes: "*". Without them, * refers to an anchor.',
        at_context=True,
    ),
    _Reading(
        "scanning an anchor", "a value that begins with &, and is no anchor", "Put it in quotes.", at_context=True
    ),
    _Reading("but found '?'", "a ? inside [ ] or { }", 'Put the value in quotes: ["conv?"].', "the bracket"),
    _Reading("but got '?'", "a ? inside [ ] or { }", 'Put the value in quotes: ["conv?"].', "the bracket"),
    _Reading(
        "parsing a flow sequence",
        "expected , or ]",
        "Close the list with ]. A value that holds , : [ ] { } or ? stands in quotes.",
        "the list",
    ),
    _Reading(
        "parsing a flow mapping",
        "expected , or }",
        "Close the mapping with }. A value that holds , : [ ] { } or ? stands in quotes.",
        "the mapping",
    ),
    _Reading(
        "mapping values are not allowed",
        "a : where no key can stand",
        "Mind the indentation, here and in the line above. A value that holds ': ' stands in quotes.",
    ),
    _Reading(
        "could not find expected ':'",
        "a key without its :",
        "Write key: value, with a space after the colon, and mind the indentation.",
        "the key",
    ),
    _Reading(
        "sequence entries are not allowed",
        "a - where no list can stand",
        "Begin the list in a line of its own, below its key.",
    ),
    _Reading(
        "expected <block end>",
        "the indentation fits nothing above",
        "The keys of one mapping, and the - of one list, stand in one column.",
    ),
    _Reading(
        "expected '<document start>'", "something behind what was complete", "Delete it, or quote what it belongs to."
    ),
    _Reading(
        "expected the node content", "a mark where a value should stand", "Write a value, or put the mark in quotes."
    ),
    _Reading(
        "hexadecimal numbers",
        "an escape without its digits",
        "Write \\x with 2, \\u with 4 or \\U with 8 digits.",
    ),
    _Reading("scanning a quoted scalar", "a quote that is not closed", "Close it.", "the quote"),
    _Reading(
        "unknown escape character",
        "a \\ inside double quotes that begins no escape",
        "Write \\\\, or use single quotes.",
    ),
    _Reading("that cannot start any token", "a character that no value can begin with", "Put the value in quotes."),
    _Reading("undefined tag handle", "a tag", "Delete it: a configuration needs none.", code="E107"),
    _Reading("scanning a tag", "a value that begins with !", "Delete it, or put the value in quotes.", code="E107"),
    _Reading("parsing a tag", "a value that begins with !", "Delete it, or put the value in quotes.", code="E107"),
)


_BEHIND = _Reading(
    "expected <block end>",
    "something behind a value that was complete",
    "Put the whole value in quotes, or delete what is behind it.",
)


def explain_syntax(error: MarkedYAMLError, text: str, file: str) -> Problem:
    """PyYAML's complaint as a problem, where one should look for its cause."""
    said = " ".join(str(part) for part in (error.context, error.problem) if part)
    mark = error.problem_mark or error.context_mark
    reading = next((reading for reading in _READINGS if reading.says in said), None)
    if reading and reading.says == _BEHIND.says and _is_behind_something(text, mark):
        reading = _BEHIND
    if reading is None:
        message, hint = f"this is not YAML: {visible(cut(said, 120))}", "Mind indentation, quotes and brackets."
    else:
        message, hint = f"this is not YAML: {reading.means}", reading.hint
        if reading.begins and error.context_mark and error.context_mark.line != (mark and mark.line):
            message += f"; {reading.begins} begins in line {error.context_mark.line + 1}"
    at_end = mark is not None and mark.index >= len(text.rstrip())
    if error.context_mark and (at_end or (reading and reading.at_context)):
        mark = error.context_mark  # the end of the file tells nobody what was left open
    line, column = _position(mark)
    code = reading.code if reading else "E104"
    return Problem(code, f"{message}; received {_received(text, mark)}", file, line, column, hint=hint)


def _is_behind_something(text: str, mark: Mark | None) -> bool:
    """Whether more than indentation stands before ``mark`` in its line."""
    return mark is not None and text[mark.index - mark.column : mark.index].strip(" -") != ""


def _position(mark: Mark | None) -> tuple[int | None, int | None]:
    return (mark.line + 1, mark.column + 1) if mark is not None else (None, None)


def _received(text: str, mark: Mark | None) -> str:
    line = "" if mark is None else text[mark.index : mark.index + 200].splitlines()[:1]
    return f'"{visible(cut(line[0], 40))}"' if line and line[0].strip() else "the end of the line"
