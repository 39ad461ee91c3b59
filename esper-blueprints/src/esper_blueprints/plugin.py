"""Hooks of the plugin: the standard blueprints. They are imported when a run first uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from esper_core import BlueprintSpec, hookimpl

if TYPE_CHECKING:
    from esper_core.leyline import Registrar


def _spec(accepts: str | tuple[str, ...], summary: str, **more: Any) -> BlueprintSpec:
    """Return the spec of a blueprint that starts as the identity, as all of this package do."""
    return BlueprintSpec(accepts, summary=summary, starts_as_identity=True, **more)


BLUEPRINTS: Final = {
    "norm": (
        "norm:Norm",
        _spec(("image", "sequence", "vector", "tokens"), "RMS normalisation with a gain and a bias for each feature."),
    ),
    "squeeze_excite": (
        "squeeze_excite:SqueezeExcite",
        _spec(("image", "sequence", "tokens"), "A gate for each feature, computed from all positions."),
    ),
    "pointwise": (
        "pointwise:Pointwise",
        _spec(("image", "sequence"), "Two layers at each position separately, four times as wide inside."),
    ),
    "depthwise_separable": (
        "depthwise_separable:DepthwiseSeparable",
        _spec(("image", "sequence"), "A depthwise convolution of width 5, then a mix: neighbours for few parameters."),
    ),
    "conv_light": (
        "conv_light:ConvLight",
        _spec(("image", "sequence"), "Two convolutions of width 5: four neighbours to each side."),
    ),
    "conv_heavy": (
        "conv_heavy:ConvHeavy",
        _spec(
            ("image", "sequence"), "Three convolutions of width 5, twice as wide inside: six neighbours to each side."
        ),
    ),
    "dilated": (
        "dilated:Dilated",
        _spec(
            ("image", "sequence"),
            "Three convolutions of width 3 with dilations 1, 3 and 9: 13 neighbours to each side.",
        ),
    ),
    "bottleneck": (
        "bottleneck:Bottleneck",
        _spec(("image", "sequence"), "A convolution of width 5 over a quarter as many features."),
    ),
    "mlp": ("mlp:Mlp", _spec(("vector", "tokens"), "Two layers over the features, twice as wide inside.")),
    "gated_mlp": (
        "gated_mlp:GatedMlp",
        _spec(("vector", "tokens"), "The product of two linear maps of the features, twice as wide inside."),
    ),
    "lora": (
        "lora:Lora",
        _spec(
            ("vector", "tokens", "sequence", "image"),
            "LoRA: a linear map of low rank beside a linear layer or a 1×1 convolution.",
            adapts=True,
            settings="esper_blueprints.settings:LoraSettings",
        ),
    ),
    "dora": (
        "dora:Dora",
        _spec(
            ("vector", "tokens"),
            "DoRA: LoRA that also changes how long the rows of a linear layer's weight are.",
            adapts=True,
            reads_layer=True,
            settings="esper_blueprints.settings:LoraSettings",
        ),
    ),
    "bottleneck_adapter": (
        "bottleneck_adapter:BottleneckAdapter",
        _spec(
            ("vector", "tokens"),
            "A narrow MLP beside a layer.",
            adapts=True,
            settings="esper_blueprints.settings:AdapterSettings",
        ),
    ),
    "ia3": ("ia3:Ia3", _spec(("vector", "tokens"), "IA³: a factor for each feature.")),
    "attention": ("attention:Attention", _spec("tokens", "Self-attention without positions.")),
    "gru_mixer": ("gru_mixer:GruMixer", _spec("tokens", "A GRU along the tokens: each depends on those before it.")),
}
"""Module and class of each blueprint by its name, and its spec."""


@hookimpl
def esper_register_blueprints(registry: Registrar[BlueprintSpec]) -> None:
    """Register the blueprints."""
    for name, (target, spec) in BLUEPRINTS.items():
        registry.add(name, f"esper_blueprints.{target}", spec)
