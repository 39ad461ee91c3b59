"""The TensorBoard sink: its folders, curves and texts, and the error if TensorBoard is not installed."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from esper_core import EsperError
from esper_core.leyline.events import RunStarted, StageChanged, StepFinished
from esper_testing import check_sink, recorded_events
from esper_testing.fakes import sick_events
from esper_watch.tensorboard import TensorboardSink, tensorboard


class Recorded:
    """A writer that records its arguments, and fails if it is used after it was closed."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[tuple[int, float]]] = {}
        self.texts: list[tuple[str, str, int]] = []
        self.closed = 0

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert not self.closed
        self.scalars.setdefault(tag, []).append((step, value))

    def add_text(self, tag: str, text: str, step: int) -> None:
        assert not self.closed
        self.texts.append((tag, text, step))

    def close(self) -> None:
        self.closed += 1


class Shelf(dict[str, Recorded]):
    """The writers that were opened, by folder."""

    def sink(self, every: int = 1) -> TensorboardSink:
        return TensorboardSink(Path("top"), self.opened, every)

    def opened(self, place: Path) -> Recorded:
        assert place.as_posix() not in self
        return self.setdefault(place.as_posix(), Recorded())


def test_each_environment_has_its_own_curves_and_stage_changes_as_text():
    sink = (shelf := Shelf()).sink()
    for event in recorded_events():
        sink.hear(event)
        sink.settle()
    sink.close()
    sink.close()
    sink.hear(recorded_events()[1])  # no writer is opened again
    assert sorted(shelf) == ["top", "top/grown", "top/grown/environment-0", "top/twin/environment-0"]
    assert {writer.closed for writer in shelf.values()} == {1}
    grown, twin = shelf["top/grown/environment-0"], shelf["top/twin/environment-0"]
    assert grown.scalars["loss/train"] == [(0, 2.0), (1, 1.0)]
    assert grown.scalars["reward/step"] == [(1, 1.5)]  # the first step has no reward
    assert {tag: points for tag, points in grown.scalars.items() if tag.startswith("test")} == {
        "test/loss": [(1, 1.0)],
        "test/metric": [(1, 0.6)],
        "test/parameters": [(1, 1000)],
    }
    assert grown.texts == [
        ("growth", "`early`: `tried/blueprint` germinated: by the policy", 0),
        ("growth", "`early`: `tried/blueprint` germinated → training: a step began", 1),
        ("growth", "`early`: `tried/blueprint` lost: broke its loss", 1),
        ("growth", "`early`: `tried/blueprint` training → pruned: lost: the seed broke its loss", 1),
        ("governor", "warn, warning: the loss rose", 1),
    ]
    assert set(twin.scalars) == {
        "loss/train", "loss/validation", "metric/validation", "network/parameters", "network/fossils",
    }  # fmt: skip
    assert shelf["top/grown"].scalars == {"update/loss": [(1, 0.25)]}
    assert shelf["top"].texts == [("run", "done", 0)]


def test_an_environment_keeps_its_folder_and_its_steps_keep_counting():
    sink = (shelf := Shelf()).sink()
    sink.hear(RunStarted(run="r", arms=("grown",), rounds=2, environments=2, steps=3))
    (step,) = [event for event in recorded_events() if isinstance(event, StepFinished)][:1]
    for round_ in range(2):
        for place in range(2):
            sink.hear(replace(step, round=round_, seed=40 + 2 * round_ + place, step=2))
    assert sorted(shelf) == ["top/grown/environment-0", "top/grown/environment-1"]
    assert [[at for at, _ in writer.scalars["loss/train"]] for writer in shelf.values()] == [[2, 5], [2, 5]]


def test_every_thins_out_curves_but_not_texts():
    sink = (shelf := Shelf()).sink(every=3)
    steps = [event for event in recorded_events() if isinstance(event, StepFinished)]
    changed = next(event for event in recorded_events() if isinstance(event, StageChanged))
    for number in range(8):
        sink.hear(replace(steps[0], step=number))
        sink.hear(replace(changed, step=number))
    (writer,) = shelf.values()
    assert [at for at, _ in writer.scalars["loss/train"]] == [0, 3, 6]
    assert [at for *_, at in writer.texts] == list(range(8))


def test_figures_that_are_not_finite_are_written_as_they_are():
    sink = (shelf := Shelf()).sink()
    for event in sick_events():
        sink.hear(event)
    assert math.isnan(shelf["top/grown/environment-0"].scalars["test/loss"][0][1])
    assert "reward/episode" not in shelf["top/grown/environment-0"].scalars


def test_the_sink_passes_the_conformance_checks():
    assert {result.status for result in check_sink(lambda run: Shelf().sink())} == {"passed"}


def test_a_missing_tensorboard_is_reported_with_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(EsperError) as refusal:
        tensorboard(tmp_path)
    assert str(refusal.value).splitlines() == [
        'E219 sink "watch/tensorboard" (esper-watch) needs a package that is not installed: tensorboard',
        '  Install it:  pip install "esper-watch[tensorboard]"',
    ]
    assert refusal.value.exit_code == 3


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = tensorboard(tmp_path)
    for event in recorded_events():
        sink.hear(event)
    sink.close()
    read = EventAccumulator(str(tmp_path / "tensorboard" / "grown" / "environment-0"))
    read.Reload()
    assert [(point.step, point.value) for point in read.Scalars("loss/train")] == [(0, 2.0), (1, 1.0)]
    notes = [note.tensor_proto.string_val[0].decode() for note in read.Tensors("growth/text_summary")]
    assert notes[0] == "`early`: `tried/blueprint` germinated: by the policy"
    assert {result.status for result in check_sink(tensorboard, settings={"folder": "elsewhere"})} == {"passed"}
