"""Which numbers steer Esper? Thresholds, windows and limits, each with its unit; a config can set those of a run."""

from __future__ import annotations

from typing import Final

API_LEVEL: Final = 1
"""Level of the plugin API. Raised when a plugin that was right becomes wrong."""

EVENT_FORMAT: Final = 1
"""Version of the lines in events.jsonl."""

GROWTH_FORMAT: Final = 1
"""Version of the growth journal."""

CHECKPOINT_SHARE: Final = 0.02
"""Share of a run's time that goes into checkpoints, where a file does not say how often they are written."""

RUN_FORMAT: Final = 1
"""Version of the layout of a run directory."""

FULL: Final = 1.0
"""The strength (alpha) at which a seed acts whole; only there can it be kept."""

EPISODE_STEPS: Final = 40
"""Decision steps of an episode, where a config says nothing."""

RAMP_STEPS: Final = 4
"""Decision steps that alpha takes from 0 to its target."""

EMBARGO_STEPS: Final = 2
"""Decision steps for which a slot rests after a prune."""

STACK_LIMIT: Final = 1
"""Fossils that one slot may hold."""

VANISHING_NORM: Final = 1e-7
"""Norm of one parameter's gradient below which it counts as vanishing."""

EXPLODING_NORM: Final = 100.0
"""Norm of one parameter's gradient above which it counts as exploding."""

PROBE_EXAMPLES: Final = 512
"""Training examples that a block with an informed birth looks at."""

FAULTS_UNTIL_WITHDRAWN: Final = 3
"""Faults of one blueprint after which it grows no more in a run."""

HISTORY_STEPS: Final = 20
"""Healthy decision steps that the governor remembers of each loss."""

HISTORY_STEPS_NEEDED: Final = 5
"""Healthy decision steps below which the governor knows too little of a loss to call one a surge."""

SURGE_SIGMAS: Final = 4.0
"""Standard deviations of its recent healthy history by which a loss surges."""

SURGE_RATIO: Final = 2.0
"""Multiple of the mean of its recent healthy history above which a loss surges."""

SURGE_STEPS: Final = 3
"""Decision steps running for which a loss surges before it is a panic."""

TRIFLE_SHARE: Final = 0.05
"""Share of the loss of guessing (0 to 1) below which no rise of a loss is a surge."""

CLEAR_GAIN_SHARE: Final = 0.1
"""Share of the loss of guessing (0 to 1) by which an environment has to be better before it can collapse."""

COLLAPSE_SHARE: Final = 0.9
"""Share of what an environment had gained over guessing (0 to 1) that is lost in a collapse."""

WATCH_STEPS: Final = 8
"""Decision steps after a mutation, or after its ramp, in which a panic is laid at its door."""

SNAPSHOT_STEPS: Final = 5
"""Decision steps after which a snapshot is taken though nothing improved."""

SNAPSHOTS_KEPT: Final = 2
"""Snapshots of one environment that are kept, each in memory of its own."""

ROLLBACKS_IN_EPISODE: Final = 3
"""Rollbacks of one environment in an episode; the next panic stops the run."""

ROLLBACK_PENALTY: Final = 5.0
"""What a rollback costs, in the units of the reward (`team`: points of the metric, in percent)."""

CONFIDENCE: Final = 0.95
"""Level of every interval that is shown."""

MIN_SEEDS_FOR_VERDICT: Final = 8
"""Environments below which a comparison says nothing but "no difference shown"."""

EXACT_SIGN_FLIP_BELOW: Final = 20
"""Pairs below which the sign-flip test enumerates every flip."""

GATE_ALPHA: Final = 0.05
"""Probability with which a gate may let one worthless seed pass, over all of its looks together."""

GATE_LOOKS: Final = EPISODE_STEPS
"""Looks at one seed between which a gate shares its alpha, where nobody says how long the episode is."""

FIRST_LOOK: Final = 3
"""Step of a gate's life, from 1, at which it looks first: what a newborn gains is soon gone."""

MIN_EXAMPLES_FOR_EVIDENCE: Final = 100
"""Validation examples below which a gain is unknown to a gate: a mean of fewer skewed differences deceives."""

NATS_PER_PARAMETER: Final = 1e-4
"""Price of one added parameter, in nats of validation loss, where a config names none."""

SINK_PLACES: Final = 4096
"""Events that may wait for a sink; a step that is over finds no place behind so many, and is dropped."""

SINK_PLACES_KEPT: Final = 4096
"""Further events that may wait for a sink where they are none of a step that is over: there are few of these."""

SINK_DRAIN_SECONDS: Final = 10.0
"""Seconds that a sink has at the end of a run for the events that wait for it."""

SINK_CLOSING_SECONDS: Final = 5.0
"""Seconds that a sink has after that to close, before it is left behind."""
