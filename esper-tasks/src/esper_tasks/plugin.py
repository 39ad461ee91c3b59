"""Hooks of the plugin: tasks and hosts. They are imported when a run first uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core import HostSpec, PluginInfo, SlotPlace, TaskSpec, hookimpl

if TYPE_CHECKING:
    from esper_core.leyline import SiteKind


@hookimpl
def esper_plugin_info() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="Hosts and data, all of it offline.")


@hookimpl
def esper_register_tasks(registry: Any) -> None:
    """Register the tasks."""
    registry.add(
        "mnist1d",
        "esper_tasks.mnist1d:mnist1d",
        TaskSpec(summary="Ten digits as signals of 40 numbers.", settings="esper_tasks.settings:Mnist1dSettings"),
    )
    registry.add(
        "mnist1d-shuffled",
        "esper_tasks.mnist1d:mnist1d_shuffled",
        TaskSpec(
            summary="The same with the positions permuted: the negative control.",
            settings="esper_tasks.settings:Mnist1dSettings",
        ),
    )
    registry.add(
        "stripes",
        "esper_tasks.stripes:stripes",
        TaskSpec(
            summary="Four short patterns in noise; made in milliseconds, for tests.",
            settings="esper_tasks.settings:StripesSettings",
        ),
    )
    registry.add(
        "images-synthetic",
        "esper_tasks.images_synthetic:images_synthetic",
        TaskSpec(
            summary="Eight waves in noisy colour images; made in a tenth of a second.",
            settings="esper_tasks.settings:ImagesSyntheticSettings",
        ),
    )
    registry.add(
        "marked-sum",
        "esper_tasks.marked_sum:marked_sum",
        TaskSpec(
            summary="The sum of two marked tokens, which needs interaction between tokens.",
            settings="esper_tasks.settings:MarkedSumSettings",
        ),
    )
    registry.add(
        "bytes",
        "esper_tasks.byte_text:byte_text",
        TaskSpec(
            summary="The next byte of Python's help texts, judged by perplexity.",
            settings="esper_tasks.settings:BytesSettings",
        ),
    )
    registry.add(
        "riddles",
        "esper_tasks.riddles:riddles",
        TaskSpec(
            summary="Five problems in one form, each with another best blueprint.",
            settings="esper_tasks.settings:RiddlesSettings",
        ),
    )
    _register_files(registry)


def _register_files(registry: Any) -> None:
    """Register the tasks that read files."""
    registry.add(
        "digits",
        "esper_tasks.digits:digits",
        TaskSpec(
            summary="The digits of scikit-learn, which must be installed; nearly linear, for a quick look.",
            settings="esper_tasks.settings:DigitsSettings",
        ),
    )
    registry.add(
        "cifar10",
        "esper_tasks.cifar10:cifar10",
        TaskSpec(
            summary="Small photographs, from your own copy of the binary version.",
            settings="esper_tasks.settings:Cifar10Settings",
        ),
    )
    registry.add(
        "npz",
        "esper_tasks.own_data:npz",
        TaskSpec(
            summary="Arrays of your own, from an .npz or a folder of .npy files.",
            settings="esper_tasks.settings:NpzSettings",
        ),
    )
    registry.add(
        "csv",
        "esper_tasks.own_data:csv_table",
        TaskSpec(
            summary="A table of your own: one column is predicted from the others.",
            settings="esper_tasks.settings:CsvSettings",
        ),
    )


@hookimpl
def esper_register_hosts(registry: Any) -> None:
    """Register the hosts."""
    registry.add(
        "pointwise-mlp",
        "esper_tasks.hosts:PointwiseMlp",
        HostSpec(
            summary="Processes each position separately, so it cannot detect a shape.",
            slots={"early": SlotPlace("stem", "sequence"), "late": SlotPlace("hidden", "vector")},
            settings="esper_tasks.settings:PointwiseMlpSettings",
        ),
    )
    _register_convolutional(registry)
    registry.add(
        "mlp",
        "esper_tasks.hosts:Mlp",
        HostSpec(
            summary="Two hidden layers over the flattened example.",
            slots={"first": SlotPlace("first", "vector"), "second": SlotPlace("second", "vector")},
            settings="esper_tasks.settings:MlpSettings",
        ),
    )
    registry.add(
        "token-mlp",
        "esper_tasks.hosts:TokenMlp",
        HostSpec(
            summary="Processes each token separately, so it cannot relate two of them.",
            slots={"early": SlotPlace("embed", "tokens"), "late": SlotPlace("mix", "tokens")},
            settings="esper_tasks.settings:TokenMlpSettings",
        ),
    )
    registry.add(
        "transformer",
        "esper_tasks.hosts:Transformer",
        HostSpec(
            summary="Two small blocks of attention and MLP; causal for text, or one output for all tokens.",
            slots={"block0": SlotPlace("blocks.0", "tokens"), "block1": SlotPlace("blocks.1", "tokens")},
            settings="esper_tasks.settings:TransformerSettings",
        ),
    )


def _register_convolutional(registry: Any) -> None:
    registry.add(
        "cnn1d",
        "esper_tasks.hosts:cnn1d",
        HostSpec(
            summary="Three narrow convolutions over a sequence.",
            slots=_convolutional_slots("sequence"),
            settings="esper_tasks.settings:Cnn1dSettings",
        ),
    )
    registry.add(
        "wide-cnn1d",
        "esper_tasks.hosts:wide_cnn1d",
        HostSpec(
            summary="The same, wide enough: the control on which growth must find nothing.",
            slots=_convolutional_slots("sequence"),
            settings="esper_tasks.settings:WideCnn1dSettings",
        ),
    )
    registry.add(
        "cnn2d",
        "esper_tasks.hosts:cnn2d",
        HostSpec(
            summary="Three convolutions over an image: 3 → 8 → 16 → 32 channels.",
            slots=_convolutional_slots("image"),
            settings="esper_tasks.settings:Cnn2dSettings",
        ),
    )


def _convolutional_slots(kind: SiteKind) -> dict[str, SlotPlace]:
    return {
        "early": SlotPlace("early", kind),
        "middle": SlotPlace("middle", kind),
        "late": SlotPlace("late", kind),
        "features": SlotPlace("features", "vector"),
    }
