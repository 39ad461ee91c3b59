"""Named thresholds, windows and limits, each with its unit. A configuration can set those of a run."""

from __future__ import annotations

from typing import Final

EVENT_FORMAT: Final = 2
"""Version of the event format in events.jsonl."""

GROWTH_FORMAT: Final = 4
"""Version of the growth journal. 1 had no slots on parts of outputs."""

CHECKPOINT_SHARE: Final = 0.02
"""Largest share of a run's time spent on checkpoints if the configuration does not say how often to write them."""

RUN_FORMAT: Final = 1
"""Version of the layout of a run directory."""

FULL: Final = 1.0
"""The value of alpha at which a seed acts fully. Only there can it be fossilised."""

EPISODE_STEPS: Final = 40
"""Default number of decision steps of an episode."""

EPISODE_BATCHES: Final = 32
"""Default number of batches of a decision step."""

RAMP_STEPS: Final = 4
"""Default number of decision steps of alpha's ramp."""

EMBARGO_STEPS: Final = 2
"""Decision steps for which a slot is embargoed after a prune."""

STACK_LIMIT: Final = 1
"""Default number of fossils that a slot may hold."""

VANISHING_NORM: Final = 1e-7
"""Gradient norm of a parameter below which it counts as vanishing."""

EXPLODING_NORM: Final = 100.0
"""Gradient norm of a parameter above which it counts as exploding."""

PROBE_EXAMPLES: Final = 512
"""Training examples that initialise a blueprint with informed birth."""

FAULTS_UNTIL_WITHDRAWN: Final = 3
"""Faults of a blueprint after which it is withdrawn for the rest of the run."""

HISTORY_STEPS: Final = 20
"""Healthy decision steps in the governor's history of each loss."""

HISTORY_STEPS_NEEDED: Final = 5
"""Healthy decision steps needed before the governor compares a loss with the ones before."""

SURGE_SIGMAS: Final = 4.0
"""Standard deviations above the healthy history at which a loss surges."""

SURGE_RATIO: Final = 2.0
"""Multiple of the healthy history's mean above which a loss surges."""

SURGE_STEPS: Final = 3
"""Consecutive decision steps of a surge that cause a panic."""

EXPLOSION_RATIO: Final = 10.0
"""Multiple of the healthy history's mean, and of the loss of guessing, above which a surge causes a panic at once."""

TRIFLE_SHARE: Final = 0.05
"""Share of the loss of guessing (0 to 1) below which a rise of the loss is never a surge."""

CLEAR_GAIN_SHARE: Final = 0.1
"""Share of the loss of guessing (0 to 1) that must be gained before a collapse can be detected."""

COLLAPSE_SHARE: Final = 0.9
"""Share of the gain over guessing (0 to 1) whose loss counts as a collapse."""

WATCH_STEPS: Final = 8
"""Decision steps after a mutation or its ramp in which a panic is attributed to it."""

SNAPSHOT_STEPS: Final = 5
"""Decision steps after which a snapshot is taken even without an improvement."""

SNAPSHOTS_KEPT: Final = 2
"""Number of snapshots kept per environment."""

ROLLBACKS_IN_EPISODE: Final = 3
"""Rollbacks of one environment in an episode; the next panic stops the run."""

ROLLBACK_PENALTY: Final = 5.0
"""Penalty of a rollback in units of the reward (for `team`, percentage points of the metric)."""

CONFIDENCE: Final = 0.95
"""Confidence level of all intervals."""

MIN_SEEDS_FOR_VERDICT: Final = 8
"""Environments below which every comparison says "no difference shown"."""

EXACT_SIGN_FLIP_BELOW: Final = 20
"""Pairs below which the sign-flip test enumerates every flip."""

GATE_ALPHA: Final = 0.05
"""Probability that a worthless seed is kept in the training of a network, over all seeds and looks together."""

BLENDING_ALPHA: Final = 0.2
"""Probability that a gate lets a worthless seed be blended in, which can be undone, over all of its looks together."""

GATE_DECISIONS: Final = (3, 5, 8, 13, 20, 32, 51, 82, 131, 210, 336, 538)
"""Looks at which a gate decides. They grow by 1.6: each more would cost all others a share of the error probability."""

GATE_LOOKS: Final = EPISODE_STEPS
"""Looks over which a gate spreads its alpha if the length of the episode is unknown."""

FIRST_LOOK: Final = 3
"""First step of a seed, from 1, at which a gate looks: the first gains of a new seed do not last."""

MIN_EXAMPLES_FOR_EVIDENCE: Final = 100
"""Validation examples below which a gain counts as unknown, since means of few skewed differences mislead."""

SINK_PLACES: Final = 4096
"""Events and ends of steps that may wait for a sink before ``step-finished`` events are dropped."""

SINK_PLACES_KEPT: Final = 4096
"""Further places for events of other types, which are few."""

SINK_DRAIN_SECONDS: Final = 10.0
"""Seconds at the end of a run in which a sink may process waiting events."""

SINK_CLOSING_SECONDS: Final = 5.0
"""Seconds after that in which a sink must close."""

PREPARATION_SECONDS: Final = 3600.0
"""Seconds after which a command ends while plugins are imported, data prepared, or networks built."""

EXIT_SECONDS: Final = 10.0
"""Seconds for which the command ``esper`` waits at its end for threads that components left."""

PRICE_OF_DOUBLING: Final = 0.01
"""Default price of a doubling of a network: one point of accuracy, or one hundredth of the loss."""

SEED_IN_DOUBLINGS: Final = 0.10
"""What each seed costs beside its size; otherwise the smallest would pay everywhere."""
