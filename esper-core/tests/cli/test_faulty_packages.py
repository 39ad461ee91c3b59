"""Before a run, each blueprint that a file chooses is tried, and a wrong one is refused with its package named."""

import pytest

pytestmark = pytest.mark.members

CONFIG = """\
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [liar]}
policy: static
"""

LIAR = """
from torch import nn

class Liar(nn.Conv1d):
    def __init__(self, site):
        {build}
        super().__init__(site.channels, site.channels, 1)

    def forward(self, hidden):
        {forward}
        return super().forward(hidden)
"""


@pytest.fixture
def lie(install, tmp_path):
    """``lie(forward="…")``: install esper-liars 1.0, whose blueprint runs this code; return a file that chooses it."""

    def write(build="pass", forward="pass", params="c*c + c"):
        spec = f"Liar, BlueprintSpec('sequence', '{params}')"
        install.components("liars", LIAR.format(build=build, forward=forward), blueprint={"liar": spec})
        file = tmp_path / "liars.yaml"
        file.write_text(CONFIG)
        return file

    return write


def test_blueprint_that_breaks_its_specification_is_refused_before_training(lie, esper, tmp_path):
    """The other ways to break a specification are tested beside the trial of blueprints."""
    answer = esper("run", lie(params="c*c"), "--runs-dir", tmp_path / "runs")
    message, place, *_ = answer.err.replace(f"{tmp_path}/", "").splitlines()
    fault = 'declares 64 parameters for a sequence of shape (8, 16), by "c*c"'
    assert message.startswith(f'E325 blueprint "liars/liar" (esper-liars 1.0) {fault}')
    assert place == "  liars.yaml:4:24   slots.early.blueprints[0]"
    assert (answer.status, answer.out, (tmp_path / "runs").exists()) == (3, "", False)


@pytest.mark.parametrize(("command", "where"), [("check", "build"), ("run", "forward")])
def test_blueprint_that_ends_the_program_is_reported_as_an_error(command, where, lie, esper):
    answer = esper(command, lie(**{where: "exit(0)"}))
    assert (answer.status, answer.out) == (3, "")
    assert "esper_liars.py:" in answer.err
