"""The stripes task: small, seeded, and easier with neighbours."""

from __future__ import annotations

import torch
from torch import nn

from esper_core.leyline import DataShape, Task
from esper_tasks.hosts import PointwiseMlp
from esper_tasks.stripes import stripes


def test_the_task_keeps_its_contract():
    task = stripes()
    assert isinstance(task, Task)
    assert task.shape == DataShape("sequence", (1, 16), 4)
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [200, 80, 80]
    for name in ("train", "validation", "test"):
        split = task.split(name)
        assert split.inputs.dtype == torch.float32
        assert split.targets.dtype == torch.int64
        assert split.targets.bincount().tolist() == [len(split) // 4] * 4


def test_a_convolution_helps():
    task = stripes()

    def accuracy(model: nn.Module) -> float:
        train, validation = task.split("train"), task.split("validation")
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(12):
            for batch in torch.randperm(len(train)).split(20):
                optimizer.zero_grad()
                task.losses(model(train.inputs[batch]), train.targets[batch]).mean().backward()
                optimizer.step()
        with torch.no_grad():
            return task.scores(model(validation.inputs), validation.targets).mean().item()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        alone, helped = PointwiseMlp(task.shape), PointwiseMlp(task.shape)
        convolutions = nn.Conv1d(8, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 8, 5, padding=2)
        helped.stem = nn.Sequential(helped.stem, *convolutions)
        assert accuracy(helped) > accuracy(alone) + 0.15
