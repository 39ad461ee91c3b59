"""Do no harm: the governor acts in no healthy training, whatever its loss does, and in a broken one within a step.

A host that was trained before trains on under what raises losses: noise, mixup, dropout, warm restarts, wrong
labels, weight decay, losses that sum, few held-out examples, frozen weights. Meanwhile seeds grow and are kept.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from esper_core.leyline import Action, Op, Stage
from esper_core.leyline.events import GovernorActed, StageChanged
from esper_grow import Gardener
from esper_run import read_events, run
from tests.support.core_worlds import PlannedPolicy, per_example

Batch = tuple[Tensor, Tensor]
TENDS = 20
KEPT_AT = 9
"""The ``tend`` in which a plan keeps a seed; the steps after it are those in which the governor judges losses."""


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Dropout(0.0), nn.Linear(32, 3)),
    )


def dense() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Dropout(0.0)), nn.Linear(24, 3))


LINEAR = {"convolutional": "1.3", "dense": "0.1"}
"""The linear layer of each host at which an adapter grows."""

HOSTS = {"convolutional": (convolutional, "conv_light"), "dense": (dense, "mlp")}


@cache
def examples(seed: int, number: int) -> Batch:
    """Three classes of waves in noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (number,), generator=generator)
    waves = torch.sin(torch.arange(16) * (0.6 + 0.5 * labels[:, None]))
    return (waves + 0.8 * torch.randn(number, 16, generator=generator))[:, None], labels


def batches(data: Batch, size: int) -> list[Batch]:
    return list(zip(*(part.split(size) for part in data), strict=True))


@cache
def trained(kind: str) -> nn.Module:
    """A host that was trained already."""
    torch.manual_seed(0)
    model = HOSTS[kind][0]()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        for inputs, labels in batches(examples(0, 400), 40):
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return model


def noise(batch: Batch) -> Batch:
    return batch[0] + 1.5 * torch.randn_like(batch[0]), batch[1]


def mixup(batch: Batch) -> Batch:
    order, share = torch.randperm(len(batch[1])), torch.rand(())
    return share * batch[0] + (1 - share) * batch[0][order], batch[1]


def wrong_labels(batch: Batch) -> Batch:
    wrong = torch.rand(len(batch[1])) < 0.4
    return batch[0], torch.where(wrong, torch.randint(3, batch[1].shape), batch[1])


AUGMENTATIONS = {"noise": noise, "mixup": mixup, "wrong labels": wrong_labels}
CONDITIONS = (
    *("plain", "noise", "mixup", "wrong labels", "dropout", "decay", "restarts"),
    *("summed", "few held out", "frozen", "adapters"),
)


def summed(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1], reduction="sum")


def fine_tune(
    kind: str, condition: str, seed: int, *, planned: bool, after: Callable[[nn.Module, int], Any] = lambda *_: None
) -> list[Any]:
    """Train a trained host on, as the guide's loop does, and return the result of each ``tend``."""
    torch.manual_seed(seed)
    model, loss, blueprint = deepcopy(trained(kind)), per_example, HOSTS[kind][1]
    if condition == "dropout":
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.5
    slot = "0"
    if condition == "adapters":
        slot, blueprint = LINEAR[kind], "lora(rank=4)"
        model.get_submodule(slot).requires_grad_(False)
    if condition == "frozen":
        model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1.0 if condition == "decay" else 0.0)
    data = batches(examples(seed + 1, 200), 50)
    restarts = CosineAnnealingWarmRestarts(optimizer, T_0=3 * len(data)) if condition == "restarts" else None
    validation = batches(examples(99, 8 if condition == "few held out" else 120), 60)
    if condition == "summed":
        loss, validation = summed, batches(examples(99, 40), 4)
    augment, growth = AUGMENTATIONS.get(condition, lambda batch: batch), {"gates": "off"}
    plan = {
        KEPT_AT - 5: Action(Op.GERMINATE, slot, f"blueprints/{blueprint}"),
        KEPT_AT - 3: Action(Op.ADVANCE, slot),
        KEPT_AT: Action(Op.FOSSILISE, slot),
    }
    policy: Any = PlannedPolicy(plan) if planned else "heuristic"
    gardener = Gardener(
        model, optimizer, loss=loss, slots=[slot], blueprints=[blueprint], example=data[0],
        validation=validation, steps=TENDS, policy=policy, seed=seed, growth=growth,
    )  # fmt: skip
    reports = []
    for step in range(TENDS):
        for batch in map(augment, data):
            optimizer.zero_grad()
            loss(model, batch).mean().backward()
            optimizer.step()
            if restarts is not None:
                restarts.step()
            gardener.step(batch)
        after(model, step)
        reports.append(gardener.tend())
    gardener.close()
    return reports


def cases() -> list[Any]:
    """Return a hundred trainings, of which the fast suite runs one."""
    fast = {("dense", "summed", 0, True)}
    table = [
        (kind, condition, seed, planned)
        for condition in CONDITIONS
        for kind, seed, planned in (
            *((kind, seed, True) for kind in HOSTS for seed in range(3)),
            ("convolutional", 1, False), ("convolutional", 2, False), ("dense", 1, False),
        )
    ]  # fmt: skip
    return [
        pytest.param(*case, id=" ".join(map(str, case)), marks=() if case in fast else pytest.mark.slow)
        for case in table
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "condition", "seed", "planned"), cases())
def test_the_governor_does_not_act_in_a_healthy_training(kind, condition, seed, planned):
    reports = fine_tune(kind, condition, seed, planned=planned)
    assert [act for report in reports for act in report.governor] == []
    if planned:
        assert [len(report.kept) for report in reports].index(1) == KEPT_AT


GROWING = "task: stripes\nslots:\n  early: {blueprints: [conv_light, pointwise]}\nenvironments: 2\n"
RUNS = {
    f"{host} {policy} {name}": f"host: {host}\npolicy: {policy}\n{GROWING}{more}"
    for host in ("pointwise-mlp", "cnn1d")
    for policy in ("heuristic", "random")
    for name, more in {
        "small batches": "episode: {steps: 20, batches: 4, batch_size: 10}\n",
        "momentum": "episode: {steps: 20, batches: 4, batch_size: 20}\n"
        "optimizer: {host: {kind: sgd, learning_rate: 0.05}}\ngrowth: {incubation: shadow}\n",
        "schedule": "episode: {steps: 20, batches: 4, batch_size: 20}\noptimizer: {host: {schedule: cosine}}\n",
    }.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("text", RUNS.values(), ids=RUNS)
def test_the_governor_does_not_act_in_a_healthy_run(text, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    path = run(tmp_path / "run.yaml", runs_dir=tmp_path / "runs").path
    events = list(read_events(path / "events.jsonl"))
    assert [event for event in events if isinstance(event, GovernorActed)] == []
    assert any(isinstance(event, StageChanged) for event in events)


BROKEN_AT = KEPT_AT + 2


def ruin(model: nn.Module, step: int, *, factor: float, at: int = BROKEN_AT) -> None:
    """Multiply the weights of the host's last layer as a step with a huge gradient does."""
    if step == at:
        with torch.no_grad():
            model[1].weight.mul_(factor) if isinstance(model[1], nn.Linear) else model[1][3].weight.mul_(factor)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize(
    ("factor", "at"), [(-300.0, BROKEN_AT), (torch.nan, BROKEN_AT), (torch.nan, 2)], ids=["explodes", "nan", "alone"]
)
def test_a_broken_training_is_rolled_back_in_the_same_step_and_reported(kind, factor, at, caplog):
    """Soon after a seed was kept, and, where values are not finite, in a host that only trains."""
    reports = fine_tune(kind, "plain", 0, planned=True, after=partial(ruin, factor=factor, at=at))
    assert [(step, act.act) for step, report in enumerate(reports) for act in report.governor] == [(at, "roll-back")]
    assert reports[at].changes
    assert "governor: roll-back to the state after step" in str(reports[at])
    assert "governor: roll-back to step" in caplog.text
    assert reports[at].signals.validation_loss < 2 * reports[at - 1].signals.validation_loss
    assert Stage.FOSSILISED in [change.now for report in reports for change in report.moved]
