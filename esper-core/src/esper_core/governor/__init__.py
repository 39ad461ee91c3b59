"""The governor: watches every environment and stops what has gone wrong."""

from esper_core.governor.judgement import judge

__all__ = ["judge"]
