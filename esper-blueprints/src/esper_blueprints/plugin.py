"""Hooks of the plugin: the standard blueprints. They are imported when a run first uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from esper_core import BlueprintSpec, PluginInfo, hookimpl

if TYPE_CHECKING:
    from esper_core.leyline import Registrar

ANY_SIZE: Final = ("deterministic", "bf16", "compile", "dynamic_spatial")
"""Traits of the blueprints that torch.compile captures as one graph."""

INFORMED: Final = (*ANY_SIZE, "informed_birth")
"""Traits of the blueprints that choose their initial weights from a batch."""

BLUEPRINTS: Final = (
    (
        "norm",
        "norm:Norm",
        BlueprintSpec(
            accepts=("image", "sequence", "vector", "tokens"),
            params="2*c",
            summary="RMS normalisation with a gain and a bias for each feature.",
            starts_as_identity=True,
            traits=ANY_SIZE,
        ),
    ),
    (
        "squeeze_excite",
        "squeeze_excite:SqueezeExcite",
        BlueprintSpec(
            accepts=("image", "sequence", "tokens"),
            params="2*c*max(c//4, 1) + max(c//4, 1) + c",
            summary="A gate for each feature, computed from all positions.",
            starts_as_identity=True,
            traits=ANY_SIZE,
        ),
    ),
    (
        "pointwise",
        "pointwise:Pointwise",
        BlueprintSpec(
            accepts=("image", "sequence"),
            params="8*c*c + 5*c",
            summary="Two layers at each position separately, four times as wide inside.",
            starts_as_identity=True,
            traits=ANY_SIZE,
        ),
    ),
    (
        "depthwise_separable",
        "depthwise_separable:DepthwiseSeparable",
        BlueprintSpec(
            accepts=("image", "sequence"),
            params="5**n*c + c*c + 2*c",
            summary="A depthwise convolution of width 5, then a mix: neighbours for few parameters.",
            starts_as_identity=True,
            traits=ANY_SIZE,
        ),
    ),
    (
        "conv_light",
        "conv_light:ConvLight",
        BlueprintSpec(
            accepts=("image", "sequence"),
            params="2*(5**n*c*c + c)",
            summary="Two convolutions of width 5: four neighbours to each side.",
            starts_as_identity=True,
            traits=INFORMED,
        ),
    ),
    (
        "conv_heavy",
        "conv_heavy:ConvHeavy",
        BlueprintSpec(
            accepts=("image", "sequence"),
            params="8*5**n*c*c + 9*c",
            summary="Three convolutions of width 5, twice as wide inside: six neighbours to each side.",
            starts_as_identity=True,
            traits=ANY_SIZE,
        ),
    ),
    (
        "dilated",
        "dilated:Dilated",
        BlueprintSpec(
            accepts=("image", "sequence"),
            params="3*(3**n*c*c + c)",
            summary="Three convolutions of width 3 with dilations 1, 3 and 9: 13 neighbours to each side.",
            starts_as_identity=True,
            traits=ANY_SIZE,
        ),
    ),
    (
        "bottleneck",
        "bottleneck:Bottleneck",
        BlueprintSpec(
            accepts=("image", "sequence"),
            params="2*c*max(c//4, 1) + 5**n*max(c//4, 1)**2 + 2*max(c//4, 1) + c",
            summary="A convolution of width 5 over a quarter as many features.",
            starts_as_identity=True,
            traits=ANY_SIZE,
        ),
    ),
    (
        "mlp",
        "mlp:Mlp",
        BlueprintSpec(
            accepts=("vector", "tokens"),
            params="4*c*c + 3*c",
            summary="Two layers over the features, twice as wide inside.",
            starts_as_identity=True,
            traits=ANY_SIZE,
        ),
    ),
    (
        "low_rank",
        "low_rank:LowRank",
        BlueprintSpec(
            accepts=("vector", "tokens"),
            params="2*c*max(c//4, 1) + c",
            summary="A linear map over a quarter as many features.",
            starts_as_identity=True,
            traits=INFORMED,
        ),
    ),
    (
        "gated_mlp",
        "gated_mlp:GatedMlp",
        BlueprintSpec(
            accepts=("vector", "tokens"),
            params="6*c*c + 5*c",
            summary="The product of two linear maps of the features, twice as wide inside.",
            starts_as_identity=True,
            traits=ANY_SIZE,
        ),
    ),
    (
        "lora_small",
        "lora:lora_small",
        BlueprintSpec(
            accepts=("vector", "tokens"),
            params="(i + c)*max(min(4, i//2, c//2), 1)",
            summary="LoRA: a linear map of rank 4 beside a linear layer.",
            starts_as_identity=True,
            traits=INFORMED,
            version=2,
            adapts=True,
        ),
    ),
    (
        "lora_large",
        "lora:lora_large",
        BlueprintSpec(
            accepts=("vector", "tokens"),
            params="(i + c)*max(min(16, i//2, c//2), 1)",
            summary="LoRA: a linear map of rank 16 beside a linear layer.",
            starts_as_identity=True,
            traits=INFORMED,
            version=2,
            adapts=True,
        ),
    ),
    (
        "attention",
        "attention:Attention",
        BlueprintSpec(
            accepts="tokens",
            params="4*c*c + c",
            summary="Self-attention without positions.",
            starts_as_identity=True,
            traits=ANY_SIZE,
        ),
    ),
    (
        "gru_mixer",
        "gru_mixer:GruMixer",
        BlueprintSpec(
            accepts="tokens",
            params="7*c*c + 7*c",
            summary="A GRU along the tokens: each depends on those before it.",
            starts_as_identity=True,
            traits=("deterministic", "bf16", "dynamic_spatial"),
        ),
    ),
)
"""The blueprints of this package: registered name, module, and spec of each."""


@hookimpl
def esper_plugin_info() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="The standard blueprints.")


@hookimpl
def esper_register_blueprints(registry: Registrar[BlueprintSpec]) -> None:
    """Register the blueprints."""
    for name, target, spec in BLUEPRINTS:
        registry.add(name, f"esper_blueprints.{target}", spec)
