"""Portable runs: what another process, perhaps on another machine, needs to build the recipe of a run.

A recipe cannot be pickled: it holds functions and modules. What it is built from can: the resolved configuration, the
sources of one-file plugins, and the data of the task.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from esper_core import __version__
from esper_core.leyline.protocols import Split
from esper_core.plugins import load_plugins
from esper_core.settings import Use
from esper_run.app.recipes import build_prototype, choose_devices
from esper_run.app.resolution import resolve, resolved_config
from esper_run.app.runtime import one_thread, tune_allocator
from esper_run.config import dump_config
from esper_run.config.loading import parse_config
from esper_scale.engines.nodes import MISSING, NodeRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from esper_core.leyline.protocols import SplitName
    from esper_core.plugins import Plugins
    from esper_core.trainer import Recipe
    from esper_run.config import LoadedConfig
    from esper_run.engines import ComposedRun

WORKER_KINDS: Final = ("task", "host", "schedule")
"""Kinds of components that workers build, besides blueprints."""

WORKER_KEYS: Final[Mapping[str, Any]] = {"sinks": (), "device": "cpu", "devices": (), "engine": Use(use="threads")}
"""Values of a worker's configuration: it has no sinks, and computes on a CPU."""


@dataclass(frozen=True, slots=True)
class PortableTensor:
    """A tensor as an array of bytes, which pickle protocol 5 sends without a copy, and processes can share."""

    data: np.ndarray[Any, Any]
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> PortableTensor:
        """Return a tensor of the CPU. Its layout is kept if it has no gaps."""
        dense = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
        if not dense.is_contiguous():
            dense = tensor = tensor.contiguous()
        data = dense.reshape(-1).view(torch.uint8).numpy()
        return cls(data, tensor.dtype, tuple(tensor.shape), tensor.stride())

    def tensor(self) -> torch.Tensor:
        """Return the tensor, which shares the array's memory and must not be written to."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the array of a shared store is read-only
            flat = torch.from_numpy(self.data)
        return flat.view(self.dtype).as_strided(self.size, self.stride)


PortableData = dict["SplitName", tuple[PortableTensor, PortableTensor]]
"""Inputs and targets of each split."""


@dataclass(frozen=True, slots=True)
class PortableRun:
    """What the recipe of a run is built from, except its data.

    Attributes:
        config: The resolved configuration, as in a run directory.
        files: The one-file plugins, as ``Plugins.files`` has them.
        plugins: Ids of the plugins that workers use.
        modules: Modules of hosts that are given by their import path.
        folder: The working directory.
        search_path: Where the run looks for modules.
        safe_mode: Whether only the project's own packages are loaded.
    """

    config: str
    files: tuple[Any, ...]
    plugins: tuple[str, ...]
    modules: tuple[str, ...]
    folder: str
    search_path: tuple[str, ...]
    safe_mode: bool

    @classmethod
    def of(cls, composition: ComposedRun) -> PortableRun:
        """Return what ``composition`` was built from."""
        resolution = composition.resolution
        components = [configured.component for configured in resolution.components.values()]
        chosen = [component for component in components if component.kind in WORKER_KINDS]
        chosen += [component for components in resolution.blueprints.values() for component in components]
        return cls(
            config=dump_config(resolved_config(resolution).model_copy(update=WORKER_KEYS)),
            files=resolution.plugins.files,
            plugins=tuple(sorted({component.plugin for component in chosen if component.plugin})),
            modules=tuple(component.id.partition(":")[0] for component in chosen if not component.plugin),
            folder=str(Path.cwd()),
            search_path=tuple(sys.path),
            safe_mode=resolution.plugins.safe_mode,
        )

    def describe(self, plugins: Plugins) -> NodeRecord:
        """Return what is installed here, where ``plugins`` were loaded."""
        records = {record.id: record for record in plugins.records if record.status == "active"}
        packages = {"esper-core": __version__}
        for name in self.plugins:
            record = records.get(name)
            label = f'plugin "{name}"' if record is None else f'plugin "{name}" ({record.package})'
            packages[label] = MISSING if record is None else record.version
            if record is not None and record.sha256 is not None and not record.sha256.startswith(record.version):
                packages[label] += f", code {record.sha256[:12]}"
        for module in self.modules:
            spec = find_spec(module)
            file = None if spec is None or spec.origin is None else Path(spec.origin)
            code = file.read_bytes() if file is not None and file.is_file() else None
            packages[f'module "{module}"'] = MISSING if code is None else sha256(code).hexdigest()[:12]
        return NodeRecord(packages=packages)

    def load(self) -> tuple[LoadedConfig, Plugins]:
        """Return the configuration and the plugins of the run, in its working directory if this machine has it."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        sys.path.extend(path for path in (self.folder, *self.search_path) if path not in sys.path)
        loaded = parse_config(self.config.encode(), file="config.yaml")
        settings = loaded.config.plugins
        plugins = load_plugins(disable=settings.disable, local=self.files, safe_mode=self.safe_mode)
        return loaded, plugins

    def build(self, loaded: LoadedConfig, plugins: Plugins, data: PortableData) -> Recipe:
        """Build the recipe from what was loaded here, with the data of the run."""
        splits = {name: Split(inputs.tensor(), targets.tensor()) for name, (inputs, targets) in data.items()}
        resolution = resolve(loaded, plugins)
        tune_allocator()
        with one_thread(), redirect_stdout(sys.stderr):
            return build_prototype(resolution, choose_devices(resolution)[0], splits).recipe


def portable_data(recipe: Recipe) -> PortableData:
    """Return the data of a recipe."""
    return {
        name: (PortableTensor.of(split.inputs), PortableTensor.of(split.targets)) for name, split in recipe.data.items()
    }
