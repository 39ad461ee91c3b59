"""What a run shows while it runs, on a terminal and in a pipe."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from esper_core.cli import progress as shown
from esper_core.cli.frame import frame
from esper_core.cli.screen import Above, Screen
from esper_core.cli.tally import Pace, Tally
from esper_core.leyline import Signals, SlotSignals, SlotState, Stage
from esper_core.leyline.columns import columns
from esper_core.leyline.events import EpisodeFinished, Event, GovernorActed, RunStarted, StageChanged, StepFinished

CLEAR = "\x1b[2J"
NAME = "20261121-101512-[bold]otter"


def started(arms: tuple[str, ...] = ("grown", "twin"), rounds: int = 1, environments: int = 1) -> RunStarted:
    return RunStarted(run=NAME, arms=arms, rounds=rounds, environments=environments, steps=4)


def step(number: int, arm: str = "grown", seed: int = 0, round_: int = 0) -> StepFinished:
    slots = tuple(SlotSignals(name, SlotState.FREE, 0) for name in ("early", "late"))
    signals = Signals(number, 1.0, 1.0, 0.5, 1, 1, slots)
    return StepFinished(round=round_, arm=arm, seed=seed, step=number, signals=signals)


def moved(now: Stage, seed: int = 0, blueprint: str = "b/x", slot: str = "early", **more: int) -> StageChanged:
    place = {"round": 0, "step": 0, "seed_id": 0} | more
    return StageChanged(
        **place, arm="grown", seed=seed, slot=slot, blueprint=blueprint, was=None, now=now, parameters=1, reason="asked"
    )


def ended(arm: str = "grown", seed: int = 0) -> EpisodeFinished:
    return EpisodeFinished(
        round=0, arm=arm, seed=seed, test_loss=1.0, test_metric=0.5, validation_metric=0.5, parameters=1,
        host_parameters=1, fossils=0, steps=2, reward=None,
    )  # fmt: skip


def acted(act: str, reason: str = "the loss rose") -> GovernorActed:
    return GovernorActed(round=0, arm="grown", seed=0, step=1, act=act, verdict="sick", reason=reason)


def tally_of(*events: Event) -> Tally:
    tally = Tally()
    for event in events:
        tally.hear(event)
    return tally


def drawn(tally: Tally, width: int = 80, height: int = 24, encoding: str = "utf-8") -> list[str]:
    return frame(tally, width, height, io.TextIOWrapper(io.BytesIO(), encoding), colour=False)


GROWING = [
    started(environments=4),
    *(step(0, arm, seed) for seed in range(4) for arm in ("grown", "twin")),
    *(moved(Stage.TRAINING, seed, "b/conv_light") for seed in range(3)),
    moved(Stage.HOLDING, 3, "b/conv_light"),
    moved(Stage.PRUNED, 0, "b/pointwise", seed_id=1),
]


def test_each_slot_says_how_many_seeds_of_what_are_in_which_stage() -> None:
    assert drawn(tally_of(*GROWING)) == [
        "20261121-101512-[bold]otter  ━━━━━━━━──────────────────────  25 %",
        "step 1 of 4 · grown, twin",
        "early  conv_light: 3 training, 1 holding · pointwise: 1 pruned",
        "late   nothing yet",
    ]


@pytest.mark.parametrize("width", [5, 20, 40, 79, 199])
@pytest.mark.parametrize("height", [1, 3, 24])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_frame_is_wider_or_higher_than_the_terminal(width: int, height: int, encoding: str) -> None:
    many = [moved(Stage.TRAINING, slot=f"slot-{number}-双子", blueprint=CLEAR * 4) for number in range(20)]
    many = [one for number, one in enumerate(many) for one in [moved(one.now, number, one.blueprint, one.slot)]]
    for events in ([], [started()], GROWING, [*GROWING, *many, acted("warn", "x" * 300)]):
        lines = drawn(tally_of(*events), width, height, encoding)
        assert 1 <= len(lines) <= height
        assert all(columns(line) <= width for line in lines), lines
        assert CLEAR not in "".join(lines)
        "".join(lines).encode(encoding)


def test_where_nothing_grows_the_seeds_of_those_before_are_gone() -> None:
    """The control by capacity is trained when the others are over: what they kept is not in its slots."""
    over = [ended(arm, seed) for arm in ("grown", "twin") for seed in range(4)]
    tally = tally_of(*GROWING, *over)
    assert drawn(tally)[-2:] == drawn(tally_of(*GROWING))[-2:], "until the next begins"
    for seed in range(4):
        tally.hear(step(0, "capacity", seed))
    assert drawn(tally)[1:] == ["step 1 of 4 · capacity"]
    assert tally.stages == {}


def test_lines_that_find_no_room_are_counted() -> None:
    many = [moved(Stage.TRAINING, number, slot=f"slot-{number}") for number in range(10)]
    assert drawn(tally_of(*GROWING, *many), height=6)[-1] == "… 9 more lines"


def test_a_terminal_without_these_signs_gets_others() -> None:
    assert drawn(tally_of(*GROWING), encoding="ascii")[:2] == [
        "20261121-101512-[bold]otter  ########----------------------  25 %",
        "step 1 of 4 | grown, twin",
    ]


def test_a_narrow_terminal_gets_the_words_of_the_name() -> None:
    assert drawn(tally_of(*GROWING), width=40)[0] == "[bold]otter  ━━━━━────────────────  25 %"


def test_names_are_without_their_plugin_unless_two_have_the_same() -> None:
    events = [moved(Stage.TRAINING, 0, "a/conv"), moved(Stage.TRAINING, 1, "b/conv"), moved(Stage.TRAINING, 2, "b/mlp")]
    assert drawn(tally_of(started(), *events))[1] == "early  a/conv: 1 training · b/conv: 1 training · mlp: 1 training"


def test_the_governors_acts_are_counted_and_the_latest_is_told() -> None:
    tally = tally_of(*GROWING, acted("warn"), acted("warn"), acted("roll-back", f"loss{CLEAR}"))
    told = "governor: 1 roll-back, 2 warn · roll-back: grown, seed 0, step 1: loss\\x1b[2J"
    assert drawn(tally)[-1] == told


def test_an_episode_that_is_over_early_is_done() -> None:
    tally = tally_of(started(), step(0), step(1), step(0, "twin"), ended())
    assert (tally.done, tally.total, tally.arms) == (5, 8, ("twin",))


def test_the_seeds_of_an_earlier_round_are_gone_and_a_control_leaves_those_of_the_others() -> None:
    tally = tally_of(started(("grown", "capacity"), rounds=2), moved(Stage.TRAINING), step(0))
    tally.hear(step(0, "capacity"))
    assert dict(tally.slots())["early"]
    tally.hear(step(0, round_=1))
    assert not dict(tally.slots())["early"]


def test_a_resumed_run_begins_where_it_was_and_its_past_makes_it_no_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("esper_core.cli.tally.monotonic", lambda: now)
    tally = tally_of(started(environments=50), *(step(0, seed=seed) for seed in range(40)))
    tally.pace.look(tally.done)
    assert (tally.done, tally.pace.rate, tally.pace.left(tally.total)) == (40, None, None)
    now += 10
    tally.hear(step(0, seed=40))
    tally.pace.look(tally.done)
    assert tally.pace.rate == pytest.approx(0.1)
    assert tally.pace.left(tally.total) == pytest.approx(3590)
    now += 30
    assert tally.pace.left(tally.total) == pytest.approx(3560)
    assert "0.1 env steps/s" in drawn(tally)[1]


def test_the_pace_forgets_how_it_was_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pace = 0.0, Pace()
    monkeypatch.setattr("esper_core.cli.tally.monotonic", lambda: now)
    for done in (0, 1000, *range(1001, 1201)):
        pace.look(done)
        now += 1
    assert pace.rate == pytest.approx(1.0, rel=0.02)


def test_a_frame_says_how_much_time_is_left_as_soon_as_a_pace_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("esper_core.cli.tally.monotonic", lambda: now)
    tally = tally_of(started(environments=10))
    heads = []
    for number in range(4):
        for seed, arm in [(seed, arm) for seed in range(10) for arm in ("grown", "twin")]:
            tally.hear(step(number, arm, seed))
        tally.pace.look(tally.done)
        heads.append(re.sub(".*─|.*━", "", drawn(tally)[0]))
        now += 100
    assert heads == ["  25 %", "  50 %  3 min 20 s left", "  75 %  1 min 40 s left", "  100 %"]


def test_the_time_left_goes_down_between_two_steps_and_never_below_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("esper_core.cli.tally.monotonic", lambda: now)
    tally = tally_of(started())
    for number in range(2):
        tally.hear(step(number))
        tally.pace.look(tally.done)
        now += 10
    told = {}
    for now in (10.0, 25.0, 300.0):
        told[now] = drawn(tally)[0].partition(" %  ")[2]
    assert told == {10.0: "1 min 0 s left", 25.0: "45 s left", 300.0: "0 s left"}


@pytest.mark.parametrize(("width", "bar"), [(80, True), (34, False)])
def test_the_time_left_is_told_on_a_narrow_terminal_too(width: int, bar: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("esper_core.cli.tally.monotonic", lambda: now)
    tally = tally_of(*GROWING)
    tally.pace.look(tally.done)
    now = 60.0
    tally.hear(step(1))
    tally.pace.look(tally.done)
    head = drawn(tally, width=width)[0]
    assert ("━" in head) == bar
    assert head.endswith("  28 %  23 min 0 s left")


# --- plain lines


def test_plain_lines_are_few_and_the_last_step_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown.PlainLines()
    for event in (started(), moved(Stage.TRAINING)):
        lines.hear(event)
    for number in range(4):
        lines.hear(step(number))
        lines.hear(step(number, "twin"))
        lines.settle()
    lines.settle()
    said = capsys.readouterr()
    assert said.out == ""
    first, last = said.err.splitlines()
    assert first == f"{NAME}: step 1 of 4 · 1 training"
    assert last.startswith(f"{NAME}: step 4 of 4 · ")
    assert last.endswith(" env steps/s · 1 training")


def test_a_plain_line_says_how_much_time_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    for module in ("tally", "progress"):
        monkeypatch.setattr(f"esper_core.cli.{module}.monotonic", lambda: now)
    lines = shown.PlainLines()
    lines.hear(started())
    for number in range(4):
        for arm in ("grown", "twin"):
            lines.hear(step(number, arm))
        lines.settle()
        now += 60
    assert [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "step 1 of 4",
        "step 2 of 4 · 0.033 env steps/s · 2 min 0 s left",
        "step 3 of 4 · 0.033 env steps/s · 1 min 0 s left",
        "step 4 of 4 · 0.033 env steps/s",
    ]


def test_quiet_is_quiet() -> None:
    with shown.progress(quiet=True) as listeners:
        assert listeners == []


# --- a terminal


class Terminal:
    """A terminal of 80 columns, and what was shown on it."""

    def __init__(self) -> None:
        self.ours, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self.resize(80)

    def resize(self, columns: int) -> None:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def shown(self, wait: float = 0.05) -> str:
        told = b""
        while select.select([self.ours], [], [], wait)[0]:
            told += os.read(self.ours, 65536)
        return told.decode().replace("\r\n", "\n")


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    with suppress(OSError):  # a test may have closed its other end
        terminal.stream.close()
    with suppress(OSError):
        os.close(terminal.ours)


@pytest.fixture
def on_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """A block in which stderr is the terminal, with the listener that shows a run there."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    @contextmanager
    def block() -> Iterator[shown.WhileRead]:
        before = sys.stderr
        sys.stderr = terminal.stream
        try:
            with shown.progress(quiet=False) as (listener,):
                assert isinstance(listener, shown.WhileRead)
                yield listener
            assert sys.stderr is terminal.stream
        finally:
            sys.stderr = before

    return block


def on_screen(shown: str) -> list[str]:
    """What stands on a screen in the end: it knows the sequences that are used here, and no others."""
    lines, row = [""], 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    for part in re.findall(r"\x1b\[[0-9]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", plain):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part in ("\x1b[2K", "\x1b[K"):
            lines[row] = ""
        elif part.endswith("A") and part.startswith("\x1b["):
            row = max(0, row - int(part[2:-1]))
        elif part != "\r":
            assert not part.startswith("\x1b"), part
            lines[row] += part
    return [line for line in lines if line]


def test_what_is_printed_meanwhile_stands_above_whole_line_by_line(terminal: Terminal) -> None:
    screen = Screen(terminal.stream)
    above = Above(screen, terminal.stream)
    screen.show(["one", "two"])
    above.write("half a ")
    screen.show(["three"])
    above.write("line\nand the")
    seen = terminal.shown()
    screen.close()
    seen_in_the_end = seen + terminal.shown()
    assert on_screen(seen) == ["half a line", "three"]
    assert on_screen(seen_in_the_end) == ["half a line", "and the"]
    assert "\x1b[J" not in seen_in_the_end  # for which tmux fills its history


def test_a_terminal_that_became_narrower_has_broken_the_lines(terminal: Terminal) -> None:
    screen = Screen(terminal.stream)
    screen.show(["x" * 70, "y"])
    terminal.resize(30)
    terminal.shown()
    screen.show(["z"])
    assert terminal.shown().startswith("\r\x1b[K\x1b[4A")


def test_where_the_process_was_stopped_the_next_is_drawn_below(terminal: Terminal) -> None:
    asked = iter([False, True, False])
    screen = Screen(terminal.stream, lambda: next(asked))
    screen.show(["one"])
    screen.show(["two"])
    screen.show(["three"])
    assert on_screen(terminal.shown()) == ["one", "three"]


def test_a_continuation_is_told_once_and_the_handlers_are_put_back() -> None:
    from esper_core.cli.screen import told_of_continuation

    before = signal.getsignal(signal.SIGCONT)
    with told_of_continuation() as continued:
        assert not continued()
        signal.raise_signal(signal.SIGCONT)
        assert (continued(), continued()) == (True, False)
    assert signal.getsignal(signal.SIGCONT) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_the_display_is_drawn_over_and_leaves_nothing_but_what_was_printed(terminal: Terminal, on_terminal) -> None:
    with on_terminal() as listener:
        for event in GROWING:
            listener.hear(event)
        listener.settle()
        time.sleep(0.6)
        print("warning: one thing", file=sys.stderr)
        seen = terminal.shown()
    assert on_screen(seen)[0] == "warning: one thing"
    assert on_screen(seen)[-1] == "late   nothing yet"
    assert "\x1b[32m" in seen
    assert on_screen(seen + terminal.shown()) == ["warning: one thing"]


def test_a_display_on_a_terminal_shows_the_time_that_is_left(terminal: Terminal, on_terminal) -> None:
    with on_terminal() as listener:
        listener.hear(started(environments=100))
        for seed in range(4):
            listener.hear(step(0, seed=seed))
            listener.settle()
            time.sleep(0.3)
        (head,) = [line for line in on_screen(terminal.shown()) if "%" in line]
    assert re.search(r"─  0 %  (\d+ min )?\d+ s left$", head), head


def test_the_display_follows_the_terminals_width_without_a_step(terminal: Terminal, on_terminal) -> None:
    with on_terminal() as listener:
        for event in GROWING:
            listener.hear(event)
        time.sleep(0.6)
        terminal.shown()
        terminal.resize(40)
        time.sleep(0.6)
        lines = on_screen(terminal.shown())
    assert any(line.startswith("[bold]otter") for line in lines)
    assert max(map(columns, lines)) < 40


def test_it_is_drawn_a_few_times_a_second_at_most(terminal: Terminal, on_terminal) -> None:
    with on_terminal() as listener:
        listener.hear(started(environments=100))
        until, seen = time.monotonic() + 1.0, ""
        for seed in range(10**6):
            listener.hear(step(0, seed=seed))
            listener.settle()
            seen += terminal.shown(wait=0)
            if time.monotonic() > until or seen.count(NAME) > 6:
                break
    assert 2 <= seen.count(NAME) <= 6


def test_without_colour_there_is_none(terminal: Terminal, on_terminal, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with on_terminal() as listener:
        for event in GROWING:
            listener.hear(event)
        time.sleep(0.6)
        seen = terminal.shown()
    assert "━" in seen
    assert re.search(r"\x1b\[[0-9;]*m", seen) is None


def test_a_dumb_terminal_gets_plain_lines(terminal: Terminal, on_terminal, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with on_terminal() as listener:
        for event in GROWING:
            listener.hear(event)
        listener.settle()
    assert terminal.shown() == f"{NAME}: step 1 of 4 · 3 training, 1 holding, 1 pruned\n"


def test_a_terminal_that_goes_away_stops_nothing(on_terminal, terminal: Terminal) -> None:
    with on_terminal() as listener:
        listener.hear(started())
        os.close(terminal.ours)
        time.sleep(0.4)
        listener.hear(step(0))
        listener.settle()
        listener.settle()
