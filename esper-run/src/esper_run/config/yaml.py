"""Read and write YAML 1.2 with the position of every value.

PyYAML's pure-Python loader composes the nodes; nothing is ever constructed from a tag. Reading stops at the first
thing that a configuration cannot contain: tags, duplicate keys, hidden characters, and anything beyond the limits in
``values``, also once aliases are expanded.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, Any, Final

import yaml

from esper_core.leyline.errors import ConfigError, Problem
from esper_run.config.values import MAX_BYTES, MAX_DEPTH, MAX_NODES, Node, SourcePosition, cut, shown, visible

if TYPE_CHECKING:
    from yaml.error import Mark

MAX_TOKENS: Final = 3 * MAX_NODES
"""YAML tokens of a file. ``MAX_NODES`` values need about two each."""

MAX_NUMBER: Final = 100
"""Characters of one number. A 64-bit integer has 20, a float that is written out exactly about 55."""

_EXAMPLE = 'A configuration has at least the keys task, host, slots and policy, for example "task: mnist1d".'

_FORBIDDEN = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
"""What YAML forbids, and characters that no editor shows: YAML 1.1 line breaks, byte order marks, text direction."""

_WORDS: dict[str, float | bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((f"{sign}.{word}" for sign in ("", "+") for word in ("inf", "Inf", "INF")), math.inf),
    **dict.fromkeys((f"-.{word}" for word in ("inf", "Inf", "INF")), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_INTEGER = re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_BASES = {"0o": 8, "0x": 16}

_HINTS = {
    "'\\t'": "Replace the tab by spaces.",
    "alias": 'Put a value that begins with * in quotes: "*". Without quotes, * refers to an anchor.',
    "cannot start any token": "Put a value that begins with this character in quotes.",
    "mapping values are not allowed": "Check the indentation, and put a value that contains ': ' in quotes.",
    "": "Check the indentation, quotes and brackets here and in the line above.",
}
"""What to do about an error of PyYAML that contains the text."""


def parse_scalar(text: str) -> str | float | bool | None:
    """Return the value of an unquoted scalar by the core schema of YAML 1.2. ValueError where it cannot be kept.

    >>> [parse_scalar(text) for text in ("1e-3", "0x1F", "0o17", "007", "1_000", "no", "~", "-.inf")]
    [0.001, 31, 15, 7, '1_000', 'no', None, -inf]
    """
    if text in _WORDS:
        return _WORDS[text]
    is_integer = _INTEGER.match(text) is not None
    if not is_integer and _FLOAT.match(text) is None:
        return text
    if len(text) > MAX_NUMBER:
        msg = f"expected a number of at most {MAX_NUMBER} characters, received {len(text):,}"
        raise ValueError(msg)
    if is_integer:
        return int(text, _BASES.get(text[:2], 10))
    if math.isinf(number := float(text)):
        msg = f"the number {text} is larger than a float can be"
        raise ValueError(msg)
    return number


def read_document(data: bytes, file: str) -> Node:
    """Read the mapping of a file. ConfigError where it cannot be read."""
    if len(data) > MAX_BYTES:
        message = f"the file is too large: expected at most {MAX_BYTES:,} bytes, received more"
        raise ConfigError(Problem("E102", message, file, hint="A configuration is a page or two. Check the name."))
    data = data.removeprefix("\ufeff".encode())
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        message = f"expected UTF-8, received the byte 0x{data[error.start]:02X}"
        place = _line_and_column(data[: error.start].decode())
        raise ConfigError(Problem("E103", message, file, *place, hint="Save the file as UTF-8.")) from None
    tree = _read(text, file)
    if not isinstance(tree.value, dict):
        received = "nothing" if tree.value is None else shown(tree.plain())
        message = f"expected keys with values, received {received}"
        raise ConfigError(Problem("E109", message, file, tree.position.line, tree.position.column, hint=_EXAMPLE))
    return tree


def read_value(text: str, label: str) -> Node:
    """Read a value that is not in a file. Its place is ``label``, without lines. ConfigError where it is not YAML."""
    return _read(text, label, has_lines=False)


def _read(text: str, file: str, *, has_lines: bool = True) -> Node:
    loader = _Loader(text, file, has_lines)
    try:
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        context = error.context
        if context and error.context_mark is not None and has_lines:
            context += f" that begins in line {error.context_mark.line + 1}"
        description = visible(cut(", ".join(part for part in (context, error.problem) if part), 200))
        code = "E107" if re.search(r"\btag\b", description) else "E104"
        hint = next(hint for part, hint in _HINTS.items() if part in description)
        if file.endswith(".py"):
            hint = f"A configuration names a Python file:  plugins: {{local: [{file}]}},  or  host: MODULE:FUNCTION"
        raise loader.refused(error.problem_mark, code, f"this is not valid YAML: {description}", hint) from None
    except (ValueError, OverflowError):  # PyYAML leaves "\UFFFFFFFF" to chr() and %YAML 1.999…9 to int()
        message = "this is not valid YAML: an escape or a version number has no meaning"
        raise loader.refused(loader.get_mark(), "E104", message, _HINTS[""]) from None
    return Node(None, loader.position(None)) if root is None else loader.build(root, 1)


def _line_and_column(before: str) -> tuple[int, int]:
    lines = f"{before}|".splitlines()
    return len(lines), len(lines[-1])


class _Loader(yaml.SafeLoader):
    """PyYAML's loader up to the composed nodes, with limits on depth, tokens and expanded aliases."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 – PyYAML's attribute; ``parse_scalar`` resolves

    def __init__(self, text: str, file: str, has_lines: bool) -> None:
        self.file = file
        self.has_lines = has_lines
        if match := _FORBIDDEN.search(text):
            code, name = ord(match[0]), unicodedata.name(match[0], "a control character")
            message = f"a configuration cannot contain the character U+{code:04X}, {name}"
            hint = f'Delete it, or write "\\u{code:04x}" in double quotes. Save the file as UTF-8.'
            line, column = _line_and_column(text[: match.start()]) if has_lines else (None, None)
            raise ConfigError(Problem("E103", message, file, line, column, hint=hint))
        super().__init__(text)
        self.nesting = 0
        self.token_count = 0
        self.node_count = 0
        self.character_count = 0

    def fetch_more_tokens(self) -> None:
        """Fetch tokens within the limit."""
        self.token_count += 1
        if self.token_count > MAX_TOKENS:
            raise self.beyond(self.get_mark(), f"more than {MAX_TOKENS:,} YAML tokens")
        super().fetch_more_tokens()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node without a tag, within the limit on depth."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            tag = visible(cut(event.tag.replace("tag:yaml.org,2002:", "!!")))
            message = f"a configuration cannot contain the tag {tag}"
            hint = "Delete it, or put a value that begins with ! in quotes."
            raise self.refused(event.start_mark, "E107", message, hint)
        self.nesting += 1
        if self.nesting > MAX_DEPTH:
            raise self.beyond(event.start_mark, f"more than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.nesting -= 1
        return node

    def build(self, node: yaml.Node, depth: int, key: yaml.Node | None = None) -> Node:
        """Return the value of a node, with its aliases expanded."""
        if depth > MAX_DEPTH:
            raise self.beyond(node.start_mark, f"more than {MAX_DEPTH} levels, or an alias inside its own value")
        place = self.position(node.start_mark, None if key is None else key.start_mark)
        if isinstance(node, yaml.MappingNode):
            self.count(node)
            return Node(self.mapping(node, depth), place)
        if isinstance(node, yaml.SequenceNode):
            self.count(node)
            return Node([self.build(child, depth + 1) for child in node.value], place)
        assert isinstance(node, yaml.ScalarNode)
        return Node(self.scalar(node), place)

    def mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Node]:
        """Return the values of a mapping, whose keys are texts and unique."""
        mapping: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = self.scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                received = "nothing, a list or a mapping" if key is None else shown(key)
                message = f"a key must be a string, received {received}"
                raise self.refused(key_node.start_mark, "E106", message, "Put it in quotes if it is meant as a string.")
            if key in mapping:
                raise self.refused(key_node.start_mark, "E105", f"duplicate key {shown(key)}", "Delete one.")
            mapping[key] = self.build(value_node, depth + 1, key_node)
        return mapping

    def scalar(self, node: yaml.ScalarNode) -> str | float | bool | None:
        """Return the value of a scalar: its text if it is quoted, else what YAML 1.2 makes of it."""
        self.count(node, len(node.value))
        try:
            node.value.encode()
            return parse_scalar(node.value) if node.style is None else str(node.value)
        except UnicodeEncodeError:
            hint = 'Write the character itself, or "\\U" and 8 hexadecimal digits.'
            raise self.refused(node.start_mark, "E103", "an escape is half a character (a surrogate)", hint) from None
        except ValueError as error:
            raise self.refused(
                node.start_mark, "E112", str(error), "Put it in quotes if it is meant as a string."
            ) from None

    def count(self, node: yaml.Node, characters: int = 0) -> None:
        """Enforce the limits on values once aliases are expanded."""
        self.node_count += 1
        self.character_count += characters
        if self.node_count > MAX_NODES:
            raise self.beyond(node.start_mark, f"more than {MAX_NODES:,} values, with aliases expanded")
        if self.character_count > MAX_BYTES:
            raise self.beyond(node.start_mark, f"more than {MAX_BYTES:,} characters, with aliases expanded")

    def position(self, mark: Mark | None, key: Mark | None = None) -> SourcePosition:
        """Return the position of a value and of its key."""
        if not self.has_lines:
            return SourcePosition(self.file)
        line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        at_key = (None, None) if key is None else (key.line + 1, key.column + 1)
        return SourcePosition(self.file, line, column, *at_key)

    def refused(self, mark: Mark | None, code: str, message: str, hint: str) -> ConfigError:
        """Build the error for what is at ``mark``."""
        position = self.position(mark)
        return ConfigError(Problem(code, message, self.file, position.line, position.column, hint=hint))

    def beyond(self, mark: Mark | None, limit: str) -> ConfigError:
        """Build the error for a file that is beyond a limit."""
        return self.refused(mark, "E108", f"the file exceeds a limit: {limit}", "Use fewer values and aliases.")


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper, which writes every value out and quotes what YAML 1.2 would read as a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return that no value is written as an alias."""
        return True


for _name, _pattern in (("int", _INTEGER), ("float", _FLOAT)):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _pattern, list("-+.0123456789"))


def dump(value: Any, *, is_flow: bool = False) -> str:
    """Write plain data as YAML that this module reads back; with ``is_flow`` on one line.

    >>> dump({"step": 0, "op": None, "at": ["a b", 1.0, True, "no"]}, is_flow=True)
    "{step: 0, op: null, at: [a b, 1.0, true, 'no']}"
    """
    width = math.inf if is_flow else 110
    options: dict[str, Any] = {"default_flow_style": is_flow, "sort_keys": False, "width": width}
    text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, **options)
    if not text.replace("\n", "").isprintable():
        text = yaml.dump(value, Dumper=_Dumper, allow_unicode=False, **options)  # escapes all but ASCII
    return text.removesuffix("\n").removesuffix("\n...") if is_flow else text
