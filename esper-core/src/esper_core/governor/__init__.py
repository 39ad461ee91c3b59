"""The governor: watches every environment and stops what has gone wrong."""

from esper_core.governor.attribution import Culprit, Mutation, Watch
from esper_core.governor.governor import Act, Decision, Governor, Preflight, RolledBack
from esper_core.governor.judgement import History, Judgement, judge, judge_step

__all__ = [
    "Act",
    "Culprit",
    "Decision",
    "Governor",
    "History",
    "Judgement",
    "Mutation",
    "Preflight",
    "RolledBack",
    "Watch",
    "judge",
    "judge_step",
]
