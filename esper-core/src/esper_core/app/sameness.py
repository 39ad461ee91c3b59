"""Would it come to the same numbers? Two configurations have one key where nothing that numbers hang on differs.

What they hang on: the configuration, without who decides; the data, to the byte; the host as it begins; the code of
Esper, of the plugins that take part and of whatever of the user's own they import; versions of the packages behind
them; Python, torch as it was built and set, the processor or the GPU. What code reads from elsewhere is not seen:
a file that only a blueprint opens, say.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import sys
import sysconfig
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from esper_core.app.checkpointing import decisive_values
from esper_core.app.resolution import resolved_config
from esper_core.app.runtime import one_thread
from esper_core.config.plain import plain
from esper_core.growth import RandomStream, derive_seed
from esper_core.growth.memory import form_of, kept
from esper_core.plugins.dispatch import HEALTH_HOOK as HOOK
from esper_core.plugins.isolation import LOCAL_FILE, lent_streams, root_of
from esper_core.runs.directory import installed_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from esper_core.app.compose import Composition
    from esper_core.leyline.protocols import Split
    from esper_core.plugins import Component

UNASKED: Final = frozenset({"policy", "arms", "plugins"})
"""What of a configuration makes no difference to who decides from outside; ``plugins`` is looked at apart."""

SWITCHES: Final = re.compile(r"ATEN_|CUBLAS_|CUDNN_|DNNL_|MKL_|NVIDIA_TF32|ONEDNN_|OPENBLAS_|TORCH_ALLOW_TF32")
"""Variables of the environment by which libraries choose how they compute begin so."""

CORE: Final = "esper_core"

_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+([A-Za-z_]\w*)[\w.]*[ \t]+import\b|import[ \t]+([^#\n]+))", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Identity:
    """The key of a configuration, and the source files that were written after this process began.

    What stands in such a file may not be what runs: then the key says nothing.
    """

    key: str
    changed: tuple[Path, ...] = ()


def identity_of(prepared: Composition) -> Identity:
    """That of a configuration that is ready to run."""
    code = _code_of(prepared)
    resolution = prepared.resolution
    config = plain(resolved_config(resolution))
    facts = {
        "config": decisive_values({name: value for name, value in config.items() if name not in UNASKED}),
        "plugins": config["plugins"]["settings"],
        "data": _digest_of_data(prepared),
        "host": _digest_of_host(prepared),
        "code": code.facts,
        "machine": _machine(prepared.devices[0]),
    }
    began = _process_began()
    changed = tuple(path for path in code.files if max(path.stat().st_mtime, path.stat().st_ctime) > began)
    return Identity(sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(), changed)


@dataclass(slots=True)
class _Code:
    """What runs: packages and modules by content where they are Esper's or the user's, else by version."""

    facts: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def follow(self, own: Iterable[str], imported: Iterable[str]) -> None:
        """Take these in, ``own`` by content, and all that they import, which is by content unless it was installed."""
        by_content = set(own)
        waiting = [*by_content, *imported]
        while waiting:
            root = waiting.pop()
            place = None if root in self.facts or root in sys.stdlib_module_names else _place_of(root)
            if place is None:
                continue
            if root not in by_content and _was_installed(place):
                self.facts[root] = _version_of(root)
                continue
            contents = {path: path.read_bytes() for path in _files_at(place)}
            told = [f"{path.relative_to(place.parent)} {sha256(data).hexdigest()}" for path, data in contents.items()]
            self.facts[root] = sha256("\n".join(told).encode()).hexdigest()
            self.files += contents
            if root == CORE:  # of what it imports torch and numpy compute, and are told with the machine
                continue
            waiting += {name for path, data in contents.items() if path.suffix == ".py" for name in _imported_in(data)}


def _code_of(prepared: Composition) -> _Code:
    resolution = prepared.resolution
    chosen = [resolution.task, resolution.host, *resolution.rewards, *resolution.schedules.values()]
    grown = [component for components in resolution.blueprints.values() for component in components]
    components: list[Component] = [*(one.component for one in chosen), *grown]
    used = {component.plugin for component in components}
    asked = [
        one
        for one in prepared.resolution.plugins.records
        if one.status == "active" and (one.id in used or HOOK in one.hooks)
    ]
    code = _Code({f"plugin {one.id}": f"{one.source} {one.sha256}" for one in asked})
    files = prepared.resolution.plugins.files
    modules = [one.origin for one in asked if one.package != LOCAL_FILE]
    modules += [str(getattr(component.load(), "__module__", "")) for component in components]
    local = {file.announcement.target for file in files}  # what was run of these is hashed already
    own = {CORE, *map(root_of, modules)} - {"", *local}
    code.follow(own, [name for file in files for name in _imported_in(file.source)])
    return code


def _place_of(root: str) -> Path | None:
    """The folder of a package, or the file of a module; None for what is neither."""
    try:
        spec = find_spec(root)
    except (ImportError, ValueError):  # ValueError: a module that says nothing of where it is from
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    place = Path(folders[0]) if folders else Path(spec.origin or "")
    return place.resolve() if place.is_absolute() and place.exists() else None


def _was_installed(place: Path) -> bool:
    return any(Path(sysconfig.get_path(name)).resolve() in place.parents for name in ("purelib", "platlib"))


def _version_of(root: str) -> str:
    """That of the package, or packages, that brought a module; they may be called otherwise."""
    brought_by = [root] if installed_version(root) else metadata.packages_distributions().get(root, [])
    return ", ".join(f"{name} {installed_version(name)}" for name in sorted({*brought_by}))


def _files_at(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    found = (path for path in place.rglob("*") if "__pycache__" not in path.parts and path.is_file())
    return sorted(found)


def _imported_in(source: bytes) -> Iterator[str]:
    """Names of the modules that a file imports, and perhaps some that its prose names so."""
    for found in _IMPORT.finditer(source):
        named = found[1] or found[2]
        for one in named.decode(errors="ignore").split(","):
            root = root_of(one.strip().partition(" ")[0])
            if root.isidentifier():
                yield root


def _digest_of_data(prepared: Composition) -> str:
    tensors = ((name, part) for name, own in prepared.recipe.data.items() for part in _halves(own))
    return _digest(tensors)


def _digest_of_host(prepared: Composition) -> str:
    """Of a host as it begins: where weights are read from a file, this is what stood there."""
    recipe = prepared.recipe
    with one_thread(), lent_streams(), RandomStream(derive_seed(0, "prototype"), recipe.device):
        host = recipe.build_host()
    return _digest([*host.named_parameters(), *host.named_buffers()])


def _halves(split: Split) -> tuple[Tensor, Tensor]:
    return split.inputs, split.targets


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    hashed = sha256()
    for name, tensor in tensors:
        hashed.update(f"{name} {form_of(tensor)}\n".encode())
        hashed.update(kept(name, tensor).flatten().view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _machine(device: torch.device) -> dict[str, Any]:
    """What computes, and how it is set to."""
    facts = {
        "python": sys.version,
        "torch": [torch.__version__, torch.version.git_version, torch.__config__.show()],
        "numpy": installed_version("numpy"),
        "processor": [platform.system(), platform.machine(), _processor()],
        "device": device.type,
        "dtype": str(torch.get_default_dtype()),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "switches": {name: value for name, value in sorted(os.environ.items()) if SWITCHES.match(name)},
    }
    if device.type == "cuda":
        facts["device"] = [torch.cuda.get_device_name(device), torch.version.cuda, torch.backends.cudnn.version()]
    return facts


def _processor() -> list[str]:
    """What the first processor is and can do, as far as the system says it."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return [platform.processor()]
    return [line for line in told.splitlines() if line.startswith(("model name", "flags", "Features", "CPU"))]


def _process_began() -> float:
    """When this process began, nearly: the seconds of the epoch at which the standard library's log was imported."""
    record = logging.makeLogRecord({})
    return record.created - record.relativeCreated / 1000
