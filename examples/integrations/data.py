"""A task for the examples beside this file: whether neighbours in a signal agree. The model sees each reading alone."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

torch.manual_seed(0)
signals = torch.randn(1200, 1, 16)
labels = (signals[..., 1:] * signals[..., :-1]).mean((1, 2)).gt(0).long()
examples = [{"signals": signal, "labels": label} for signal, label in zip(signals, labels, strict=True)]
train, held_out = DataLoader(examples[:800], 50), DataLoader(examples[800:], 100)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 8, 1), nn.ReLU())
        self.head = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))

    def forward(self, signals, labels):
        logits = self.head(self.stem(signals))
        return {"loss": cross_entropy(logits, labels), "logits": logits}
