"""Which one-file plugins does a configuration name? Each is read once: what is hashed is what is run, and kept."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, module_from_spec
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import Problem
from esper_core.plugins.discovery import LOCAL_FILE, Announcement
from esper_core.plugins.gate import is_name, name_rule

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

RELATIVE = "The path is relative to the configuration's folder."

_LARGEST = 1 << 20
"""Bytes that a one-file plugin may have."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A one-file plugin: the file, its bytes, and what it announces."""

    path: Path
    source: bytes
    announcement: Announcement


def read_local(paths: Iterable[Path]) -> tuple[tuple[LocalFile, ...], list[Problem]]:
    """The files, and what is wrong with those that cannot be plugins. Nothing of theirs is run."""
    found: list[LocalFile] = []
    problems: list[Problem] = []
    for place, path in enumerate(paths):
        module, id_ = path.stem, path.stem.replace("_", "-")
        try:
            source = _contents(path)
            _demand_fit_name(path, module, id_)
        except _Unfit as unfit:
            problems.append(Problem("E227", unfit.message, path=f"plugins.local[{place}]", hint=unfit.hint))
            continue
        announcement = Announcement(id_, module, LOCAL_FILE, digest(source)[:12], (), str(path))
        found.append(LocalFile(path, source, announcement))
    return tuple(found), problems


def digest(data: bytes) -> str:
    """The SHA-256 of the bytes, in hexadecimal."""
    return sha256(data).hexdigest()


def import_local(file: LocalFile) -> Any:
    """The plugin's module, run anew, and known to Python by its name so that its targets can be found."""
    name = file.announcement.target
    loader = _Loader(name, file)
    module = module_from_spec(ModuleSpec(name, loader, origin=str(file.path)))
    module.__file__ = str(file.path)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _Loader(SourceFileLoader):
    """Runs the bytes that were read, and leaves no compiled file beside them."""

    def __init__(self, name: str, file: LocalFile) -> None:
        super().__init__(name, str(file.path))
        self._source = file.source

    def get_code(self, fullname: str) -> CodeType:
        """What the bytes compile to."""
        code: CodeType = self.source_to_code(self._source, self.path)
        return code


class _Unfit(Exception):
    """A file that cannot be a plugin: what is wrong with it, and the way out."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def _contents(path: Path) -> bytes:
    """The file's bytes, read once: what becomes of it before and after that makes no difference."""
    if path.suffix != ".py":
        message = f'expected a Python file as a plugin, received "{path}"'
        raise _Unfit(message, "A plugin of one file ends in .py.")
    try:
        if not path.is_file():  # a pipe would keep us waiting
            raise FileNotFoundError
        with path.open("rb") as file:
            source = file.read(_LARGEST + 1)
    except FileNotFoundError:
        message = f'there is no plugin file "{path}"'
        raise _Unfit(message, RELATIVE) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, with a NUL in it
        message = f'the plugin file "{path}" cannot be read: {error}'
        raise _Unfit(message, "Check the path and the permissions.") from error
    if len(source) > _LARGEST:
        message = f'the plugin file "{path}" is larger than {_LARGEST:,} bytes'
        raise _Unfit(message, "Make a package of it.")
    return source


def _demand_fit_name(path: Path, module: str, id_: str) -> None:
    """Refuses a file whose name cannot be a plugin's, or is another module's."""
    if not is_name(id_) or not module.isidentifier() or iskeyword(module):
        message = f'a plugin cannot be called after its file "{path.name}"'
        raise _Unfit(message, name_rule().replace("single - or _", "single _"))
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # ValueError: a module that says nothing of where it is from
        spec = None
    if module not in sys.modules and spec is None:
        return
    if spec is None or not (isinstance(spec.loader, _Loader) or _same(spec.origin, path)):
        message = f'the plugin file "{path.name}" has the name of a module that is installed'
        raise _Unfit(message, "Give it another name.")


def _same(origin: str | None, path: Path) -> bool:
    return origin is not None and Path(origin).resolve() == path.resolve()
