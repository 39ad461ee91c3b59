"""The stripes task: small, seeded, and easier with neighbours."""

import torch
from torch import nn

from esper_tasks.hosts import PointwiseMlp
from esper_tasks.stripes import stripes


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
