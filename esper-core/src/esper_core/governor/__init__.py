"""The governor: watches every environment and stops what has gone wrong."""

from esper_core.governor.judgement import CALM, Level, Verdict, judge

__all__ = ["CALM", "Level", "Verdict", "judge"]
