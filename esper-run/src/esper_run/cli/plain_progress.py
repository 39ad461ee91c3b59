"""Progress of a run on stderr, as plain lines."""

from __future__ import annotations

import sys
from collections import Counter, deque
from time import monotonic
from typing import TYPE_CHECKING, Final

from esper_core.leyline.errors import printable
from esper_core.leyline.events import EpisodeFinished, GovernorActed, RunStarted, StageChanged, StepFinished
from esper_core.leyline.lifecycle import Stage
from esper_run.cli.output import encodable
from esper_run.formats import STAGE_WORDS, format_percent, format_rate, format_seconds, format_value, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline.events import Event

MIN_PAUSE: Final = 5.0
MAX_PAUSE: Final = 60.0
"""Seconds between two lines, at the start and in a long run."""

RATE_SECONDS: Final = 120.0
"""Seconds over which the rate is averaged. A run slows down as networks grow."""


class PlainLines:
    """A listener that prints a line at the start, every few seconds, and every minute in a long run."""

    def __init__(self) -> None:
        self._started: RunStarted | None = None
        self._total = 0
        self._place = (0, 0)
        """Round and step of the arms that train now."""
        self._training: list[str] = []
        """Arms that train now: a control trains after the others, from its own first step."""
        self._metrics: dict[str, tuple[int, dict[int, float]]] = {}
        """By arm: its round, and the latest validation metric of each environment."""
        self._done = 0
        self._open: Counter[tuple[str, int]] = Counter()
        self._stages: dict[tuple[str, int, int], Stage] = {}
        self._rounds: dict[str, int] = {}
        self._acts: Counter[str] = Counter()
        self._reason = ""
        self._looks: deque[tuple[float, int]] = deque()
        self._printed: tuple[float, int] | None = None
        self._began = 0.0
        self._gone = False

    def hear(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, RunStarted):
            self._started = event
            self._total = event.rounds * event.steps * len(event.arms) * event.environments
        elif isinstance(event, StepFinished):
            self._done += 1
            self._open[event.arm, event.seed] += 1
            self._hear_step(event)
        elif isinstance(event, EpisodeFinished):  # it may have ended early
            steps = 0 if self._started is None else self._started.steps
            self._done += max(0, steps - self._open.pop((event.arm, event.seed), 0))
        elif isinstance(event, StageChanged):
            if self._rounds.setdefault(event.arm, event.round) != event.round:
                self._rounds[event.arm] = event.round
                self._stages = {key: stage for key, stage in self._stages.items() if key[0] != event.arm}
            self._stages[event.arm, event.seed, event.seed_id] = event.now
        elif isinstance(event, GovernorActed):
            if not self._acts[event.act]:
                self._reason = f" ({event.act}: {event.reason.partition(chr(10))[0]})"
            self._acts[event.act] += 1

    def _hear_step(self, event: StepFinished) -> None:
        if self._started is None:
            return
        place = event.round, event.step
        if event.arm not in self._training:
            self._training = [*(self._training if place == self._place else ()), event.arm]
        self._place = place
        round_, metrics = self._metrics.get(event.arm, (-1, {}))
        if round_ != event.round:
            metrics = {}
            self._metrics[event.arm] = event.round, metrics
        metrics[event.seed] = event.signals.validation_metric

    def settle(self) -> None:
        """Print a line if the last one is old, or the run is done. Stop once stderr is closed."""
        now = monotonic()
        if not self._looks:
            self._began = now
        self._looks.append((now, self._done))
        while len(self._looks) > 2 and now - self._looks[1][0] > RATE_SECONDS:
            self._looks.popleft()
        pause = min(MAX_PAUSE, max(MIN_PAUSE, (now - self._began) / 20))
        over = self._done >= self._total
        if self._printed is not None:
            last, done = self._printed
            if done == self._done or (now - last < pause and not over):
                return
        self._printed = now, self._done
        try:
            if not self._gone:
                print(encodable(printable(plain(self._line())), sys.stderr), file=sys.stderr, flush=True)
        except OSError:
            self._gone = True

    def _line(self) -> str:
        run = "" if self._started is None else self._started.run
        share = min(1.0, self._done / self._total) if self._total else 0.0
        parts = [", ".join([f"{run}: {format_percent(share, 0)}", *self._where()])]
        if means := self._means():
            parts.append(means)
        (began, first), (now, last) = self._looks[0], self._looks[-1]
        if now > began and last > first:
            rate = (last - first) / (now - began)
            parts.append(format_rate(rate))
            if left := max(0, self._total - self._done):
                parts.append(f"{format_seconds(left / rate)} left")
        counts = Counter(self._stages.values())
        if counts:
            parts.append(", ".join(f"{counts[stage]} {STAGE_WORDS[stage]}" for stage in Stage if counts[stage]))
        if self._acts:
            counted = ", ".join(f"{count} {act}" for act, count in sorted(self._acts.items()))
            parts.append(f"governor: {counted}{self._reason}")
            self._reason = ""
        return " | ".join(parts)

    def _where(self) -> Iterator[str]:
        """Yield which arms train, if they do not train all together, and where they are."""
        if (started := self._started) is None or not self._training:
            return
        if len(self._training) < len(started.arms):
            yield f"{len(self._training)} arms" if len(self._training) > 2 else " and ".join(self._training)
        round_, step = self._place
        if started.rounds > 1:
            yield f"round {round_ + 1} of {started.rounds}"
        yield f"step {step + 1} of {started.steps}"

    def _means(self) -> str:
        """Return the mean validation metric of each arm, in the order of the run; empty if there is none."""
        if self._started is None or self._started.metric is None:
            return ""
        metric = self._started.metric
        means = []
        for arm in self._started.arms:
            _, metrics = self._metrics.get(arm, (0, {}))
            if metrics:
                means.append(f"{arm} {format_value(metric, sum(metrics.values()) / len(metrics))}")
        return ", ".join(means)
