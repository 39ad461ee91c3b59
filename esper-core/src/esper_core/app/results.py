"""What came out? For each arm mean and interval over its episodes, and each pair of arms compared seed by seed."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any

from esper_core.leyline.constants import CONFIDENCE
from esper_core.runs.statistics import Interval, Sample, compare_arms, is_usable, mean_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.leyline.events import EpisodeFinished
    from esper_core.leyline.signals import Metric


def results(metric: Metric, arms: Sequence[str], episodes: Sequence[EpisodeFinished], margin: float) -> dict[str, Any]:
    """The part of summary.json that depends on nothing but the seeds and the configuration.

    All pairs of arms are compared, the twin being one of them, and judged together.
    """
    by_arm = {arm: sorted((e for e in episodes if e.arm == arm), key=lambda e: (e.round, e.seed)) for arm in arms}
    samples = [Sample(arm, {episode.seed: episode.test_metric for episode in own}) for arm, own in by_arm.items()]
    return {
        "metric": {"name": metric.name, "direction": metric.direction, "unit": metric.unit},
        "arms": {arm: _arm(own, metric) for arm, own in by_arm.items()},
        "comparisons": compare_arms(samples, direction=metric.direction, margin=margin),
    }


def _arm(episodes: Sequence[EpisodeFinished], metric: Metric) -> dict[str, Any]:
    interval = _interval([episode.test_metric for episode in episodes], metric)
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    return {
        "test": {"mean": interval.mean, "ci_low": interval.low, "ci_high": interval.high, "n": interval.n},
        "params": fmean(episode.parameters for episode in episodes),
        "host_params": fmean(episode.host_parameters for episode in episodes),
        "fossils": fmean(episode.fossils for episode in episodes),
        "reward": fmean(rewards) if len(rewards) == len(episodes) else None,
        "episodes": [{"seed": episode.seed, "test": episode.test_metric} for episode in episodes],
    }


def _interval(values: Sequence[float], metric: Metric) -> Interval:
    """Mean and interval; unknown where a value is no number, as a perplexity can be."""
    if all(map(is_usable, values)):
        return mean_interval(values, CONFIDENCE, share=metric.is_share)
    return Interval(math.nan, None, None, len(values))
