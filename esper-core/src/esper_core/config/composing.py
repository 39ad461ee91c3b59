"""What is written in a text? PyYAML's scanner and parser read it; their events become nodes with positions.

Nothing is constructed and nothing is looked up here: a tag stays a word, an alias a reference. PyYAML's own composer
recurses, so that deep nesting ends the interpreter; this one keeps a stack and a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from yaml import events
from yaml.error import Mark, MarkedYAMLError
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.scanner import Scanner

from esper_core.config.limits import MAX_DEPTH, MAX_NODES, MAX_TOKENS
from esper_core.config.syntax import explain_syntax
from esper_core.leyline import ConfigError, Problem


@dataclass(slots=True, eq=False, kw_only=True)
class Written:
    """Where something stands (from 1; ``start`` and ``end`` are indices into the text), and its tag."""

    line: int
    column: int
    start: int
    end: int
    tag: str | None = None


@dataclass(slots=True, eq=False)
class Word(Written):
    """A scalar as it is written. ``plain``: without quotes, so that its meaning is looked up."""

    text: str
    plain: bool


@dataclass(slots=True, eq=False)
class Entries(Written):
    """A list. ``block``: written with dashes."""

    block: bool
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Pairs(Written):
    """A mapping. ``block``: written with indentation."""

    block: bool
    items: list[tuple[Node, Node]] = field(default_factory=list)
    key: Node | None = None
    """The key that still waits for its value, while the mapping is being read."""


@dataclass(slots=True, eq=False)
class Alias(Written):
    """``*name``. ``target`` is None where no anchor of this name stands above; ``cyclic`` where it is inside it."""

    name: str
    target: Node | None
    cyclic: bool


Node = Word | Entries | Pairs | Alias


class _Events(Reader, Scanner, Parser):
    """PyYAML's events of a text, with a bound on the tokens they are made of."""

    def __init__(self, text: str, file: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        self.file = file
        self.fetched = 0

    def take(self) -> Any:
        """The next event. PyYAML's types say less of it than its classes do, hence Any."""
        return self.get_event()  # type: ignore[no-untyped-call]

    def fetch_more_tokens(self) -> None:
        self.fetched += 1
        if self.fetched > MAX_TOKENS:
            raise ConfigError(too_much(self.file, self.get_mark(), f"it has more than {MAX_TOKENS:,} marks of syntax"))
        super().fetch_more_tokens()


class _Composer:
    """Builds one document's nodes from events, without recursion."""

    def __init__(self, text: str, file: str) -> None:
        self.events = _Events(text, file)
        self.file = file
        self.open: list[Entries | Pairs] = []
        self.anchors: dict[str, Node] = {}
        self.nodes = 0

    def document(self) -> tuple[Node | None, list[Problem]]:
        problems: list[Problem] = []
        self.events.take()
        start = self.events.take()
        if not _is(start, events.DocumentStartEvent):
            return None, problems
        if start.version not in (None, (1, 2)):
            problems.append(_other_version(self.file, start.start_mark, start.version))
        root = self.root()
        self.events.take()
        following = self.events.take()
        if _is(following, events.DocumentStartEvent):
            problems.append(_second_document(self.file, following.start_mark))
        return root, problems

    def root(self) -> Node:
        root = self.begin(self.events.take())
        while self.open:
            event = self.events.take()
            if _is(event, events.CollectionEndEvent):
                self.open.pop().end = event.end_mark.index
            else:
                parent = self.open[-1]
                _place(parent, self.begin(event))
        return root

    def begin(self, event: Any) -> Node:
        """The node that ``event`` begins, counted and, if it is a collection, open from here on."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ConfigError(too_much(self.file, event.start_mark, f"it has more than {MAX_NODES:,} values"))
        node = self.node(event)
        if not _is(event, events.AliasEvent) and event.anchor is not None:
            self.anchors[event.anchor] = node
        if isinstance(node, Entries | Pairs):
            if len(self.open) == MAX_DEPTH:
                raise ConfigError(too_much(self.file, event.start_mark, f"it nests more than {MAX_DEPTH} deep"))
            self.open.append(node)
        return node

    def node(self, event: Any) -> Node:
        mark, end = event.start_mark, event.end_mark
        line, column, start, stop = mark.line + 1, mark.column + 1, mark.index, end.index
        if _is(event, events.AliasEvent):
            target = self.anchors.get(event.anchor)
            cyclic = any(target is node for node in self.open)
            return Alias(event.anchor, target, cyclic, line=line, column=column, start=start, end=stop)
        if _is(event, events.ScalarEvent):
            plain = event.style is None
            return Word(event.value, plain, line=line, column=column, start=start, end=stop, tag=event.tag)
        kind = Entries if _is(event, events.SequenceStartEvent) else Pairs
        return kind(not event.flow_style, line=line, column=column, start=start, end=stop, tag=event.tag)


def compose(text: str, file: str) -> tuple[Node | None, list[Problem]]:
    """The nodes of the one document in ``text`` (None where there is none), and the problems that let reading go on.

    ConfigError E104 where it is not YAML, E108 where it nests too deep or holds too much.
    """
    composer = _Composer(text, file)
    try:
        return composer.document()
    except MarkedYAMLError as error:
        raise ConfigError(explain_syntax(error, text, file)) from None
    except (ValueError, OverflowError):  # PyYAML lets chr() and int() speak for "\UFFFFFFFF" and %YAML 1.999…9
        mark = composer.events.get_mark()
        message = "this is not YAML: an escape or a version number that stands for nothing"
        hint = 'Write the character itself, or "\\u" with 4 or "\\U" with 8 digits of its number.'
        raise ConfigError(Problem("E104", message, file, mark.line + 1, mark.column + 1, hint=hint)) from None


def too_much(file: str, mark: Mark, what: str) -> Problem:
    """The problem of a text that is not worth reading to its end."""
    hint = "A configuration is a page or two. Is this the file that you meant?"
    return Problem("E108", f"the file holds too much: {what}", file, mark.line + 1, mark.column + 1, hint=hint)


def _is(event: Any, kind: type[events.Event]) -> bool:
    """isinstance, after which the event is still Any: PyYAML's types call each mark and anchor optional."""
    return isinstance(event, kind)


def _place(parent: Entries | Pairs, node: Node) -> None:
    if isinstance(parent, Entries):
        parent.items.append(node)
    elif parent.key is None:
        parent.key = node
    else:
        parent.items.append((parent.key, node))
        parent.key = None


def _other_version(file: str, mark: Mark, version: tuple[int, int]) -> Problem:
    message = f"expected YAML 1.2, received %YAML {version[0]}.{str(version[1])[:20]}"
    return Problem("E104", message, file, mark.line + 1, mark.column + 1, hint="Delete the line.")


def _second_document(file: str, mark: Mark) -> Problem:
    message = "a second document begins here; a configuration is one"
    hint = "Put it in a file of its own, or delete the line ---."
    return Problem("E104", message, file, mark.line + 1, mark.column + 1, hint=hint)
