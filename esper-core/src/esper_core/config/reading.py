"""What values does a text hold, and where do they stand? Bytes in; plain values, places and problems out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from esper_core.config.composing import Alias, Entries, Node, Pairs, Word, compose
from esper_core.config.encoding import decode
from esper_core.config.limits import MAX_BYTES, MAX_DEPTH, MAX_NODES
from esper_core.config.paths import KeyPath, path_text
from esper_core.config.places import Place, Tree
from esper_core.config.scalars import NumberError, meaning
from esper_core.config.showing import cut, quoted
from esper_core.leyline import ConfigError, Problem

_EXAMPLE = 'A configuration has at least the keys task, host, slots and policy, for example "task: mnist1d".'
_KINDS: dict[type[Node], str] = {Entries: "a list", Pairs: "a mapping", Alias: "an alias", Word: "a value"}


def read_document(data: bytes, file: str) -> Tree:
    """The mapping that a file holds. ConfigError where it cannot be read; what else is wrong stands in the tree."""
    root, problems = compose(decode(data, file), file)
    tree = Tree({}, problems=problems)
    if root is None:
        raise ConfigError([*problems, Problem("E109", "the file is empty", file, 1, 1, hint=_EXAMPLE)])
    value = _Builder(tree, file).build(root, ())
    if not isinstance(value, dict):
        received = "nothing" if value is None else _KINDS[type(root)]
        message = f"expected keys with values at the top of the file, received {received}"
        raise ConfigError([*tree.problems, Problem("E109", message, file, root.line, root.column, hint=_EXAMPLE)])
    tree.value = value
    return tree


def read_value(text: str, label: str, path: KeyPath) -> Tree:
    """The one value that ``text`` holds, placed at ``path``; ``label`` is the file's name in its problems.

    ConfigError where it cannot be read, or is no single value: a block of keys or dashes, or words around it.
    """
    try:
        root, problems = compose(decode(text.encode(), label), label)
        _require_one_value(text, root)
        tree = Tree(None, problems=problems)
        if root is None:
            tree.places.by_path[path] = Place(label)
        else:
            tree.value = _Builder(tree, label, positions=False).build(root, path)
    except ConfigError as error:
        raise ConfigError([_without_line(problem, label, path) for problem in error.problems]) from None
    tree.problems = [_without_line(problem, label, path) for problem in tree.problems]
    return tree


def _require_one_value(text: str, root: Node | None) -> None:
    outside = text if root is None else text[: root.start] + text[root.end :]
    message = f"expected one value, received {quoted(text)}"
    if isinstance(root, Entries | Pairs) and root.block:
        raise ConfigError(Problem("E115", message, hint="Write a list as [a, b], a mapping as {key: value}."))
    if outside.strip():
        hint = "Put it in quotes, once for the shell and once for the file: '\"…\"'."
        raise ConfigError(Problem("E115", message, hint=hint))


def _without_line(problem: Problem, label: str, path: KeyPath) -> Problem:
    path_here = problem.path or path_text(path)
    return Problem(problem.code, problem.message, label, path=path_here, hint=problem.hint)


@dataclass(slots=True)
class _Builder:
    """Turns nodes into values: follows aliases within bounds, and refuses what a configuration cannot hold."""

    tree: Tree
    file: str
    positions: bool = True
    nodes: int = 0
    letters: int = 0
    told: set[tuple[str, int]] = field(default_factory=set)

    def build(self, node: Node, path: KeyPath, key: Node | None = None) -> Any:
        """The value of ``node``, whose place and problems go to the tree."""
        self.count(node, path)
        self.tree.places.by_path.setdefault(path, self.place(node, key))
        if node.tag is not None:
            self.refuse("E107", node, path, f"the tag {_tag(node.tag)}", "Delete it: a configuration needs none.")
        if isinstance(node, Alias):
            return self.follow(node, path)
        if isinstance(node, Word):
            return self.word(node, path)
        if isinstance(node, Entries):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.items)]
        return self.mapping(node, path)

    def follow(self, alias: Alias, path: KeyPath) -> Any:
        """The value that an alias stands for, written out. The values inside it keep their own places."""
        name = cut(alias.name, 40)
        if alias.cyclic:
            return self.refuse("E108", alias, path, f"the alias *{name} stands inside its own anchor", "Write it out.")
        if alias.target is None:
            hint = f'If no alias is meant, put it in quotes: "*{name}".'
            return self.refuse("E104", alias, path, f"the alias *{name} has no anchor &{name} above it", hint)
        return self.build(alias.target, path)

    def word(self, word: Word, path: KeyPath) -> Any:
        """The value of a scalar: its text in quotes, its meaning without."""
        if _has_surrogate(word.text):
            hint = 'Write the character itself, or "\\U" and the 8 digits of its number.'
            return self.refuse("E103", word, path, "an escape for half a character (a surrogate)", hint)
        try:
            return meaning(word.text) if word.plain else word.text
        except NumberError as error:
            return self.refuse("E112", word, path, str(error), "Put it in quotes if it is a text.")

    def mapping(self, pairs: Pairs, path: KeyPath) -> dict[str, Any]:
        """The mapping of ``pairs``: its keys are text, and each stands once."""
        mapping: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in pairs.items:
            self.count(key_node, path)
            key = self.key(key_node, path)
            if key is None:
                self.tree.incomplete.add(path)
                self.build(value_node, (*path, "?"))
                continue
            if key in lines:
                before = f", first in line {lines[key]}" if self.positions else ""
                self.tell("E105", key_node, (*path, key), f"the key {quoted(key)} stands twice{before}", "Delete one.")
            lines.setdefault(key, key_node.line)
            mapping.setdefault(key, self.build(value_node, (*path, key), key_node))
        return mapping

    def key(self, node: Node, path: KeyPath) -> str | None:
        """The text of a key, or None where it is refused."""
        word = node.target if isinstance(node, Alias) and not node.cyclic else node
        if not isinstance(word, Word):
            received = _KINDS[type(word or node)]
            self.tell("E106", node, path, f"expected a text as key, received {received}", "Write key: value.")
        elif node.tag or word.tag:
            self.tell("E107", node, path, f"the tag {_tag(node.tag or word.tag or '')} at a key", "Delete it.")
        elif word.plain and not _is_text(word.text):
            shown = cut(word.text) or "nothing"
            hint = f'Put it in quotes: "{shown}".' if word.text else "Write the key before the colon."
            self.tell("E106", node, path, f"expected a text as key, received {shown}", hint)
        elif _has_surrogate(word.text):
            self.tell("E103", node, path, "an escape for half a character (a surrogate)", "Write the character itself.")
        else:
            return word.text
        return None

    def count(self, node: Node, path: KeyPath) -> None:
        """Bound what aliases, which cost few bytes, can make of a file."""
        self.nodes += 1
        self.letters += len(node.text) if isinstance(node, Word) else 0
        if self.nodes > MAX_NODES:
            reason = f"it has more than {MAX_NODES:,} values"
        elif self.letters > MAX_BYTES:
            reason = f"it has more than {MAX_BYTES:,} characters"
        elif isinstance(node, Entries | Pairs) and len(path) >= MAX_DEPTH:
            reason = f"it nests more than {MAX_DEPTH} deep"
        else:
            return
        message = f"the file holds too much once its aliases are written out: {reason}"
        problem = Problem("E108", message, self.file, node.line, node.column, path_text(path) or None, "Use fewer.")
        raise ConfigError([*self.tree.problems, problem])

    def place(self, node: Node, key: Node | None) -> Place:
        """Where ``node`` stands."""
        if not self.positions:
            return Place(self.file)
        at_key = (key.line, key.column) if key is not None else (None, None)
        return Place(self.file, node.line, node.column, *at_key)

    def refuse(self, code: str, node: Node, path: KeyPath, message: str, hint: str) -> None:
        """Tell of a value that cannot be kept; the model has nothing to say about it."""
        self.tree.refused.add(path)
        self.tell(code, node, path, message, hint)

    def tell(self, code: str, node: Node, path: KeyPath, message: str, hint: str) -> None:
        """Tell of a problem once, however many aliases lead to it."""
        if (code, node.start) not in self.told:
            self.told.add((code, node.start))
            where = path_text(path) or None
            self.tree.problems.append(Problem(code, message, self.file, node.line, node.column, where, hint))


def _is_text(word: str) -> bool:
    try:
        return isinstance(meaning(word), str)
    except NumberError:
        return False


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def _tag(tag: str) -> str:
    """A tag as one writes it.

    >>> _tag("tag:yaml.org,2002:python/name:os.system")
    '!!python/name:os.system'
    """
    core = "tag:yaml.org,2002:"
    return cut(f"!!{tag.removeprefix(core)}" if tag.startswith(core) else tag)
