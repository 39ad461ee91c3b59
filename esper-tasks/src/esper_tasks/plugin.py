"""Hooks of the plugin: tasks and hosts. They are imported when a run first uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from esper_core import HostSpec, SlotPlace, TaskSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.leyline import SiteKind

TASKS: Final = {
    "mnist1d": ("mnist1d:mnist1d", "Mnist1d", "Ten digits as signals of 40 numbers."),
    "mnist1d-shuffled": (
        "mnist1d:mnist1d_shuffled",
        "Mnist1d",
        "The same with the positions permuted: neighbours say little.",
    ),
    "stripes": ("stripes:stripes", "Stripes", "Four short patterns in noise; made in milliseconds, for tests."),
    "images-synthetic": (
        "images_synthetic:images_synthetic",
        "ImagesSynthetic",
        "Eight waves in noisy colour images; made in a tenth of a second.",
    ),
    "marked-sum": (
        "marked_sum:marked_sum",
        "MarkedSum",
        "The sum of two marked tokens, which needs interaction between tokens.",
    ),
    "bytes": ("byte_text:byte_text", "Bytes", "The next byte of Python's help texts, judged by perplexity."),
    "digits": (
        "digits:digits",
        "Digits",
        "The digits of scikit-learn, which must be installed; nearly linear, for a quick look.",
    ),
    "npz": ("own_data:npz", "Npz", "Arrays of your own, from an .npz or a folder of .npy files."),
}
"""Module and function of each task by its name, the name of its settings, and its summary."""


def _convolutional(kind: SiteKind) -> dict[str, SlotPlace]:
    return {
        "early": SlotPlace("early", kind),
        "middle": SlotPlace("middle", kind),
        "late": SlotPlace("late", kind),
        "features": SlotPlace("features", "vector"),
    }


HOSTS: Final[Mapping[str, tuple[str, str, str, dict[str, SlotPlace]]]] = {
    "pointwise-mlp": (
        "PointwiseMlp",
        "PointwiseMlp",
        "Processes each position separately, so it cannot detect a shape.",
        {"early": SlotPlace("stem", "sequence"), "late": SlotPlace("hidden", "vector")},
    ),
    "cnn1d": ("cnn1d", "Cnn1d", "Three narrow convolutions over a sequence.", _convolutional("sequence")),
    "wide-cnn1d": (
        "wide_cnn1d",
        "WideCnn1d",
        "The same, wide enough: the control on which growth must find nothing.",
        _convolutional("sequence"),
    ),
    "cnn2d": (
        "cnn2d",
        "Cnn2d",
        "Three convolutions over an image: 3 → 8 → 16 → 32 channels.",
        _convolutional("image"),
    ),
    "mlp": (
        "Mlp",
        "Mlp",
        "Two hidden layers over the flattened example.",
        {"first": SlotPlace("first", "vector"), "second": SlotPlace("second", "vector")},
    ),
    "token-mlp": (
        "TokenMlp",
        "TokenMlp",
        "Processes each token separately, so it cannot relate two of them.",
        {"early": SlotPlace("embed", "tokens"), "late": SlotPlace("mix", "tokens")},
    ),
    "transformer": (
        "Transformer",
        "Transformer",
        "Two small blocks of attention and MLP; causal for text, or one output for all tokens.",
        {"block0": SlotPlace("blocks.0", "tokens"), "block1": SlotPlace("blocks.1", "tokens")},
    ),
}
"""Class or function of each host in ``hosts`` by its name, the name of its settings, its summary, and its slots."""


@hookimpl
def esper_register_tasks(registry: Any) -> None:
    """Register the tasks."""
    for name, (target, settings, summary) in TASKS.items():
        spec = TaskSpec(summary=summary, settings=f"esper_tasks.settings:{settings}Settings")
        registry.add(name, f"esper_tasks.{target}", spec)


@hookimpl
def esper_register_hosts(registry: Any) -> None:
    """Register the hosts."""
    for name, (target, settings, summary, slots) in HOSTS.items():
        spec = HostSpec(summary=summary, slots=slots, settings=f"esper_tasks.settings:{settings}Settings")
        registry.add(name, f"esper_tasks.hosts:{target}", spec)
