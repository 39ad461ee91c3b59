"""Dispatch of a run's hooks: observers, health checks, ``esper_run`` and report sections, and faults in each."""

from __future__ import annotations

import pytest

from esper_core import read_events
from esper_core.app.compose import prepare
from esper_core.leyline import GovernorStop, PluginError
from esper_core.leyline.events import EpisodeFinished, GovernorActed

DIARY = """
from esper_core import hookimpl

heard = []

@hookimpl
def esper_configured(config): heard.append(("configured", config))

@hookimpl
def esper_run_started(run): heard.append(("started", run))

@hookimpl
def esper_step_finished(events): heard.append(("step", events))

@hookimpl
def esper_stage_changed(event): heard.append(("stage", event))

@hookimpl
def esper_governor_acted(event): heard.append(("governor", event))

@hookimpl
def esper_run_finished(run, outcome): heard.append(("finished", run, outcome))
"""


@pytest.fixture
def diary(install):
    """What an observer heard."""
    install("diary", DIARY)
    import importlib

    return lambda: importlib.import_module("esper_diary").heard


@pytest.mark.members
def test_observers_are_called_in_order_with_all_environments(diary, run_small) -> None:
    told = run_small()
    heard = diary()
    names = [what for what, *_ in heard]
    assert (names[:2], names[-1], names.count("step")) == (["configured", "started"], "finished", 3)
    run = heard[1][1]
    assert (run.id, run.path, run.arms, run.environments, run.steps, run.device) == (
        told["path"].name, told["path"], ("schedule", "twin", "capacity"), 2, 3, "cpu",
    )  # fmt: skip
    for _, events in [one for one in heard if one[0] == "step"]:
        assert {(event.arm, event.seed) for event in events} == {(arm, seed) for arm in run.arms[:2] for seed in (0, 1)}
    _, again, outcome = heard[-1]
    assert again == run
    assert (outcome.status, outcome.reason) == ("done", "")
    assert outcome.results["metric"]["name"] == "accuracy"


@pytest.mark.members
def test_hook_arguments_cannot_be_changed(diary, run_small) -> None:
    run_small()
    heard = diary()
    config = heard[0][1]
    assert config.settings is None
    assert config.values["task"]["use"] == "tasks/stripes"
    with pytest.raises(TypeError):
        config.values["slots"]["early"]["stack"] = 7
    with pytest.raises(AttributeError):
        config.values["slots"]["early"]["blueprints"].append("x")
    with pytest.raises(AttributeError):
        heard[1][1].steps = 7
    with pytest.raises(TypeError):
        heard[-1][2].results["arms"] = {}


FAULTY = """
from esper_core import hookimpl

calls = []

@hookimpl
def esper_step_finished(events):
    calls.append("step")
    print("noise")
    raise ValueError("my disk is full")

@hookimpl
def esper_run_finished(run, outcome):
    calls.append("finished")
"""


@pytest.mark.members
def test_observer_that_raises_is_not_called_again_and_others_are(install, diary, run_small, caplog, capsys) -> None:
    path = install("faulty", FAULTY)
    run_small()
    import esper_faulty

    assert esper_faulty.calls == ["step"]
    assert [what for what, *_ in diary()].count("step") == 3
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == (
        'E228 plugin "faulty" (esper-faulty 1.0) failed in esper_step_finished: ValueError: my disk is full;'
        " its observers are not called again in this run\n"
        f"  {path}:9\n"
        "  Tell the author of esper-faulty, or leave it out:  plugins.disable: [faulty]"
    )
    assert capsys.readouterr().out == ""


@pytest.mark.members
def test_system_exit_in_an_observer_does_not_end_the_run(install, run_small, caplog) -> None:
    install(
        "quitter",
        "from esper_core import hookimpl\n@hookimpl\ndef esper_run_started(run): raise SystemExit(0)\n",
    )
    assert run_small()["manifest"]["status"] == "done"
    assert "failed in esper_run_started: SystemExit: 0" in caplog.text


GUARD = """
from esper_core import hookimpl
from esper_core.leyline import Level, Verdict

@hookimpl
def esper_check_health(snapshot):
    {body}
"""


def guarded(install, run_small, body: str, error: type[Exception]) -> str:
    path = install("guard", GUARD.format(body=body))
    with pytest.raises(error) as caught:
        run_small("governor: {rollback: false}\n")
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.members
def test_panic_verdict_of_a_plugin_stops_the_run(install, diary, run_small) -> None:
    body = "return Verdict(Level.PANIC, 'too hot') if (snapshot.arm, snapshot.signals.step) == ('twin', 1) else None"
    assert guarded(install, run_small, body, GovernorStop) == (
        'E402 arm "twin", seed 0, step 1: too hot, says plugin "guard" (esper-guard 1.0); '
        "rolling back is switched off (governor.rollback)"
    )
    names = [what for what, *_ in diary()]
    assert names[-3:] == ["governor", "step", "finished"]
    _, _, outcome = diary()[-1]
    assert (outcome.status, outcome.results) == ("stopped", None)
    assert "too hot" in outcome.reason


@pytest.mark.members
@pytest.mark.parametrize(("level", "act", "steps"), [("PANIC", "roll-back", 3), ("ENOUGH", "early-stop", 2)])
def test_verdict_of_a_plugin_is_acted_upon(install, run_small, level: str, act: str, steps: int) -> None:
    install("guard", GUARD.format(body=f"return Verdict(Level.{level}, 'so') if snapshot.signals.step == 1 else None"))
    events = list(read_events(run_small()["path"] / "events.jsonl"))
    acted = [event for event in events if isinstance(event, GovernorActed)]
    assert {(one.act, one.step) for one in acted} == {(act, 1)}
    assert all(one.reason.startswith('so, says plugin "guard" (esper-guard 1.0)') for one in acted)
    assert {one.arm for one in acted} == ({"schedule", "twin"} if level == "PANIC" else {"schedule"})
    ends = [event for event in events if isinstance(event, EpisodeFinished)]
    assert {end.steps for end in ends if end.arm == "schedule"} == {steps}
    assert {end.steps for end in ends if end.arm == "twin"} == {3}


@pytest.mark.members
def test_calm_verdict_does_not_cancel_the_governors_panic(install, run_small, monkeypatch) -> None:
    from esper_core.governor import Judgement, LossHistory, governor as governing
    from esper_core.leyline import Level, Verdict

    panic = Judgement(Verdict(Level.PANIC, "a loss is not finite"), LossHistory())
    monkeypatch.setattr(governing, "judge_step", lambda *arguments, **named: panic)
    told = guarded(install, run_small, "return Verdict(Level.CALM, 'all is well')", GovernorStop)
    assert told.startswith('E402 arm "schedule", seed 0, step 0: a loss is not finite; rolling back is switched off')


@pytest.mark.members
def test_health_check_that_raises_stops_the_run(install, run_small) -> None:
    assert guarded(install, run_small, "return 1 / 0", PluginError) == (
        'E231 plugin "guard" (esper-guard 1.0) raised ZeroDivisionError in esper_check_health: division by zero\n'
        "  FILE:6\n"
        "  Fix its code, or tell its author."
    )


@pytest.mark.members
@pytest.mark.parametrize(
    ("given", "received"), [("'fine'", "'fine'"), ("Verdict('hot')", "Verdict(level='hot', reason='')")]
)
def test_health_check_without_a_verdict_stops_the_run(install, run_small, given: str, received: str) -> None:
    assert guarded(install, run_small, f"return {given}", PluginError) == (
        f'E229 plugin "guard" (esper-guard 1.0) gives no verdict: esper_check_health returned {received}\n'
        "  FILE:4\n"
        "  Return Verdict(Level.PANIC, reason), Verdict(Level.CALM), or None."
    )


AROUND = """
from esper_core import hookimpl

seen = []

@hookimpl(wrapper=True)
def esper_run(context):
    {before}
    result = yield
    seen.append(context.run.id)
    {after}
    return result
"""


@pytest.mark.members
def test_esper_run_wraps_the_run(install, run_small) -> None:
    install("around", AROUND.format(before="pass", after="pass"))
    told = run_small()
    import esper_around

    assert esper_around.seen == [told["path"].name]


@pytest.mark.members
def test_value_returned_by_a_wrapper_is_ignored(install, run_small) -> None:
    plain = run_small()["summary"]["results"]
    install("around", AROUND.format(before="pass", after="return []"))
    assert run_small()["summary"]["results"] == plain


@pytest.mark.members
def test_wrapper_cannot_suppress_a_failed_run(install, run_small) -> None:
    install("around", "from esper_core import hookimpl\n@hookimpl(wrapper=True)\ndef esper_run(context):\n"
            "    try:\n        yield\n    except Exception:\n        return []\n")  # fmt: skip
    guarded(install, run_small, "return Verdict(Level.PANIC, 'too hot')", GovernorStop)


@pytest.mark.members
def test_wrapper_that_raises_before_the_run_stops_it(install, run_small) -> None:
    path = install("around", AROUND.format(before="raise OSError('no device')", after="pass"))
    install("other", AROUND.format(before="pass", after="pass"))
    with pytest.raises(PluginError) as caught:
        run_small()
    assert str(caught.value) == (
        'E231 plugin "around" (esper-around 1.0) raised before the run began, in esper_run: OSError: no device\n'
        f"  {path}:7\n"
        "  Tell the author of esper-around, or leave it out:  plugins.disable: [around]"
    )


@pytest.mark.members
def test_wrapper_that_raises_after_the_run_is_reported(install, run_small, caplog) -> None:
    path = install("around", AROUND.format(before="pass", after="raise OSError('no device')"))
    assert run_small()["manifest"]["status"] == "done"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == (
        'E228 plugin "around" (esper-around 1.0) failed in esper_run: OSError: no device;'
        " the run had finished, and its results stand\n"
        f"  {path}:10\n"
        "  Tell the author of esper-around, or leave it out:  plugins.disable: [around]"
    )


@pytest.mark.members
def test_preparing_a_run_calls_no_observer(diary, configured) -> None:
    prepare(configured())
    assert diary() == []


CRITIC = """
from esper_core import hookimpl
from esper_core.leyline import ReportSection

@hookimpl
def esper_report_sections(run):
    lines = (run.path / "events.jsonl").read_text().count("\\n")
    return [ReportSection("Events", f"{lines} lines\\nof {run.id}"), ReportSection("More", "Nothing.")]
"""


@pytest.mark.members
def test_report_sections_are_kept_in_the_summary(install, run_small) -> None:
    install("critic", CRITIC)
    told = run_small()
    lines = (told["path"] / "events.jsonl").read_text().count("\n")
    assert told["summary"]["sections"] == [
        {"plugin": "critic", "title": "Events", "text": f"{lines} lines\nof {told['path'].name}"},
        {"plugin": "critic", "title": "More", "text": "Nothing."},
    ]


@pytest.mark.members
@pytest.mark.parametrize(
    "wrong",
    [
        *("1 / 0", "'words'", "[1]", "7"),
        *("[ReportSection(1, 'x')]", "[ReportSection('x', None)]", "[ReportSection('', 'x')]"),
        "[ReportSection('two\\nlines', 'x')]",
    ],
)
def test_invalid_report_section_is_reported_and_the_others_stay(wrong: str, install, run_small) -> None:
    install(
        "bad",
        "from esper_core import hookimpl\nfrom esper_core.leyline import ReportSection\n\n"
        f"@hookimpl\ndef esper_report_sections(run):\n    return {wrong}\n",
    )
    install("critic", CRITIC)
    summary = run_small()["summary"]
    assert [section["plugin"] for section in summary["sections"]] == ["critic", "critic"]
    (warning,) = summary["warnings"]
    assert "E228" in warning
    assert "esper-bad 1.0" in warning
    assert "does without its sections" in warning


@pytest.mark.members
def test_report_sections_may_be_none(install, run_small) -> None:
    install(
        "silent", "from esper_core import hookimpl\n\n@hookimpl\ndef esper_report_sections(run):\n    return None\n"
    )
    summary = run_small()["summary"]
    assert (summary["sections"], summary["warnings"]) == ([], [])
