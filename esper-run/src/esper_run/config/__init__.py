"""The configuration of a run: read a file, apply ``--set``, and validate.

- ``model``: every option with its default and meaning. Begin here.
- ``contradictions``: which options contradict each other.
- ``loading``: from a file and ``--set`` to a ``LoadedConfig``; what ``--set`` may change; and back to YAML.
- ``errors``: pydantic's errors as problems with a place and a hint.
- ``yaml``: YAML 1.2 with positions, and with limits on what is read.
- ``values``: key paths, values with their places, and how they are shown in messages.

Names of components are only looked up, and their settings only checked, in ``app.resolution``.
"""

from esper_run.config.errors import model_problems
from esper_run.config.loading import LoadedConfig, config_of, dump_config, load_config, parse_config, section_of
from esper_run.config.model import ArmConfig, CheckpointConfig, RunConfig, SlotConfig
from esper_run.config.values import parse_path

__all__ = [
    "ArmConfig",
    "CheckpointConfig",
    "LoadedConfig",
    "RunConfig",
    "SlotConfig",
    "config_of",
    "dump_config",
    "load_config",
    "model_problems",
    "parse_config",
    "parse_path",
    "section_of",
]
