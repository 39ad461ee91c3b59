"""Read and write YAML 1.2 with the position of every value.

PyYAML's pure-Python loader composes the nodes; nothing is ever constructed from a tag. The loader and the builder
refuse what a configuration cannot contain: tags, cycles, duplicate keys, hidden characters, and anything beyond the
limits in ``values``, also once aliases are expanded.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from esper_core.config.values import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_NODES,
    MAX_NUMBER,
    MAX_TOKENS,
    KeyPath,
    SourcePosition,
    Tree,
    cut,
    path_text,
    quoted,
    visible,
)
from esper_core.leyline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from yaml.error import Mark, MarkedYAMLError

Scalar = str | int | float | bool | None

_EXAMPLE = 'A configuration has at least the keys task, host, slots and policy, for example "task: mnist1d".'
_TOO_LARGE = "A configuration is a page or two. Is this the right file?"
_NO_YAML = "this is not valid YAML"

_FORBIDDEN = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
"""What YAML forbids, and characters that no editor shows: YAML 1.1 line breaks, byte order marks, text direction."""

_MAX_FORBIDDEN = 20

_WORDS: dict[str, Scalar] = {
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

_HINTS = (
    ("character '\\t'", "Replace the tab by spaces."),
    ("scanning an alias", 'Put a value that begins with * in quotes: "*". Without quotes, * refers to an anchor.'),
    ("scanning an anchor", "Put a value that begins with & in quotes."),
    ("'?'", 'Put a value that contains ? in quotes: ["conv?"].'),
    ("cannot start any token", "Put a value that begins with this character in quotes."),
    ("mapping values are not allowed", "Check the indentation, and put a value that contains ': ' in quotes."),
    ("could not find expected ':'", "Write key: value, with a space after the colon, and check the indentation."),
    ("escape", "Write \\\\ for a backslash, or use single quotes."),
)
"""What to do about an error of PyYAML that contains the text."""

_EXPLICIT = "explicit:"
"""Prefix of the tag of a node whose tag was written in the file."""


class NumberError(ValueError):
    """A number that no configuration can hold. The message says why."""


def parse_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar by the core schema of YAML 1.2. NumberError where it cannot be kept.

    >>> [parse_scalar(text) for text in ("1e-3", "0x1F", "0o17", "007", "1_000", "no", "~", "-.inf")]
    [0.001, 31, 15, 7, '1_000', 'no', None, -inf]
    """
    if text in _WORDS:
        return _WORDS[text]
    is_integer = _INTEGER.match(text) is not None
    if not is_integer and _FLOAT.match(text) is None:
        return text
    if len(text) > MAX_NUMBER:
        msg = f"a number of {len(text):,} characters; at most {MAX_NUMBER} are read"
        raise NumberError(msg)
    if is_integer:
        return int(text[2:], _BASES[text[:2]]) if text[:2] in _BASES else int(text)
    number = float(text)
    if math.isinf(number):
        msg = f"the number {text} is larger than a float can be"
        raise NumberError(msg)
    if number == 0 and re.search(r"[1-9]", re.split(r"[eE]", text)[0]):
        msg = f"the number {text} is closer to 0 than a float can be"
        raise NumberError(msg)
    return number


def read_document(data: bytes, file: str) -> Tree:
    """Read the mapping of a file. ConfigError where it cannot be read; other problems are in the tree."""
    root, problems = _compose(_decode(data, file), file)
    if root is None:
        raise ConfigError([*problems, Problem("E109", "the file is empty", file, 1, 1, hint=_EXAMPLE)])
    tree = Tree({}, problems=problems)
    value = _Builder(tree, file).build(root, ())
    if not isinstance(value, dict):
        message = f"expected keys with values at the top of the file, received {_kind(root, value)}"
        raise ConfigError([*tree.problems, _problem("E109", message, file, root.start_mark, _EXAMPLE)])
    tree.value = value
    return tree


def read_value(text: str, label: str, path: KeyPath) -> Tree:
    """Read the single value of ``text``, placed at ``path``; problems name ``label`` in place of a file.

    ConfigError where it cannot be read or is not a single value on one line.
    """
    try:
        root, problems = _compose(_decode(text.encode(), label), label)
        outside = text if root is None else text[: root.start_mark.index] + text[root.end_mark.index :]
        is_block = isinstance(root, yaml.CollectionNode) and not root.flow_style
        if is_block or outside.strip():
            hint = "Write a list as [a, b], a mapping as {key: value}, and put a text in quotes twice: '\"…\"'."
            raise ConfigError(Problem("E115", f"expected one value, received {quoted(text)}", hint=hint))
        tree = Tree(None, problems=problems)
        tree.places.by_path[path] = SourcePosition(label)
        if root is not None:
            tree.value = _Builder(tree, label, has_positions=False).build(root, path)
    except ConfigError as error:
        raise ConfigError([_without_line(problem, label, path) for problem in error.problems]) from None
    tree.problems = [_without_line(problem, label, path) for problem in tree.problems]
    return tree


def _without_line(problem: Problem, label: str, path: KeyPath) -> Problem:
    return Problem(problem.code, problem.message, label, path=problem.path or path_text(path), hint=problem.hint)


def too_large(file: str, size: int | None = None) -> Problem:
    """Describe a file that has more bytes than are read."""
    received = f"{size:,} bytes" if size else "more"
    message = f"the file is too large: expected at most {MAX_BYTES:,} bytes, received {received}"
    return Problem("E102", message, file, hint=_TOO_LARGE)


def _decode(data: bytes, file: str) -> str:
    """Decode UTF-8 without its byte order mark. ConfigError E102 or E103 where that is not possible."""
    if len(data) > MAX_BYTES:
        raise ConfigError(too_large(file, len(data)))
    data = data.removeprefix("\ufeff".encode())
    hint = "Save the file as UTF-8."
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        message = f"expected UTF-8, received the byte 0x{data[error.start]:02X}"
        line, column = _line_and_column(before, len(before))
        raise ConfigError(Problem("E103", message, file, line, column, hint=hint)) from None
    problems: list[Problem] = []
    for match in _FORBIDDEN.finditer(text):
        if len(problems) == _MAX_FORBIDDEN:
            break
        code, name = ord(match[0]), unicodedata.name(match[0], "a control character")
        message = f"a configuration cannot contain the character U+{code:04X}, {name}"
        hint = f'Delete it, or write "\\u{code:04x}" in double quotes. Save the file as UTF-8.'
        line, column = _line_and_column(text, match.start())
        problems.append(Problem("E103", message, file, line, column, hint=hint))
    if problems:
        raise ConfigError(problems)
    return text


def _line_and_column(text: str, index: int) -> tuple[int, int]:
    before = text[:index].replace("\r\n", "\n").replace("\r", "\n")
    return before.count("\n") + 1, len(before) - before.rfind("\n")


class _Alias(yaml.Node):
    """``*name``. ``value`` is the node that it refers to: None where there is none, or where it is inside it."""

    def __init__(self, name: str, target: yaml.Node | None, start: Mark, end: Mark, *, is_cycle: bool) -> None:
        super().__init__(name, target, start, end)
        self.is_cycle = is_cycle


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, of which only composing is used, with limits on depth, nodes and tokens."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 – PyYAML's attribute; ``parse_scalar`` resolves
    tokens_fetched = 0
    nodes = 0

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.file = file
        self.open: list[str | None] = []
        """The anchors of the mappings and lists that are being composed."""

    def single_document(self) -> tuple[yaml.Node | None, list[Problem]]:
        """Compose the document (None where there is none) and report others."""
        self.get_event()  # type: ignore[no-untyped-call]
        if self.check_event(yaml.StreamEndEvent):
            return None, []
        problems = []
        start: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if start.version not in (None, (1, 2)):
            version = ".".join(str(number)[:20] for number in start.version)
            message = f"expected YAML 1.2, received %YAML {version}"
            problems.append(_problem("E104", message, self.file, start.start_mark, "Delete the line."))
        root = self.compose_document()
        if not self.check_event(yaml.StreamEndEvent):
            message = "a second document begins here; a configuration is a single one"
            hint = "Move it to a file of its own, or delete the line ---."
            following: Any = self.peek_event()  # type: ignore[no-untyped-call]
            problems.append(_problem("E104", message, self.file, following.start_mark, hint))
        return root, problems

    def fetch_more_tokens(self) -> None:
        """Fetch tokens within the limit: directives and document markers make tokens without nodes."""
        self.tokens_fetched += 1
        if self.tokens_fetched > MAX_TOKENS:
            raise ConfigError(_beyond(self.file, self.get_mark(), f"more than {MAX_TOKENS:,} YAML tokens"))
        super().fetch_more_tokens()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        """Compose a node within the limits. Aliases stay references, and tags that were written are marked."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ConfigError(_beyond(self.file, event.start_mark, f"more than {MAX_NODES:,} values"))
        kind = type(event)
        if kind is yaml.AliasEvent:
            self.get_event()  # type: ignore[no-untyped-call]
            is_cycle = event.anchor in self.open
            target = None if is_cycle else self.anchors.get(event.anchor)
            return _Alias(event.anchor, target, event.start_mark, event.end_mark, is_cycle=is_cycle)
        self.anchors.pop(event.anchor, None)  # YAML 1.2 lets an anchor be defined again; PyYAML does not
        is_collection = issubclass(kind, yaml.CollectionStartEvent)
        if is_collection:
            if len(self.open) == MAX_DEPTH:
                raise ConfigError(_beyond(self.file, event.start_mark, f"nesting deeper than {MAX_DEPTH}"))
            self.open.append(event.anchor)
        node = super().compose_node(parent, index)
        assert node is not None
        if is_collection:
            self.open.pop()
        node.tag = "" if event.tag is None else f"{_EXPLICIT}{event.tag}"
        return node


def _compose(text: str, file: str) -> tuple[yaml.Node | None, list[Problem]]:
    """Compose the nodes of ``text``. ConfigError E104 or E107 where it is not YAML, E108 beyond the limits."""
    loader = _Loader(text, file)
    try:
        return loader.single_document()
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax_problem(error, text, file)) from None
    except (ValueError, OverflowError):  # PyYAML leaves "\UFFFFFFFF" to chr() and %YAML 1.999…9 to int()
        message = f"{_NO_YAML}: an escape or a version number has no meaning"
        hint = 'Write the character itself, or "\\u" with 4 or "\\U" with 8 hexadecimal digits.'
        raise ConfigError(_problem("E104", message, file, loader.get_mark(), hint)) from None


def _syntax_problem(error: MarkedYAMLError, text: str, file: str) -> Problem:
    """Turn an error of PyYAML into a problem, located where it was found or, at the end of a file, where it began."""
    context, mark = error.context or "", error.problem_mark or error.context_mark
    if error.context_mark is not None and (context.startswith("while scanning an a") or _is_at_end(mark, text)):
        mark = error.context_mark  # the start of an alias or anchor, or of what is never closed
    if error.context_mark is not None and context and error.context_mark.line != (mark and mark.line):
        context += f" that begins in line {error.context_mark.line + 1}"
    said = ", ".join(part for part in (context, error.problem) if part)
    is_tag = "tag" in said
    hint = "Check the indentation, quotes and brackets here and in the line above."
    hint = next((hint for part, hint in _HINTS if part in said), hint)
    if is_tag:
        hint = "Delete the tag, or put a value that begins with ! in quotes."
    line = "" if mark is None else text[mark.index : mark.index + 200].splitlines()[:1]
    received = f'"{visible(cut(line[0], 40))}"' if line and line[0].strip() else "the end of the line"
    message = f"{_NO_YAML}: {visible(cut(said, 200))}; received {received}"
    return _problem("E107" if is_tag else "E104", message, file, mark, hint)


def _is_at_end(mark: Mark | None, text: str) -> bool:
    return mark is not None and mark.index >= len(text.rstrip())


def _problem(code: str, message: str, file: str, mark: Mark | None, hint: str, path: KeyPath = ()) -> Problem:
    line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
    return Problem(code, message, file, line, column, path_text(path) or None, hint)


def _beyond(file: str, mark: Mark | None, what: str) -> Problem:
    return _problem("E108", f"the file is beyond a limit: {what}", file, mark, _TOO_LARGE)


def _kind(node: yaml.Node, value: Any) -> str:
    kinds = {yaml.SequenceNode: "a list", yaml.MappingNode: "a mapping", _Alias: "an alias"}
    return "nothing" if value is None else kinds.get(type(node), "a value")


@dataclass(slots=True)
class _Builder:
    """Builds values from nodes: expands aliases within the limits, and refuses what a configuration cannot hold."""

    tree: Tree
    file: str
    has_positions: bool = True
    nodes: int = 0
    letters: int = 0
    reported: set[tuple[str, int]] = field(default_factory=set)

    def build(self, node: yaml.Node, path: KeyPath, key: yaml.Node | None = None) -> Any:
        """Return the value of ``node``; its place and problems go to the tree."""
        self.count(node, path)
        self.tree.places.by_path.setdefault(path, self.place(node, key))
        if isinstance(node, _Alias):
            return self.expand(node, path)
        if node.tag:
            self.refuse("E107", node, path, f"a configuration cannot contain the tag {_tag(node)}", "Delete it.")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, path)

    def expand(self, alias: _Alias, path: KeyPath) -> Any:
        """Return a copy of the value that an alias refers to. The values inside it keep their own places."""
        if isinstance(alias.value, yaml.Node):
            return self.build(alias.value, path)
        name = cut(alias.tag, 40)
        if alias.is_cycle:
            message = f"the alias *{name} is inside the value that it refers to"
            return self.refuse("E108", alias, path, message, "Write the value out.")
        hint = f'Put it in quotes if it is not an alias: "*{name}".'
        return self.refuse("E104", alias, path, f"the alias *{name} has no anchor &{name} above it", hint)

    def scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the value of a scalar: its text if it is quoted, else what YAML 1.2 makes of it."""
        if _has_surrogate(node.value):
            hint = 'Write the character itself, or "\\U" and 8 hexadecimal digits.'
            return self.refuse("E103", node, path, "an escape is half a character (a surrogate)", hint)
        try:
            return parse_scalar(node.value) if getattr(node, "style", None) is None else node.value
        except NumberError as error:
            return self.refuse("E112", node, path, str(error), "Put it in quotes if it is a text.")

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        """Return a mapping, whose keys are texts and unique."""
        mapping: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            self.count(key_node, path)
            key = self.key(key_node, path)
            if key is None:
                self.tree.incomplete.add(path)
                self.build(value_node, (*path, "?"))
                continue
            if key in lines:
                before = f", first in line {lines[key]}" if self.has_positions else ""
                self.report("E105", key_node, (*path, key), f"duplicate key {quoted(key)}{before}", "Delete one.")
            lines.setdefault(key, key_node.start_mark.line + 1)
            mapping.setdefault(key, self.build(value_node, (*path, key), key_node))
        return mapping

    def key(self, node: yaml.Node, path: KeyPath) -> str | None:
        """Return the text of a key; None where it is refused."""
        target = node.value if isinstance(node, _Alias) else node
        if not isinstance(target, yaml.ScalarNode):
            message = f"expected a text as key, received {_kind(target or node, target or node)}"
            self.report("E106", node, path, message, "Write key: value.")
        elif target.tag:
            self.report("E107", node, path, f"a key cannot have the tag {_tag(target)}", "Delete it.")
        elif target.style is None and not _is_text(target.value):
            received = cut(target.value) or "nothing"
            hint = f'Put it in quotes: "{received}".' if target.value else "Write the key before the colon."
            self.report("E106", node, path, f"expected a text as key, received {received}", hint)
        elif _has_surrogate(target.value):
            message = "an escape is half a character (a surrogate)"
            self.report("E103", node, path, message, "Write the character itself.")
        else:
            return str(target.value)
        return None

    def count(self, node: yaml.Node, path: KeyPath) -> None:
        """Enforce the limits on values once aliases are expanded."""
        self.nodes += 1
        self.letters += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        if self.nodes > MAX_NODES:
            what = f"more than {MAX_NODES:,} values"
        elif self.letters > MAX_BYTES:
            what = f"more than {MAX_BYTES:,} characters"
        elif isinstance(node, yaml.CollectionNode) and len(path) >= MAX_DEPTH:
            what = f"nesting deeper than {MAX_DEPTH}"
        else:
            return
        message = f"with its aliases expanded, the file is beyond a limit: {what}"
        problem = _problem("E108", message, self.file, node.start_mark, "Use fewer aliases.", path)
        raise ConfigError([*self.tree.problems, problem])

    def place(self, node: yaml.Node, key: yaml.Node | None) -> SourcePosition:
        """Return the place of ``node`` and its key."""
        if not self.has_positions:
            return SourcePosition(self.file)
        start = node.start_mark
        at_key = (None, None) if key is None else (key.start_mark.line + 1, key.start_mark.column + 1)
        return SourcePosition(self.file, start.line + 1, start.column + 1, *at_key)

    def refuse(self, code: str, node: yaml.Node, path: KeyPath, message: str, hint: str) -> None:
        """Report a value that cannot be kept, so that the model's errors about it are not."""
        self.tree.refused.add(path)
        self.report(code, node, path, message, hint)

    def report(self, code: str, node: yaml.Node, path: KeyPath, message: str, hint: str) -> None:
        """Report a problem once, however many aliases refer to it."""
        if (code, node.start_mark.index) not in self.reported:
            self.reported.add((code, node.start_mark.index))
            self.tree.problems.append(_problem(code, message, self.file, node.start_mark, hint, path))


def _is_text(scalar: str) -> bool:
    try:
        return isinstance(parse_scalar(scalar), str)
    except NumberError:
        return False


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def _tag(node: yaml.Node) -> str:
    return cut(node.tag.removeprefix(_EXPLICIT).replace("tag:yaml.org,2002:", "!!"))


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper. It quotes each text that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value out."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their key."""
        super().increase_indent(flow, False)


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    text = repr(value) if math.isfinite(value) else ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    """Write a text that is not printable, or is a truth value to other readers, in double quotes."""
    is_bare = value.isprintable() and value.casefold() not in ("y", "n")
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if is_bare else '"')


def _represent_list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    """Write a list of scalars, and mappings of scalars in a list, on one line each."""
    node = dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=False)
    node.flow_style = bool(dumper.default_flow_style) or all(isinstance(item, yaml.ScalarNode) for item in node.value)
    for item in node.value:
        if isinstance(item, yaml.MappingNode) and all(isinstance(one, yaml.ScalarNode) for _, one in item.value):
            item.flow_style = True
    return node


_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)
for _name, _pattern in (("int", _INTEGER), ("float", _FLOAT)):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _pattern, list("-+.0123456789"))


def dump(value: Any, *, is_flow: bool = False) -> str:
    """Write plain data as YAML that this module reads back; with ``is_flow`` on one line.

    >>> dump({"step": 0, "op": None, "at": ["a b", 1.0, True, "no"]}, is_flow=True)
    "{step: 0, op: null, at: [a b, 1.0, true, 'no']}"
    """
    width = math.inf if is_flow else 110
    for allow_unicode in (True, False):  # False escapes all but ASCII, where some character would not be visible
        text: str = yaml.dump(
            value, Dumper=_Dumper, allow_unicode=allow_unicode, default_flow_style=is_flow, sort_keys=False, width=width
        )
        if text.replace("\n", "").isprintable():
            break
    return text.removesuffix("\n").removesuffix("\n...") if is_flow else text
