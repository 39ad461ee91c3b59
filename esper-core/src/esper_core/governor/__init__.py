"""The governor: watches every environment and stops what has gone wrong."""

from esper_core.governor.decision import Act, Decision, RolledBack
from esper_core.governor.governing import Governor
from esper_core.governor.history import History
from esper_core.governor.judgement import Judgement, judge, judge_step
from esper_core.governor.preflight import Preflight
from esper_core.governor.watch import Culprit, Mutation, Watch

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
