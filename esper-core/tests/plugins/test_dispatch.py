"""Dispatch: each plugin is called on its own, and a fault in one hook of a run is attributed to it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from esper_core.leyline import PluginError
from esper_core.leyline.events import GovernorActed, RunFinished, StepFinished, UpdateFinished
from esper_core.leyline.protocols import RunContext, RunInfo, RunOutcome
from esper_core.leyline.signals import CALM, HealthSnapshot, Level, Signals, Verdict
from esper_core.plugins.dispatch import Observers, collect_sections, health_check, run_wrapped

RUN = RunInfo("otter", Path("runs/otter"), ("grown",), 1, 1, 4, "cpu")
SIGNALS = Signals(0, 1.0, 1.0, 0.5, 9, 9, ())
STEP = StepFinished(round=0, arm="grown", seed=0, step=0, signals=SIGNALS)
SNAPSHOT = HealthSnapshot(0, "grown", 0, SIGNALS)

DIARY = """
from esper_core import hookimpl
heard = []
@hookimpl
def esper_configured(config): heard.append(("configured", config.settings, config.values["steps"]))
@hookimpl
def esper_run_started(run): heard.append(("started", run.id))
@hookimpl
def esper_step_finished(events): heard.append(("step", len(events)))
@hookimpl
def esper_update_finished(event): heard.append(("update", event.arm))
@hookimpl
def esper_governor_acted(event): heard.append(("governor", event.act))
@hookimpl
def esper_run_finished(run, outcome): heard.append(("finished", run.id, outcome.status))
"""


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, workshop):
    """The warnings so far, without the folder of the modules."""
    caplog.set_level(logging.WARNING, logger="esper")
    return lambda: [record.getMessage().replace(f"{workshop.folder}/", "") for record in caplog.records]


def test_observers_receive_the_events_that_have_a_hook(load, workshop, warnings) -> None:
    observers = Observers(load(workshop.package(DIARY)))
    observers.configured({"extra": "own"}, {"steps": [4]})
    observers.run_started(RUN)
    observers.hear(STEP)
    observers.hear(STEP)
    observers.hear(UpdateFinished(round=0, arm="grown", figures={}))
    observers.hear(GovernorActed(round=0, arm="a", seed=0, step=0, act="warn", verdict="warning", reason="hot"))
    observers.hear(RunFinished(status="done"))
    observers.settle()
    observers.settle()
    observers.run_finished(RUN, RunOutcome("done"))
    import esper_extra

    assert esper_extra.heard == [
        ("configured", "own", (4,)),
        ("started", "otter"),
        ("update", "grown"),
        ("governor", "warn"),
        ("step", 2),
        ("finished", "otter", "done"),
    ]
    assert warnings() == []


@pytest.mark.parametrize("error", ["ValueError('full')", "SystemExit('full')", "GeneratorExit('full')"])
def test_an_observer_that_raises_is_reported_once_and_its_plugin_is_left_out(error, load, workshop, warnings) -> None:
    source = DIARY.replace('heard.append(("started", run.id))', f"raise {error}")
    observers = Observers(load(workshop.package(source), workshop.package(DIARY, plugin="other")))
    observers.run_started(RUN)
    observers.run_started(RUN)
    observers.run_finished(RUN, RunOutcome("failed"))
    import esper_extra
    import esper_other

    assert esper_extra.heard == []
    assert [what for what, *_ in esper_other.heard] == ["started", "started", "finished"]
    assert warnings() == [
        'E228 plugin "extra" (esper-extra 0.2.0) failed in esper_run_started: '
        f"{error.partition('(')[0]}: full;"
        " its observers are not called again in this run\n"
        "  esper_extra.py:6\n"
        "  Tell the author of esper-extra, or leave it out:  plugins.disable: [extra]"
    ]


HEALTH = """
from esper_core import hookimpl
from esper_core.leyline import Level, Verdict
@hookimpl
def esper_check_health(snapshot):
    return {verdict}
"""


def test_the_most_severe_verdict_counts_and_names_its_plugin(load, workshop) -> None:
    mild = workshop.package(HEALTH.format(verdict="Verdict(Level.WARNING, 'warm')"), plugin="mild")
    hot = workshop.package(HEALTH.format(verdict="Verdict(Level.PANIC)"), plugin="hot")
    silent = workshop.package(HEALTH.format(verdict="None"), plugin="silent")
    expected = Verdict(Level.PANIC, 'no reason was given, reported by plugin "hot" (esper-hot 0.2.0)')
    assert health_check(load(mild, hot, silent))(SNAPSHOT) == expected
    assert health_check(load(mild))(SNAPSHOT).reason == 'warm, reported by plugin "mild" (esper-mild 0.2.0)'
    assert health_check(load(silent))(SNAPSHOT) == CALM


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        ("1 / 0", 'E231 plugin "extra" (esper-extra 0.2.0) raised ZeroDivisionError in esper_check_health: division'),
        ("exit(0)", 'E231 plugin "extra" (esper-extra 0.2.0) raised SystemExit in esper_check_health: 0'),
        ("'fine'", 'E229 plugin "extra" (esper-extra 0.2.0) gives no verdict: esper_check_health returned'),
        ("Verdict('hot')", 'E229 plugin "extra" (esper-extra 0.2.0) gives no verdict: esper_check_health returned'),
    ],
)
def test_a_health_check_without_a_verdict_is_an_error(load, workshop, verdict: str, message: str) -> None:
    check = health_check(load(workshop.package(HEALTH.format(verdict=verdict))))
    with pytest.raises(PluginError) as refused:
        check(SNAPSHOT)
    (problem,) = refused.value.problems
    assert str(problem).startswith(message)
    assert problem.file == str(workshop.folder / "esper_extra.py")


SECTIONS = """
from esper_core import hookimpl
from esper_core.leyline import ReportSection
@hookimpl
def esper_report_sections(run):
    return {sections}
"""


def test_sections_are_collected_and_those_of_a_faulty_plugin_left_out(load, workshop, warnings) -> None:
    good = workshop.package(SECTIONS.format(sections="[ReportSection(run.id, 'one\\ntwo')]"), plugin="good")
    none = workshop.package(SECTIONS.format(sections="None"), plugin="none")
    invalid = [
        "1",
        "ReportSection(1, '')",
        "ReportSection('x', None)",
        "ReportSection('', 'x')",
        "ReportSection('x\\ny', '')",
    ]
    returned = [*(f"[ReportSection('fine', ''), {section}]" for section in invalid), "'words'", "7", "1 / 0"]
    bad = [workshop.package(SECTIONS.format(sections=one), plugin=f"bad{n}") for n, one in enumerate(returned)]
    (section,) = collect_sections(load(good, none, *bad), RUN)
    assert section.as_json() == {"plugin": "good", "title": "otter", "text": "one\ntwo"}
    assert [line.split(": ")[0] for line in warnings()] == [
        f'E228 plugin "bad{n}" (esper-bad{n} 0.2.0) failed in esper_report_sections' for n in range(len(bad))
    ]


WRAPPER = """
from esper_core import hookimpl
calls = []
@hookimpl(wrapper=True)
def esper_run(context):
    {before}
    try:
        result = yield
    finally:
        calls.append(context.run.id)
    {after}
    return None
"""


def wrapper(workshop, before: str = "pass", after: str = "pass", plugin: str = "extra"):
    return workshop.package(WRAPPER.format(before=before, after=after), plugin=plugin)


def test_a_wrapper_surrounds_the_run_and_does_not_change_its_result(load, workshop, warnings) -> None:
    assert run_wrapped(load(wrapper(workshop)), RunContext(RUN), lambda: 7) == 7
    assert run_wrapped(load(), RunContext(RUN), lambda: 8) == 8
    import esper_extra

    assert esper_extra.calls == ["otter"]
    assert warnings() == []


def test_a_wrapper_that_raises_before_the_run_stops_it(load, workshop) -> None:
    plugins = load(wrapper(workshop, before="1 / 0"), wrapper(workshop, plugin="outer"))
    with pytest.raises(PluginError) as refused:
        run_wrapped(plugins, RunContext(RUN), lambda: pytest.fail("the run began"))
    (problem,) = refused.value.problems
    assert (problem.code, problem.line) == ("E231", 5)
    assert problem.message.startswith(
        'plugin "extra" (esper-extra 0.2.0) raised before the run began, in esper_run: ZeroDivisionError'
    )


def test_a_wrapper_that_raises_after_the_run_is_reported_and_the_results_stand(load, workshop, warnings) -> None:
    assert run_wrapped(load(wrapper(workshop, after="1 / 0")), RunContext(RUN), lambda: 7) == 7
    (line,) = warnings()
    assert line.startswith('E228 plugin "extra" (esper-extra 0.2.0) failed in esper_run: ZeroDivisionError')
    assert "; the run had finished, and its results stand\n  esper_extra.py:10\n" in line


def test_a_failure_of_the_run_is_raised_whatever_a_wrapper_does(load, workshop, warnings) -> None:
    def train() -> int:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        run_wrapped(load(wrapper(workshop)), RunContext(RUN), train)
    hides = wrapper(workshop, after="pass", plugin="hides")
    source = workshop.folder / "esper_hides.py"
    source.write_text(source.read_text().replace("    finally:", "    except RuntimeError:"))
    with pytest.raises(RuntimeError, match="no memory"):
        run_wrapped(load(hides), RunContext(RUN), train)
    assert warnings() == []
