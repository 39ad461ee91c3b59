"""Ask whether a model should grow, and grow it in a training loop of its own.

    python examples/own_model.py        half a minute on a CPU

The model processes each reading of a signal by itself, and has to tell whether neighbours agree. A probe tries which
block would help it, and a Gardener grows the one that ranks first.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from esper_grow import Gardener, probe
from esper_grow.probes import ProbeResult

Batch = tuple[Tensor, Tensor]


def per_example(model: nn.Module, batch: Batch) -> Tensor:
    """Return one loss for each signal."""
    inputs, targets = batch
    return cross_entropy(model(inputs), targets, reduction="none")


def data() -> tuple[list[Batch], list[Batch]]:
    """Return batches for training and for validation, the same each time."""
    signals = torch.randn(1600, 1, 16, generator=torch.Generator().manual_seed(0))
    labels = (signals[..., 1:] * signals[..., :-1]).mean((1, 2)).gt(0).long()
    train = list(zip(signals[:800].split(50), labels[:800].split(50), strict=True))
    return train, [(signals[800:], labels[800:])]


def build() -> nn.Sequential:
    """Return the model."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv1d(1, 8, 1), nn.ReLU())
    return nn.Sequential(first, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))


def probed() -> ProbeResult:
    """Try which blocks would help behind the first layer."""
    train, validation = data()
    return probe(
        build(), per_example, train, validation, slots=["0"], blueprints=["conv_*", "pointwise"], budget="5min"
    )


def main(epochs: int = 25, run_dir: str | None = None) -> nn.Module:
    """Probe, train and grow; return the model. run_dir: folder in which to write a run for ``esper report``."""
    result = probed()
    print(result)

    model, (batches, validation) = build(), data()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    gardener = Gardener(
        model, optimizer, loss=per_example, slots=["0"], blueprints=[result.rows[0].blueprint],
        example=batches[0], validation=validation, steps=epochs, run_dir=run_dir,
    )  # fmt: skip
    with gardener:
        for _ in range(epochs):
            for batch in batches:
                optimizer.zero_grad()
                per_example(model, batch).mean().backward()
                optimizer.step()
                gardener.step(batch)
            tended = gardener.tend()
            if tended.changes:
                print(tended)
    return model


if __name__ == "__main__":
    main()
