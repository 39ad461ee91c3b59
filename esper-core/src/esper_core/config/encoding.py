"""Are these bytes a text that may be read? UTF-8, with no character in it that hides."""

from __future__ import annotations

import codecs
import re
import unicodedata

from esper_core.config.limits import MAX_BYTES
from esper_core.leyline import ConfigError, Problem

_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""What YAML forbids; and the line breaks of YAML 1.1 and the byte order mark, which no editor shows."""

_REPORTED = 20
_WIDE = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def decode(data: bytes, file: str) -> str:
    """The text of ``data`` without a byte order mark. ConfigError E102 or E103 where it cannot be."""
    if len(data) > MAX_BYTES:
        raise ConfigError(too_large(file, len(data)))
    for mark, name in _WIDE:
        if data.startswith(mark):
            message = f"the file is encoded as {name}; expected UTF-8"
            raise ConfigError(Problem("E103", message, file, 1, 1, hint="Save it as UTF-8 in your editor."))
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(_not_utf8(data, error, file)) from None
    if problems := _hidden(text, file):
        raise ConfigError(problems)
    return text


def too_large(file: str, size: int | None = None) -> Problem:
    """The problem of a file that has more bytes than are read."""
    received = f"it has {size:,}" if size else "it has more"
    return Problem(
        "E102",
        f"the file is too large: at most {MAX_BYTES:,} bytes are read, {received}",
        file,
        hint="A configuration is a page or two. Is this the file that you meant?",
    )


def position(text: str, index: int) -> tuple[int, int]:
    """Line and column of ``text[index]``, from 1."""
    before = text[:index].replace("\r\n", "\n").replace("\r", "\n")
    return before.count("\n") + 1, index - _line_start(text, index) + 1


def _line_start(text: str, index: int) -> int:
    return max(text.rfind("\n", 0, index), text.rfind("\r", 0, index)) + 1


def _not_utf8(data: bytes, error: UnicodeDecodeError, file: str) -> Problem:
    before = data[: error.start].decode()
    line, column = position(before, len(before))
    byte = data[error.start]
    message = f"the file is not UTF-8: expected text, received the byte 0x{byte:02X}"
    hint = "Save it as UTF-8 in your editor."
    if byte >= 0xA0:
        hint += f" In Latin-1 this byte would be {chr(byte)!r}."
    return Problem("E103", message, file, line, column, hint=hint)


def _hidden(text: str, file: str) -> list[Problem]:
    problems: list[Problem] = []
    for match in _FORBIDDEN.finditer(text):
        if len(problems) == _REPORTED:
            break
        line, column = position(text, match.start())
        message = f"a character that may not stand in a configuration: {_name(match[0])}"
        problems.append(Problem("E103", message, file, line, column, hint=_way_out(text, match[0])))
    return problems


def _name(letter: str) -> str:
    number = f"U+{ord(letter):04X}"
    name = unicodedata.name(letter, "a control character")
    return f"{number}, {name}"


def _way_out(text: str, letter: str) -> str:
    if letter == "\0" and text.count("\0") > len(text) // 4:
        return "The file looks like UTF-16. Save it as UTF-8 in your editor."
    return f'Delete it. Where it is meant, write "\\u{ord(letter):04x}" in double quotes.'
