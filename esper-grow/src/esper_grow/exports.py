"""Export grown networks: a module in which nothing of Esper is left, which torch exports further.

``export`` traces the fossils of each slot with torch.fx into one module of torch's own layers, which acts as a forward
hook of the host's module. The host's own layers, code and keys stay as they are. Linear adapters, such as LoRA, are
added to the weight of the layer beside them instead. In a folder it is Python source and a safetensors file.
"""

from __future__ import annotations

import copy
import operator
import re
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors.torch import save
from torch import Tensor, fx, nn

from esper_core.growth import Example, Host, RandomStream, ungraft
from esper_core.leyline.constants import FULL
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.lifecycle import Blend
from esper_grow.peft_growth import forget_growth, refuse_living
from esper_run.runs.directory import report_os_errors, write_atomically
from esper_run.runs.network_files import refuse_unwritable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_core.growth import Seed

SOURCE_FILE: Final = "network.py"
TENSORS_FILE: Final = "network.safetensors"


def export(model: nn.Module, path: str | Path | None = None, *, example: Any = None, merge: bool = True) -> nn.Module:
    """Return a copy of a grown model without Esper in it; the model is unchanged.

    Args:
        model: grafted and grown. What grew is kept if it was fossilised; living seeds are refused.
        path: the folder to write it to. None: nothing is written.
        example: one batch of inputs, as ``graft`` takes it, on which its outputs are compared with those of the model.
        merge: add linear adapters to the weights of their layers. Pass False if other code reads such a weight.

    The folder holds ``network.py``, whose ``load(host)`` puts what grew into a new host, and ``network.safetensors``.
    Loading needs torch and safetensors, not Esper. ``torch.export`` and ``torch.onnx`` take the module as any other.

    Raises:
        GraftError: the model has no slots, or does not take the example.
        GrowthError: seeds are alive, or something cannot be exported.
        RunFolderError: the path cannot be written.

    Examples:
        >>> from torch import nn
        >>> from esper_core import graft
        >>> export(graft(nn.Sequential(nn.Linear(4, 2)), ["0"]))
        Sequential(
          (0): Linear(in_features=4, out_features=2, bias=True)
        )
    """
    plain, grown, is_merged = _plain_copy(model, merge=merge)
    if example is not None:
        batch = Example.of(example)
        if is_merged:  # a merged adapter has no dropout
            batch = replace(batch, run=lambda network, inputs: Example.of(inputs).run(network.eval(), inputs))
        if not Host(plain).has_outputs_of(model, batch):
            message = "the outputs of the exported network differ from those of the model"
            hint = "Other code may read the weight of a layer with an adapter: pass merge=False." if is_merged else None
            raise _refusal(message, hint)
    if path is not None:
        _write_module(plain, grown, type(model).__name__, Path(path))
    return plain


def _plain_copy(model: nn.Module, *, merge: bool) -> tuple[nn.Module, dict[str, fx.GraphModule], bool]:
    """Return a copy on torch's layers alone, what grew by the module that it is behind, and if adapters were merged."""
    refuse_living(model)
    try:
        plain, is_merged = copy.deepcopy(model), False
    except (RuntimeError, TypeError) as error:  # as of a tensor with a graph, or of a lock
        hint = "Set attributes that cannot be copied, such as a loss that a pass has left, to None."
        why = f"{type(error).__name__}: {error}"
        raise _refusal("the model cannot be copied: " + why, hint) from error
    behind = Host(plain).slots.by_module
    for at, slot in behind.items():
        for seed in [seed for seed in slot.seeds if not seed.acts]:
            del slot.seeds[list(slot.seeds).index(seed)]
        for place, seed in enumerate(slot.fossils if merge else ()):
            # What reads the weight of its layer may not read that of another one merged into it.
            if (place and seed.reads_layer) or not _merged(plain, plain.get_submodule(at), seed):
                break
            del slot.seeds[0]
            is_merged = True
        if reading := [seed.blueprint for seed in slot.seeds if seed.reads_layer]:
            message = f"{reading[0]} in {slot.name} computes with the weight of its layer, and cannot be added to it"
            raise _refusal(message, "esper_grow.save keeps the network as it is.")
    grown: dict[str, fx.GraphModule] = {}
    for at, slot in behind.items():
        if slot.fossils:
            grown[at] = _traced_fossils(_Fossils(slot.fossils, slot.part), slot.name).train(slot.training)
            _attach(plain, at, grown[at], slot.hook.id)
        del slot.seeds[:]
    ungraft(plain)
    forget_growth(plain)
    return plain, grown, is_merged


def _attach(plain: nn.Module, at: str, grown: fx.GraphModule, hook: int) -> None:
    """Register what grew behind a module as its hook, where ``hook`` is, and put it into that module."""
    layer, place = plain.get_submodule(at), at
    layer.register_forward_hook(grown)
    hooks = vars(layer)["_forward_hooks"]
    for later in list(hooks)[list(hooks).index(hook) + 1 : -1]:
        hooks.move_to_end(later)
    # A child of a container would be an item, so it is put into the next module around it.
    while place and isinstance(plain.get_submodule(place), nn.Sequential | nn.ModuleList | nn.ModuleDict):
        place = place.rpartition(".")[0]
    parent, holder = plain.get_submodule(place), nn.Identity()  # a module that calls its children calls it, too
    holder.add_module("layers", grown)
    parent.add_module(next(name for n in count() if not hasattr(parent, name := f"grown{n or ''}")), holder)


def _merged(model: nn.Module, layer: nn.Module, seed: Seed) -> bool:
    """Add a linear adapter to the weight of the layer beside it; return False if it is not possible.

    What is linear is found by trying. A weight that is tied, quantised, or computed from others stays as it is.
    """
    weight = vars(layer)["_parameters"].get("weight")
    if not seed.adapts or seed.blend not in (Blend.ADD, Blend.RESIDUAL) or weight is None or weight.ndim < 2:
        return False
    uses = sum(parameter is weight for module in model.modules() for parameter in module.parameters(recurse=False))
    if uses > 1 or not weight.is_floating_point():
        return False
    with torch.no_grad(), RandomStream(0, weight.device):
        block, plain = (copy.deepcopy(module).float().eval() for module in (seed.block, layer))

        def adapter(rows: Tensor) -> Tensor:
            changes: Tensor = block(rows, plain, plain.forward(rows)) if seed.reads_layer else block(rows)
            return changes

        positions = (1,) * (weight.ndim - 2)  # of a convolution

        def in_rows(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            return lambda rows: function(rows.view(*rows.shape, *positions)).flatten(1)

        change = in_rows(adapter)(torch.eye(seed.site.inputs, device=weight.device)).T
        gain = seed.operator.get_parameter("gain").float() if seed.blend is Blend.RESIDUAL else 1.0
        for transposed in (False, True):  # as the Conv1D of transformers
            matrix = weight.float().flatten(1).T if transposed else weight.float().flatten(1)
            if matrix.shape == change.shape and all(
                _is_linear(in_rows(function), of) for function, of in ((plain.forward, matrix), (adapter, change))
            ):
                merged = matrix + gain * change
                weight.copy_((merged.T if transposed else merged).view_as(weight))
                return True
    return False


def _is_linear(function: Callable[[Tensor], Tensor], matrix: Tensor) -> bool:
    """Return whether a function multiplies any rows with a matrix, apart from a constant shift."""
    rows = torch.randn(8, matrix.shape[1], device=matrix.device)
    try:
        shift = function(torch.zeros_like(rows))
        for inputs in (0.01 * rows, rows, 100.0 * rows):
            expected = inputs @ matrix.T + shift
            margin = torch.finfo(torch.float32).eps ** 0.5 * float(expected.abs().max())
            torch.testing.assert_close(function(inputs), expected, rtol=0.0, atol=margin)
    except Exception:  # it takes something else than rows, or returns something else
        return False
    return True


class _Fossils(nn.Module):
    """The fossils of a slot as the forward hook of its module, without checks that cannot be traced.

    ``part`` of the module's output is what they act on; None: all of it.
    """

    def __init__(self, fossils: Sequence[Seed], part: Any) -> None:
        super().__init__()
        self.seeds = nn.ModuleList(fossils)
        self.part = part

    def forward(self, module: Any, args: Any, output: Any) -> Any:
        """Return ``output`` with the fossils applied."""
        hidden = output if self.part is None else self.part.of(output)
        for seed in self.seeds:
            hidden = seed(hidden, FULL, args[0] if seed.adapts else None)
        return hidden if self.part is None else _replaced(self.part, output, hidden)


def _replaced(part: Any, output: Any, replacement: fx.Proxy) -> Any:
    """Return what the part's own ``replaced`` returns, in operations that a graph can hold."""
    key, call = part.key, partial(output.tracer.create_proxy, "call_function")
    if part.container in ("tuple", "list"):
        wrapped: Any = (replacement,) if part.container == "tuple" else [replacement]
        return output[: int(key)] + wrapped + output[int(key) + 1 :]
    if part.container == "named tuple":
        return output._replace(**{str(key): replacement})
    if part.container == "dataclass":
        return call(replace, (output,), {str(key): replacement})
    changed = call(copy.copy, (output,), {})
    call(operator.setitem, (changed, key, replacement), {})
    return changed


def _traced_fossils(fossils: _Fossils, slot: str) -> fx.GraphModule:
    """Return what grew in a slot as one module, whose children are torch's own layers."""
    try:
        graph = fx.Tracer().trace(fossils)
    except Exception as error:
        names = ", ".join(str(seed.blueprint) for seed in fossils.seeds)
        message = f"{names} in {slot} cannot be traced: {type(error).__name__}: {error}"
        raise _refusal(message, "Its forward may not branch on the values or sizes of tensors.") from error
    flat = nn.Module()
    for node in graph.nodes:
        node.type = None  # its annotation would be written, under a name of torch.fx
        if node.op in ("call_module", "get_attr"):
            name, (owner, _, member) = node.target.replace(".", "_"), node.target.rpartition(".")
            part = getattr(fossils.get_submodule(owner), member)
            while getattr(flat, name, part) is not part:
                name += "_"
            setattr(flat, name, part)
            node.target = name
    return fx.GraphModule(flat, graph, "Grown")


def _write_module(plain: nn.Module, grown: Mapping[str, fx.GraphModule], host: str, folder: Path) -> None:
    """Write the tensors of the whole network, and then the source of what grew, once it is known that both can be."""
    classes = "".join(_class_source(f"Grown{number}", at, module) for number, (at, module) in enumerate(grown.items()))
    names = {module: name.removesuffix(".layers") for name, module in plain.named_modules()}
    entries = [f'    "{at}": ("{names[grown[at]]}", Grown{number}),\n' for number, at in enumerate(grown)]
    source = _HEADER.format(host=host) + classes + _FOOTER.format(entries="".join(["\n", *entries]))
    _check_source(source, grown)
    originals: dict[int, str] = {}
    state = plain.state_dict(keep_vars=True)
    aliases = {name: first for name, value in state.items() if (first := originals.setdefault(id(value), name)) != name}
    for name, value in state.items():
        refuse_unwritable(name, value)
    tensors = {name: state[name].detach().to("cpu", copy=True).contiguous() for name in originals.values()}
    with report_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / TENSORS_FILE, save(tensors, aliases))
    write_atomically(folder / SOURCE_FILE, source)


def _class_source(name: str, at: str, module: fx.GraphModule) -> str:
    """Return the source of a class that builds and runs what grew behind ``at``."""
    for child in module.children():
        if type(child) is not getattr(nn, type(child).__name__, None) or list(child.children()):
            raise _unwritable(at, f"it has a layer of class {type(child).__name__}")
    lines = [f"self.{key} = nn.{child!r}" for key, child in module.named_children()]
    lines += [
        f"self.{key} = nn.Parameter(torch.empty({tuple(value.shape)}))"
        for key, value in module.named_parameters(recurse=False)
    ]
    lines += [
        f'self.register_buffer("{key}", torch.empty({tuple(value.shape)}, dtype={value.dtype}))'
        for key, value in module.named_buffers(recurse=False)
    ]
    dtypes = {value.dtype for value in module.parameters() if value.is_floating_point()}
    if len(dtypes) == 1 and dtypes != {torch.float32}:
        lines.append(f"self.to({dtypes.pop()})")
    forward = _FREED.sub("", module.code).strip()
    return _CLASS.format(name=name, at=at, lines=indent("\n".join(lines), " " * 8), forward=indent(forward, " " * 4))


def _check_source(source: str, grown: Mapping[str, fx.GraphModule]) -> None:
    """Raise GrowthError if the source does not build the layers that it was written from."""
    with TemporaryDirectory() as folder:
        write_atomically(file := Path(folder, SOURCE_FILE), source)
        written = run_path(str(file))
    for at, module in grown.items():
        try:
            built = repr(list(written["GROWN"][at][1]().children()))
        except Exception as error:
            raise _unwritable(at, f"{type(error).__name__}: {error}") from error
        if built != repr(list(module.children())):
            raise _unwritable(at, "its layers have settings that their repr does not show")


def _unwritable(at: str, why: str) -> GrowthError:
    hint = "Export without a path, and save it with torch.export or torch.save."
    return _refusal(f"what grew behind {at} cannot be written as source: {why}", hint)


def _refusal(message: str, hint: str | None = None) -> GrowthError:
    return GrowthError(Problem("E337", message, hint=hint))


_FREED: Final = re.compile(r"; +\w+( = \w+)* = None")
"""What torch.fx writes to free memory early."""

_HEADER: Final = '''"""What grew in a {host}, on torch's own layers.

    network = load({host}(...))    # with the settings that the host had
"""

from copy import copy as copy_copy
from dataclasses import replace as dataclasses_replace
from pathlib import Path

import torch
from safetensors import safe_open
from torch import device, inf, nan, nn
'''

_CLASS: Final = '''

class {name}(nn.Module):
    """Acts on the output of the module "{at}", as a forward hook."""

    def __init__(self):
        super().__init__()
{lines}

{forward}
'''

_FOOTER: Final = '''

GROWN = {{{entries}}}
"""By the name of the host's module that it is behind: where what grew is kept, and its class."""


def load(host, file=Path(__file__).with_name("network.safetensors")):
    """Put what grew into ``host``, a new one, load all tensors, and return it."""
    for at, (name, grown) in GROWN.items():
        holder = nn.Identity()
        holder.layers = grown().to(next(host.parameters()).device)
        place, _, name = name.rpartition(".")
        host.get_submodule(place).add_module(name, holder)
        host.get_submodule(at).register_forward_hook(holder.layers)
    with safe_open(str(file), "pt") as saved:
        names = {{name: name for name in saved.keys()}} | (saved.metadata() or {{}})
        host.load_state_dict({{name: saved.get_tensor(original) for name, original in names.items()}})
    return host
'''
