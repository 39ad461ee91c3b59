"""``esper probe``: a file is probed, or refused with a message."""

import json
import sys
from pathlib import Path

import pytest

FILE = """
import torch
from torch import nn

print("data are read")
torch.manual_seed(0)
stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.ReLU())
model = nn.Sequential(stem, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2))
inputs = torch.randn(200, 1, 8)
batch = inputs, (inputs.diff() > 0).float().mean((1, 2)).gt(0.5).long()


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def build():
    return model


train = validation = [batch]
rate = lambda parameters: torch.optim.SGD(parameters, 0.1)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE, encoding="utf-8")
    monkeypatch.setattr("esper_grow.probes.host.SHORTEST_INTERVAL", 2)
    monkeypatch.setattr("esper_grow.probes.host.EVALUATIONS", 2)
    monkeypatch.setattr("esper_grow.probes.host.FLAT_SHARE", 1.0)
    return "mine.py"


@pytest.mark.members
def test_a_file_is_probed_and_json_is_alone_on_stdout(esper, file: str) -> None:
    arguments = ["--slots", "0", "--blueprints", "norm", "--price", "0.5", "--steps", "9", "--json"]
    answer = esper("probe", file, *arguments)
    assert answer.status == 0
    assert str(Path.cwd()) not in sys.path
    result = json.loads(answer.out)
    assert [(row["slot"], row["blueprint"]) for row in result["rows"]] == [("0", "blueprints/norm")]
    assert (result["verdict"], result["budget"]) == ("nothing pays", 60.0)
    assert "data are read" in answer.err
    assert "host: 2 steps" in answer.err
    named = esper("probe", f"{file}:build,loss,train,validation,rate", *arguments[:-1], "--quiet")
    assert named.status == 0
    assert named.out.splitlines()[0] == "Sequential: 18 parameters, 1 slot"
    assert "Nothing pays" in named.out
    assert "host:" not in named.err


@pytest.mark.members
def test_adapters_are_placed_and_the_plan_is_written_and_printed_for_peft(esper, file: str) -> None:
    arguments = ["--adapters", "3", "--rank", "1", "--steps", "30", "--quiet", "--plan", "plan.json"]
    answer = esper("probe", file, *arguments)
    assert answer.status == 0
    assert answer.out.splitlines()[0] == "Sequential: lora(rank=1) at 1 place"
    plan = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    assert [place["slot"] for place in plan["places"]] == ["3"]
    answer = esper("probe", file, *arguments, "--to", "peft", "--html", "plan.html")
    assert (answer.status, answer.out.splitlines()[:1]) in [(0, ["LoraConfig("]), (2, [])]
    assert "Sequential: lora(rank=1) at 1 place" in answer.err
    assert Path("plan.html").exists(), "also where nothing pays"
    answer = esper("probe", file, *arguments, "--to", "peft", "--json")
    assert not answer.out or "target_modules" in json.loads(answer.out)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["{file}", "--to", "peft"], 2, "--to is for adapters"),
        (["{file}", "--rank", "2"], 2, "--rank is for adapters"),
        (["{file}", "--adapters", "mlp", "--slots", "0"], 2, "leave out --slots and --blueprints"),
        (["{file}", "--adapters", "q_proj"], 2, "E313"),
        (["{file}", "--adapters", "3", "--plan", "no/p.json"], 2, "E356 cannot write no/p.json: there is no folder"),
        (["{file}", "--adapters", "3", "--plan", "/dev/full"], 2, "E356 cannot write /dev/full: it is no file"),
        (["{file}", "--budget", "soon"], 2, "E354 the budget is not a duration"),
        (["nothing.py"], 2, "E355 there is no such file\n  nothing.py"),
        (["."], 2, "E355 this is a folder"),
        (["{file}:net,loss,train,validation"], 2, 'E355 the file defines no "net"'),
        (["{file}:model,lss,train,validation"], 2, 'Did you mean "loss"?'),
        (["{file}:model"], 2, 'E355 "model" does not name 4 objects'),
        (["{file}:loss,loss,train,validation"], 2, 'E355 "loss" raised TypeError'),
        (["{file}:loss,loss,train,validation"], 2, "is called without arguments, and has to return the model"),
        (["{file}:inputs,loss,train,validation"], 2, "E350 a probe needs a torch.nn.Module. Received: Tensor"),
        (["{file}", "--blueprints", "nrm"], 2, "E201"),
        (["raises.py"], 2, "it raised ZeroDivisionError: division by zero\n  raises.py:2"),
        (["syntax.py"], 2, "it raised SyntaxError"),
        (["needs.py"], 2, "it raised ModuleNotFoundError: No module named 'nothing_here'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_a_mistake_is_reported(esper, file: str, arguments: list[str], status: int, message: str) -> None:
    Path("raises.py").write_text("one = 1\none / 0\n", encoding="utf-8")
    Path("syntax.py").write_text("model =\n", encoding="utf-8")
    Path("needs.py").write_text("import nothing_here\n", encoding="utf-8")
    answer = esper("probe", *(argument.format(file=file) for argument in arguments))
    assert answer.status == status
    assert message in answer.err.replace(f"{Path.cwd()}/", "")
    assert not answer.out
