"""Which configuration does a run have? A file and overrides in; a checked model, or every problem at once, out."""

from esper_core.config.explaining import Explanation, explain
from esper_core.config.loading import LoadedConfig, load_config, parse_config, settings_problems
from esper_core.config.model import (
    ArmConfig,
    CheckpointConfig,
    ComputeConfig,
    EpisodeConfig,
    GovernorConfig,
    GrowthConfig,
    OptimizerConfig,
    OptimizersConfig,
    RunConfig,
    SlotConfig,
    Use,
)
from esper_core.config.paths import parse_path
from esper_core.config.writing import dump_config

__all__ = [
    "ArmConfig",
    "CheckpointConfig",
    "ComputeConfig",
    "EpisodeConfig",
    "Explanation",
    "GovernorConfig",
    "GrowthConfig",
    "LoadedConfig",
    "OptimizerConfig",
    "OptimizersConfig",
    "RunConfig",
    "SlotConfig",
    "Use",
    "dump_config",
    "explain",
    "load_config",
    "parse_config",
    "parse_path",
    "settings_problems",
]
