"""The governor: watches every environment, and rolls back or stops what goes wrong.

Begin reading with ``Governor.decide``. What is here:

- ``governor``: decide, roll back, stop early; when a snapshot is taken
- ``judgement``: the verdict on one step, from the losses of the steps before
- ``attribution``: which mutation caused a panic

What a rollback restores of host and optimizers is in ``growth.snapshots``. Seeds that break a loss are removed before
the governor is asked (``trainer.growing_network``).
"""

from esper_core.governor.attribution import MutationWatch
from esper_core.governor.governor import Act, Governor, GovernorDecision, RolledBack
from esper_core.governor.judgement import Judgement, LossHistory, judge_step

__all__ = [
    "Act",
    "Governor",
    "GovernorDecision",
    "Judgement",
    "LossHistory",
    "MutationWatch",
    "RolledBack",
    "judge_step",
]
