"""A task for the examples beside this file: whether neighbours in a signal agree. The host sees each reading alone."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
signals = torch.randn(1200, 1, 16)
labels = (signals[..., 1:] * signals[..., :-1]).mean((1, 2)).gt(0).long()
train = DataLoader(TensorDataset(signals[:800], labels[:800]), 50)
held_out = DataLoader(TensorDataset(signals[800:], labels[800:]), 100)


class Host(nn.Sequential):
    def __init__(self):
        stem = nn.Sequential(nn.Conv1d(1, 8, 1), nn.ReLU())
        super().__init__(stem, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))


def per_example(model, batch):
    inputs, targets = batch
    return cross_entropy(model(inputs), targets, reduction="none")
