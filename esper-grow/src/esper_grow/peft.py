"""PEFT in and out: adapters as a folder with adapter_config.json and adapter_model.safetensors.

    save_adapters(model, "adapters")                       # what grew in the model
    peft.PeftModel.from_pretrained(base, "adapters")       # in PEFT, which merges and swaps it as its own
    load_adapters(base, "adapters")                        # as kept seeds

In float32 the outputs are equal to the bit. With a base of half precision they agree up to its rounding. Reading runs
no code: JSON and safetensors alone are read, of files of a bounded size.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as decode, save as encode
from torch import Tensor, nn

from esper_blueprints.dora import Dora, weight_of
from esper_blueprints.ia3 import Ia3
from esper_blueprints.lora import Lora
from esper_core.growth import Host, Variety, graft
from esper_core.leyline.errors import GrowthError, Problem, plural, suggestion
from esper_core.leyline.lifecycle import Blend, SlotState, Stage
from esper_core.leyline.specs import Site, SlotPlace
from esper_core.plugins import load_plugins
from esper_grow.adaptation import linear_shape, refused_by_peft, with_several_names
from esper_grow.peft_growth import has_adapters, keep_growth_with_adapters, refuse_living
from esper_run.runs.checkpoint_files import read_part, tensor_bytes
from esper_run.runs.directory import report_os_errors, write_atomically, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from esper_core import BlueprintSpec
    from esper_core.growth import Seed

log = logging.getLogger("esper")

CONFIGURATION: Final = "adapter_config.json"
TENSORS: Final = "adapter_model.safetensors"
LAYOUT: Final = f"A folder of PEFT has {CONFIGURATION} and {TENSORS}; older files of pickles are not read."

_PREFIX: Final = "base_model.model."
"""Of the names of modules in a PeftModel, and so of all keys in its files."""

_NEUTRAL: Final = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "exclude_modules", "fan_in_fan_out"),
        *("feedforward_modules", "for_esper_grow.load", "inference_mode", "layers_pattern", "layers_to_transform"),
        *("megatron_core", "peft_type", "peft_version", "qalora_group_size", "revision", "runtime_config"),
        *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "lora_dropout", "use_rslora", "use_dora"),
        *("loftq_config", "eva_config", "init_ia3_weights", "target_modules", "task_type"),
    }
)
"""Settings of PEFT that are read, or that change no output of the adapters in a file."""

_LENGTHS: Final = ".lora_magnitude_vector"

_PLAIN_STARTS: Final = (None, True, False, "gaussian", "eva", "orthogonal")
"""Initialisations of LoRA that leave the weights of the base as they are."""

ModelT = TypeVar("ModelT", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class _LoraWeights:
    """One LoRA as PEFT stores it; ``lengths`` are those that a DoRA has learned."""

    down: Tensor
    up: Tensor
    alpha: float
    rslora: bool
    dropout: float
    lengths: Tensor | None = None

    @property
    def rank(self) -> int:
        return len(self.down)

    @property
    def scale(self) -> float:
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)


def save_adapters(model: nn.Module, folder: str | Path, *, name: str | None = None) -> None:
    """Save the kept adapters of a name, or those that act, as a folder of PEFT; the base is not saved.

    The folder fits the model without what grew, or the base of a PeftModel, whose own adapters are not saved. Several
    LoRAs at one place become one of their joint rank, up to rounding. Logs a warning (E337) if weights of the base may
    have been trained, which are not saved, or if a layer has two names, of which PEFT knows the first.

    Raises:
        GraftError: the model has no slots.
        GrowthError: seeds are alive (E336), or nothing is to be saved, or PEFT cannot express what grew (E337).
        RunFolderError: the folder cannot be written.
    """
    refuse_living(model)
    slots = Host(model).slots.by_module
    chosen = {
        at: [seed for seed in slot.fossils if (seed.acts if name is None else seed.label == name)]
        for at, slot in slots.items()
    }
    grown = {at: seeds for at, seeds in chosen.items() if seeds}
    if not grown:
        msg = "nothing grew in the model, or it does not act" if name is None else f"the model has no adapters {name!r}"
        hint = "Gates keep adapters in calls of tend(), and print(gardener.tend()) says what they lack, such as calls."
        _refuse(msg, hint)
    layers = {at: model.get_submodule(at) for at in grown}
    for at, seeds in grown.items():
        _refuse_inexpressible(slots[at].name, seeds, layers[at], of_part=slots[at].part is not None)
    names = {at: _name_in_peft(model, at) for at in grown}
    kinds = {type(seed.block) for seeds in grown.values() for seed in seeds}
    config: dict[str, Any] = {}
    if kinds in ({Lora}, {Dora}):
        weights = {names[at]: _joined(slots[at].name, seeds, layers[at]) for at, seeds in grown.items()}
        config |= {"bias": "none", "use_dora": kinds == {Dora}, **_lora_config(model, weights)}
        tensors = {f"{name}.lora_A.weight": lora.down for name, lora in weights.items()}
        tensors |= {f"{name}.lora_B.weight": lora.up for name, lora in weights.items()}
        tensors |= {name + _LENGTHS: lora.lengths for name, lora in weights.items() if lora.lengths is not None}
    elif kinds == {Ia3}:
        config |= {"peft_type": "IA3", "feedforward_modules": []}
        changes = {at: cast("Ia3", seed.block).change for at, (seed,) in grown.items()}
        tensors = {f"{names[at]}.ia3_l": 1.0 + change.unsqueeze(1) for at, change in changes.items()}
    else:
        listed = ", ".join(f"{seed.blueprint} in {slots[at].name}" for at, seeds in grown.items() for seed in seeds)
        _refuse(f"a folder of PEFT holds adapters of one kind, and the model has {listed}")
    base = model.get_submodule(_prefix_in(model).removesuffix("."))
    config |= {
        "auto_mapping": {"base_model_class": type(base).__name__, "parent_library": type(base).__module__},
        "base_model_name_or_path": getattr(getattr(model, "config", None), "_name_or_path", None) or None,
        "fan_in_fan_out": all(type(layer).__name__ == "Conv1D" for layer in layers.values()),
        "inference_mode": True,
        "target_modules": _targets(model, list(names.values())),
        "task_type": None,
    }
    folder = Path(folder)
    with report_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    contiguous = {_PREFIX + key: value.detach().to("cpu", copy=True).contiguous() for key, value in tensors.items()}
    write_atomically(folder / TENSORS, encode(contiguous, metadata={"format": "pt"}))
    write_json(folder / CONFIGURATION, config)
    _warn_of_trained_base(model, folder)
    _warn_of_other_names(model, layers)


def load_adapters(
    model: ModelT, folder: str | Path | Mapping[str, str | Path], *, name: str = "default", example: Any = None
) -> ModelT:
    """Load a folder of PEFT, with LoRA, DoRA or IA³, into a model as kept seeds, and return it.

    The model is the base, or has slots with room behind the layers that the folder names. A ``Gardener`` without
    ``slots`` trains what was loaded, if its optimizer has it, and grows more beside it.

    Args:
        model: The base. It is grafted, unless it has slots.
        folder: With ``adapter_config.json`` and ``adapter_model.safetensors``. Or several, by the names that their
            adapters get. ``use_adapters`` says which act: at first those of the first folder, if nothing has grown.
        name: The name of the adapters of one folder.
        example: One batch of inputs, as ``graft`` takes it. Without it layers are taken to get tokens, which matters
            only for what grows there later.

    Raises:
        GraftError: a layer cannot have a slot.
        GrowthError: a file is missing or damaged (E332), is of another model, or has a name that is there already
            (E334), or has what Esper does not (E337).
    """
    folders = dict(folder) if isinstance(folder, Mapping) else {name: folder}
    loaded = {label: _read_folder(Path(path)) for label, path in folders.items()}
    prefix = _prefix_in(model)
    for label, layers in loaded.items():
        by_place = {prefix + at: tensors for at, (_, tensors) in layers.items()}
        _refuse_other_model(model, by_place, Path(folders[label]))
    places = Counter(prefix + at for layers in loaded.values() for at in layers)
    host = Host(model)
    if not host.is_grafted:
        graft(model, {at: SlotPlace(at, stack=count + 1) for at, count in places.items()}, example=example)
    slots = host.slots.by_module
    seeds = [seed for slot in slots.values() for seed in slot.seeds]
    if blocked := [
        at for at, count in places.items() if at not in slots or slots[at].limit < count + len(slots[at].seeds)
    ]:
        message = f"the model has slots, and none with room behind {', '.join(blocked[:3])}"
        hint = "Load adapters into the plain model, before it is grafted; several folders at once, by name."
        raise GrowthError(Problem("E334", message, hint=hint))
    if taken := {seed.label for seed in seeds} & loaded.keys():
        message = f"the model has adapters called {', '.join(sorted(taken))}"
        raise GrowthError(Problem("E334", message, hint="Pass another name."))
    registry = load_plugins().registry
    for place, (label, layers) in enumerate(loaded.items()):
        for at, (blueprint, tensors) in layers.items():
            component = registry.find("blueprint", blueprint)
            variety = Variety(component.id, cast("BlueprintSpec", component.spec), component.load(), component.title)
            seed = _plant(model, prefix + at, variety, tensors)
            seed.label, seed.acts = label, not seeds and place == 0
    keep_growth_with_adapters(model)
    return model


def _read_folder(folder: Path) -> dict[str, tuple[str, list[Tensor]]]:
    """Return the blueprint of each adapted layer, and its tensors."""
    config, tensors = _read_config(folder / CONFIGURATION), _read_tensors(folder / TENSORS)
    lengths = (_LENGTHS,) if config["use_dora"] else ()
    suffixes = (".ia3_l",) if config["peft_type"] == "IA3" else (".lora_A.weight", ".lora_B.weight", *lengths)
    adapters = {}
    for name in _modules(tensors, suffixes, folder):
        of_layer = [tensors[name + suffix] for suffix in suffixes]
        if of_layer[0].ndim > 2 and len(suffixes) != 2:
            raise _unknown(folder / TENSORS, f"DoRA or IA³ of a convolution, {name}")
        blueprint = "blueprints/ia3" if len(suffixes) == 1 else _lora_of(config, name, of_layer[0], folder)
        adapters[name] = blueprint, of_layer
    return adapters


def _plant(model: nn.Module, at: str, variety: Variety, tensors: Sequence[Tensor]) -> Seed:
    """Put a seed with these weights into the slot behind a linear layer, as if it had been kept there."""
    slot, shape = Host(model).slots.by_module[at], linear_shape(model.get_submodule(at))
    assert shape is not None
    if slot.site is None:
        positions = tensors[0].shape[2:]  # of a convolution
        kind: Any = {0: "tokens", 1: "sequence", 2: "image"}[len(positions)]
        slot.site = Site(kind, shape[1], tuple(positions) or (1,), inputs=shape[0])
    seed = Host(model).plant(slot.name, variety, 0)
    with torch.no_grad():
        if isinstance(seed.block, Ia3):
            seed.block.change.copy_(tensors[0].flatten() - 1.0)
        else:
            block = cast("Lora", seed.block)
            block.down.weight.copy_(tensors[0])
            block.up.weight.copy_(tensors[1])
            if isinstance(block, Dora):
                block.set_lengths(tensors[2], weight_of(model.get_submodule(at)))
    seed.stage, seed.kept = Stage.FOSSILISED, 0
    slot.state = SlotState.CLOSED if len(slot.fossils) >= slot.limit else SlotState.FREE
    return seed


# --- saving


def _refuse_inexpressible(slot: str, fossils: Sequence[Seed], layer: nn.Module, *, of_part: bool) -> None:
    """Raise GrowthError (E337) if PEFT has no adapter that does what grew in a slot."""
    for seed in fossils:
        what = f"{seed.blueprint} in {slot}"
        if type(seed.block) not in (Lora, Dora, Ia3):
            _refuse(f"PEFT has no adapter that computes what {what} does")
        if seed.blend is not Blend.ADD:
            _refuse(f"PEFT adds adapters, and {what} is blended in by {seed.blend}")
        if linear_shape(layer) is None or of_part:
            _refuse(f"PEFT adapts linear layers and 1×1 convolutions, and {what} is behind a {type(layer).__name__}")
    if len(fossils) > 1 and any(isinstance(seed.block, Dora | Ia3) for seed in fossils):
        _refuse(f"PEFT has one DoRA or IA³ for a layer, and {slot} keeps {len(fossils)} seeds")


def _joined(slot: str, fossils: Sequence[Seed], layer: nn.Module) -> _LoraWeights:
    """Return the LoRAs of a slot as one: the ranks are joined, and the scales of all but the first folded in."""
    blocks = [cast("Lora", seed.block) for seed in fossils]
    first, dropouts = blocks[0], [0.0 if block.dropout is None else block.dropout.p for block in blocks]
    if len(set(dropouts)) > 1:
        _refuse(f"PEFT has one dropout for a layer, and {slot} has {', '.join(map(str, dropouts))}")
    if len(blocks) == 1:
        lengths = first.lengths(weight_of(layer)) if isinstance(first, Dora) else None
        return _LoraWeights(first.down.weight, first.up.weight, first.alpha, first.rslora, dropouts[0], lengths)
    down = torch.cat([block.down.weight for block in blocks])
    up = torch.cat([block.up.weight * (block.scale / first.scale) for block in blocks], dim=1)
    return _LoraWeights(down, up, first.scale * len(down), rslora=False, dropout=dropouts[0])


def _lora_config(model: nn.Module, weights: Mapping[str, _LoraWeights]) -> dict[str, Any]:
    """Return the settings of PEFT's LoRA: those of the first layer, and patterns for others."""
    if refused := refused_by_peft(model, weights):
        _refuse(f"PEFT refuses LoRA beside {', '.join(refused)}, whose weights the kernels of Mamba read by themselves")
    first = next(iter(weights.values()))
    dropouts = sorted({lora.dropout for lora in weights.values()})
    if len(dropouts) > 1:
        _refuse(f"PEFT has one dropout for all layers, and here are {', '.join(map(str, dropouts))}")
    rslora = all(lora.rslora for lora in weights.values())
    alphas = {name: lora.alpha if rslora == lora.rslora else lora.scale * lora.rank for name, lora in weights.items()}
    shown = {name: int(alpha) if alpha == int(alpha) else alpha for name, alpha in alphas.items()}
    default = next(iter(shown.values()))
    # A pattern also means all layers whose names end alike, unless it begins with ^.
    patterns = {name: f"^{re.escape(name)}" for name in weights}
    return {
        "peft_type": "LORA",
        "r": first.rank,
        "lora_alpha": default,
        "rank_pattern": {patterns[name]: lora.rank for name, lora in weights.items() if lora.rank != first.rank},
        "alpha_pattern": {patterns[name]: alpha for name, alpha in shown.items() if alpha != default},
        "use_rslora": rslora,
        "lora_dropout": dropouts[0],
    }


def _targets(model: nn.Module, names: Sequence[str]) -> list[str] | str:
    """Return the layers as PEFT names them: a list, or a pattern where an end of a name would mean others, too."""
    others = {_name_in_peft(model, name) for name, _ in model.named_modules()} - set(names)
    if any(other.endswith(f".{name}") for other in others for name in names):
        return "|".join(map(re.escape, names))
    return list(names)


def _name_in_peft(model: nn.Module, at: str) -> str:
    """Return the name of a module in the plain base, where ``model`` may be a PeftModel of it."""
    return (at.removeprefix(_PREFIX) if has_adapters(model) else at).removesuffix(".base_layer")


def _prefix_in(model: nn.Module) -> str:
    """Return the prefix of the base, which a model that has loaded adapters by itself does not have."""
    return _PREFIX if has_adapters(model) and "base_model" in dict(model.named_children()) else ""


def _warn_of_other_names(model: nn.Module, layers: Iterable[str]) -> None:
    """Log a warning (E337) if a layer has several names, of which PEFT knows the first."""
    if several := with_several_names(model, layers):
        message = f"PEFT adapts a layer under its first name alone, and {', '.join(several)} has another one"
        hint = "If forward uses the other one, outputs differ: give the layer one name."
        log.warning("%s", Problem("E337", message, hint=hint))


def _warn_of_trained_base(model: nn.Module, folder: Path) -> None:
    """Log a warning (E337) if parameters of the base may have been trained, which the folder has not."""
    of_peft = getattr(getattr(model, "base_model", None), "prefix", None) if has_adapters(model) else None
    trained = [
        name
        for name, parameter in Host(model).parameters().items()
        if parameter.requires_grad and (of_peft is None or of_peft not in name)
    ]
    if trained:
        message = f"{folder} lacks {plural(len(trained), 'parameter')} of the model that may have been trained"
        hint = "Save a trained head beside the folder. Freeze the base before it grows:  model.requires_grad_(False)"
        log.warning("%s", Problem("E337", f"{message}, such as {trained[0]}", hint=hint))


def _refuse(message: str, hint: str = "esper_grow.save keeps everything that grew, with its base.") -> NoReturn:
    """Raise GrowthError (E337) for what PEFT cannot express."""
    raise GrowthError(Problem("E337", message, hint=hint))


# --- loading


def _read_config(file: Path) -> dict[str, Any]:
    """Return the settings of PEFT; GrowthError for one that changes what the adapters compute, and is not known."""
    try:
        config = json.loads(read_part(file, None, LAYOUT))
        kind = config["peft_type"]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise _unreadable(file, f"{type(error).__name__}: {error}") from error
    if kind not in ("LORA", "IA3"):
        raise _unknown(file, f"adapters of the kind {kind!r}")
    config = {"use_rslora": False, "use_dora": False, **config}
    if config.get("init_lora_weights") not in _PLAIN_STARTS:
        raise _unknown(file, f"init_lora_weights={config['init_lora_weights']!r}, which changes the base")
    for name, value in config.items():
        if value and value != "none" and name not in _NEUTRAL | {"init_lora_weights"}:
            raise _unknown(file, f"{name}={value!r}")
    if config.get("feedforward_modules"):
        raise _unknown(file, "IA³ of inputs (feedforward_modules)")
    return cast("dict[str, Any]", config)


def _read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors by their names in the base."""
    try:
        tensors = decode(read_part(file, tensor_bytes(), LAYOUT))
    except SafetensorError as error:
        raise _unreadable(file, str(error)) from error
    return {key.removeprefix(_PREFIX): value for key, value in tensors.items()}


def _modules(tensors: Mapping[str, Tensor], suffixes: Sequence[str], folder: Path) -> list[str]:
    """Return the names of the adapted layers; GrowthError if there are other tensors, or some are missing."""
    names = [key.removesuffix(suffixes[0]) for key in tensors if key.endswith(suffixes[0])]
    expected = {name + suffix for name in names for suffix in suffixes}
    if not names or expected != tensors.keys():
        strange = sorted(expected ^ tensors.keys())[:3]
        raise _unknown(folder / TENSORS, f"the tensors {', '.join(strange) or 'of no layer'}")
    return names


def _lora_of(config: Mapping[str, Any], name: str, down: Tensor, folder: Path) -> str:
    """Return the LoRA of a layer as the name of a blueprint with settings."""
    file = folder / CONFIGURATION
    try:
        alpha = float(config.get("lora_alpha", 8))
        for pattern, value in (config.get("alpha_pattern") or {}).items():
            if _matches(pattern, name, file):
                alpha = float(value)
                break
        rslora, dropout = bool(config["use_rslora"]), float(config.get("lora_dropout") or 0.0)
    except (TypeError, ValueError, AttributeError) as error:
        raise _unreadable(file, f"{type(error).__name__}: {error}") from error
    settings = {"alpha": alpha if alpha != len(down) else None, "rslora": rslora or None, "dropout": dropout or None}
    more = "".join(f",{key}={value}" for key, value in settings.items() if value is not None)
    return f"blueprints/{'dora' if config['use_dora'] else 'lora'}(rank={len(down)}{more})"


def _matches(pattern: str, name: str, file: Path) -> bool:
    """Return whether a pattern of PEFT means a layer, by its whole name or its end."""
    literal = re.sub(r"\\(.)", r"\1", pattern.removeprefix("^").removesuffix("$"))
    # Others are not run: a regular expression from anywhere may take for ever.
    if not re.fullmatch(r"[\w.\-]+", literal):
        raise _unknown(file, f"the pattern {pattern!r}")
    return name == literal or (not pattern.startswith("^") and name.endswith(f".{literal}"))


def _refuse_other_model(model: nn.Module, layers: Mapping[str, Sequence[Tensor]], folder: Path) -> None:
    """Raise GrowthError (E334) if the model has no such linear layers."""
    modules = dict(model.named_modules())
    problems = []
    for name, tensors in layers.items():
        shape = linear_shape(modules[name]) if name in modules else None
        expected = (tensors[0].shape[1], len(tensors[1])) if len(tensors) > 1 else (None, tensors[0].numel())
        if shape is None:
            linear = [other for other, module in modules.items() if linear_shape(module) is not None]
            problems.append(f"{name} is no linear layer or 1×1 convolution of the model. {suggestion(name, linear)}")
        elif len(tensors) > 2 and hasattr(modules[name], "base_layer"):
            problems.append(f"{name} has adapters of PEFT, beside which DoRA cannot be")
        elif shape[1] != expected[1] or expected[0] not in (None, shape[0]):
            problems.append(
                f"{name} maps {shape[0]} to {shape[1]} features, and the adapter {expected[0]} to {expected[1]}"
            )
    if problems:
        message = f"{folder} does not fit this {type(model).__name__}"
        raise GrowthError(Problem("E334", message, hint="\n".join(problems[:3])))


def _unreadable(file: Path, why: str) -> GrowthError:
    hint = f"{why}\nIt is incomplete, or was changed."
    return GrowthError(Problem("E332", f"{file} is not a file of PEFT", hint=hint))


def _unknown(file: Path, what: str) -> GrowthError:
    message = f"{file} has {what}, which no blueprint of Esper has"
    return GrowthError(Problem("E337", message, hint="A PeftModel that has loaded it can be a host."))
