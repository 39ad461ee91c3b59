"""Blueprints that raise: a lost seed is told everywhere, and a blueprint of which none survives ends the run with 3."""

import json

import pytest

from esper_core.leyline.events import SeedLost
from esper_run.app.lost_seeds import SeedLosses
from tests.support.hostile_plugin import plugin

pytestmark = pytest.mark.install  # CI runs it for every change

RUN = """
plugins: {local: [bad.py]}
task: stripes
host: cnn1d
slots: {early: {blueprints: [bad/b0]}}
policy: heuristic
growth: {gates: "off"}
environments: 2
capacity: false
episode: {steps: 16, batches: 1, batch_size: 20}
"""


@pytest.fixture
def raising(esper, tmp_path):
    """``raising(plugin)``: run its first blueprint; return the answer and the run directory."""

    def run(source: str, *options: str):
        (tmp_path / "bad.py").write_text(source)
        (tmp_path / "run.yaml").write_text(RUN)
        answer = esper("run", tmp_path / "run.yaml", "--runs-dir", tmp_path / "runs", *options)
        (folder,) = (tmp_path / "runs").iterdir()
        return answer, folder

    return run


def late(most: int) -> str:
    """Return a plugin of which so many seeds at most raise, each when it has trained for three batches."""
    code = f"""\
self.calls = getattr(self, "calls", 0) + 1
if self.calls > 3 and len(KEPT) < {most}:
    KEPT.append(self)
    raise ZeroDivisionError("no more")
"""
    return plugin({"import": "KEPT = []"}, {0: ("training", code)})


def test_a_blueprint_whose_every_seed_raised_ends_the_run_with_a_line_and_3(raising, esper):
    answer, run = raising(late(9), "--quiet")
    assert answer.status == 3
    (line,) = [line for line in answer.err.splitlines() if line.startswith("E320 no seed of a blueprint survived")]
    for named in ("2 of 2 seeds of bad/b0", "ZeroDivisionError: no more (bad.py:", "from local file "):
        assert named in line
    assert answer.out.splitlines()[-3:] == [
        "Nothing was kept: every network ended with the parts it started with, like its twin. "
        "Seeds were lost to errors.",
        "Fix the blueprints whose seeds were lost, and test them:",
        "  esper plugins check bad.py",
    ]
    manifest, summary = (json.loads((run / f"{name}.json").read_text()) for name in ("manifest", "summary"))
    assert (manifest["status"], manifest["exit"], summary["status"]) == ("done", 3, "done")
    assert "Lost 2 of 2 seeds of bad/b0" in esper("runs", "show", run).out
    assert (run / "log.txt").read_text().count(" a seed is lost (arm heuristic, RNG seed ") == 2
    assert " trains by itself: a pass changes attributes" in (run / "log.txt").read_text()


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--quiet", "--json"]])
def test_a_lost_seed_is_told_whatever_the_exit_code(raising, options):
    answer, run = raising(late(1), *options)
    assert answer.status == 0
    (lost,) = json.loads((run / "summary.json").read_text())["lost_seeds"]
    assert (lost["lost"], lost["tried"]) == (1, 2)
    assert answer.err.count("E320 a seed of local file ") == 1
    if "--json" not in options:
        assert "Lost 1 of 2 seeds of bad/b0" in answer.out


def test_a_blueprint_whose_seeds_were_lost_to_numbers_may_survive_elsewhere():
    losses = SeedLosses()
    place = {"round": 0, "arm": "heuristic", "seed": 0, "step": 1, "slot": "early", "package": "bad 1.0"}
    losses.hear(SeedLost(**place, blueprint="bad", what="made its loss nan", withdrawn=False, blame="numbers"))
    assert [lost.is_hopeless for lost in losses.counted()] == [False]


CHANGED = {
    "raised ZeroDivisionError": plugin({"import": "BUILT = []"}, {0: ("factory", "BUILT.append(1 / (not BUILT))")}),
    "changed torch's gradient mode": plugin({}, {0: ("training", "torch.set_grad_enabled(False)")}),
}
"""What seeds do once the run has begun."""


@pytest.mark.parametrize(("what", "source"), CHANGED.items())
def test_a_blueprint_that_fails_only_after_it_was_checked_is_a_lost_seed(what, source, raising):
    answer, _ = raising(source, "--quiet")
    assert answer.status == 3, answer.err
    assert "E320 no seed of a blueprint survived" in answer.err
    assert what in answer.err
    assert "bug in Esper" not in answer.err
