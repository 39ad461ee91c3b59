"""Which numbers steer Esper? Thresholds, windows and limits, each with its unit; a config can set those of a run."""

from __future__ import annotations

from typing import Final

API_LEVEL: Final = 1
"""Level of the plugin API. Raised when a plugin that was right becomes wrong."""

EVENT_FORMAT: Final = 1
"""Version of the lines in events.jsonl."""

GROWTH_FORMAT: Final = 1
"""Version of the growth journal."""

RUN_FORMAT: Final = 1
"""Version of the layout of a run directory."""

FULL: Final = 1.0
"""The strength (alpha) at which a seed acts whole; only there can it be kept."""

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

CONFIDENCE: Final = 0.95
"""Level of every interval that is shown."""

MIN_SEEDS_FOR_VERDICT: Final = 8
"""Environments below which a comparison says nothing but "no difference shown"."""

EXACT_SIGN_FLIP_BELOW: Final = 20
"""Pairs below which the sign-flip test enumerates every flip."""
