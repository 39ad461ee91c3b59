"""What a Gardener does in a loop: it reports, keeps what pays, writes a run directory, and ends."""

from typing import Any

import pytest
import torch

from esper_core import EsperError
from esper_core.growth import slots_of
from esper_core.leyline import Action, Op
from esper_core.leyline.events import EpisodeFinished, RunFinished, RunStarted, StageChanged, StepFinished
from esper_run import load_run, read_events
from esper_run.runs.directory import is_locked
from esper_run.runs.findings import next_command
from esper_run.runs.records import read_growth
from tests.support.core_worlds import per_example, same
from tests.support.loops import life, make_loop


def stages(tended: Any) -> list[str]:
    return [change.now.value for change in tended.changes]


def test_a_seed_lives_through_its_stages_and_is_kept():
    loop = make_loop().tended()
    seen = loop.epochs(5)
    expected = [["germinated"], ["training", "blending"], ["holding"], ["fossilised"], []]
    assert [stages(report) for report in seen] == expected
    assert [fossil.blueprint for fossil in seen[3].kept] == [loop.variety.id]
    assert "stem: test/local-conv is kept" in str(seen[3])
    before = [parameter.detach().clone() for parameter in loop.seed.parameters()]
    loop.epoch()
    assert all(not torch.equal(old, parameter) for old, parameter in zip(before, loop.seed.parameters(), strict=True))


def test_a_pruned_seed_leaves_host_and_optimizer_as_they_were():
    plan = {0: Action(Op.GERMINATE, "stem", "test/local-conv"), 2: Action(Op.PRUNE, "stem")}
    plain, grown = make_loop(), make_loop().tended(plan)
    assert [grown.stays_as(plain) for _ in range(5)] == [True] * 5
    assert len(grown.optimizer.state) == len(plain.optimizer.state)
    assert len(slots_of(grown.model).named("stem").seeds) == 0


def test_what_the_policy_concludes_is_reported_once_nothing_lives():
    loop = make_loop().tended({0: Action(Op.GERMINATE, "stem", "test/local-conv"), 2: Action(Op.PRUNE, "stem")})
    loop.policy.conclusions = lambda: ["nothing pays: all candidates were tried"]
    reports = loop.epochs(4)
    assert [bool(report.concluded) for report in reports] == [True, False, False, True]
    assert str(reports[-1]).endswith("policy: nothing pays: all candidates were tried")


def test_nothing_germinates_after_the_planned_steps_and_living_seeds_finish():
    loop = make_loop().tended(life("stem", "test/local-conv"), steps=2)
    loop.epochs(2)
    loop.policy.plan = {1: Action(Op.WAIT)}
    assert stages(loop.epoch()) == ["holding"]
    loop.policy.plan = {1: Action(Op.FOSSILISE, "stem")}
    assert stages(loop.epoch()) == ["fossilised"]
    seen = [(signals.step, signals.batches) for signals in loop.policy.seen]
    assert seen == [(step, len(loop.batches)) for step in (0, 1, 1, 1)]
    assert Op.GERMINATE in loop.policy.masks[0].ops["stem"]
    assert all(Op.GERMINATE not in mask.ops["stem"] for mask in loop.policy.masks[2:])


def test_closing_prunes_what_was_not_kept_and_takes_the_hooks_off():
    loop = make_loop().tended({0: Action(Op.GERMINATE, "stem", "test/local-conv")})
    loop.epochs(2)
    loop.gardener.close()
    loop.gardener.close()
    assert len(list(loop.model.parameters())) == len(loop.optimizer.param_groups[0]["params"])
    assert not loop.optimizer._optimizer_step_post_hooks
    with pytest.raises(EsperError, match="E346"):
        loop.gardener.step(loop.batches[0])
    loop.gardener = None
    loop.epoch()


def test_a_model_can_end_with_the_average_of_its_weights():
    plain, averaged = make_loop().tended(), make_loop().tended(growth={"gates": "off", "final_weights": "average"})
    for loop in (plain, averaged):
        torch.manual_seed(0)
        loop.epochs(6)
        loop.gardener.close()
    assert plain.gardener.final_losses is None
    parameters = [list(loop.model.parameters()) for loop in (averaged, plain)]
    assert not same(*parameters)
    expected = [per_example(loop.model.eval(), loop.validation[0]).mean().item() for loop in (averaged, plain)]
    assert averaged.gardener.final_losses == pytest.approx(tuple(expected), abs=1e-6)


def test_a_loop_that_was_closed_is_a_finished_run(tmp_path):
    loop = make_loop().tended(run_dir=tmp_path, name="mine")
    path = loop.gardener.path
    assert is_locked(path)
    reports = loop.epochs(5)
    loop.gardener.close()
    assert not is_locked(path)
    run = load_run(path)
    assert run.status == "done"
    assert path.name.endswith("-mine")
    assert read_growth(load_run(path)) == {loop.gardener.arm: [[f"{loop.variety.id} in stem"]]}
    events = list(read_events(path / "events.jsonl"))
    assert isinstance(events[0], RunStarted)
    assert [type(event) for event in events[-2:]] == [EpisodeFinished, RunFinished]
    assert events[-2].alone is None, "a loop has one network, of which nothing is to be said"
    assert next_command(run.results, "RUN", lost="")[1] == "esper runs show RUN --seeds"
    stepped = [event.signals for event in events if isinstance(event, StepFinished)]
    assert stepped == [report.signals for report in reports]
    changes = [event for event in events if isinstance(event, StageChanged)]
    assert changes == [change for report in reports for change in report.changes]
    assert {change.arm for change in changes} == {loop.gardener.arm}


def test_a_program_that_ends_without_close_is_warned(monkeypatch, caplog):
    at_exit = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    loop = make_loop().tended()
    at_exit[-1]()
    assert caplog.text.count("E371 the program ends without gardener.close()") == 1
    loop.gardener.close()
    at_exit[-1]()
    assert caplog.text.count("the program ends") == 1


def test_an_error_in_the_loop_is_how_the_run_ended_and_only_the_loop_resumes_it(tmp_path, esper):
    loop = make_loop().tended(run_dir=tmp_path)
    loop.epoch()
    with pytest.raises(ZeroDivisionError), loop.gardener:
        raise ZeroDivisionError
    run = load_run(loop.gardener.path)
    assert run.status == "failed"
    assert "ZeroDivisionError" in run.manifest["reason"]
    assert "in its own loop:  gardener.load_state_dict" in run.resume_hint
    assert esper("resume", str(run.path)).err.startswith("E413")


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = make_loop().tended()
    loop.epoch()
    loop.gardener.close()
    assert (loop.gardener.path, list(tmp_path.iterdir())) == (None, [])
