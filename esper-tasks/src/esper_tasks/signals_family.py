"""How does a run use one instance of the family ``SIGNALS``? By its number: once for the data, once for the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_tasks.families import SIGNALS
from esper_tasks.mnist1d import mnist1d, mnist1d_shuffled
from esper_tasks.pointwise_mlp import PointwiseMlp
from esper_tasks.settings import InstanceSettings

if TYPE_CHECKING:
    from esper_core.leyline import DataShape
    from esper_tasks.classification import Classification
    from esper_tasks.families import Part


def signals_family(*, instance: int = 0, part: Part = "train") -> Classification:
    """The data of an instance: inputs (N, 1, 40), one of ten classes.

    >>> signals_family(instance=3, part="held_out").shape
    DataShape(kind='sequence', example=(1, 40), outputs=10)

    instance: its number, from 0 on. part: train or held_out; no example of one is in the other.
    """
    settings = InstanceSettings(instance=instance, part=part)
    chosen = SIGNALS.instance(settings.instance, settings.part)
    build = {"mnist1d": mnist1d, "mnist1d-shuffled": mnist1d_shuffled}[chosen.task]
    return build(**chosen.task_settings)


def signals_family_host(shape: DataShape, *, instance: int = 0, part: Part = "train") -> PointwiseMlp:
    """The host of an instance: a ``PointwiseMlp`` with its widths. Arguments as for ``signals_family``."""
    settings = InstanceSettings(instance=instance, part=part)
    return PointwiseMlp(shape, **SIGNALS.instance(settings.instance, settings.part).host_settings)
