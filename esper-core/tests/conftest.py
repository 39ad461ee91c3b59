"""A small world for the core's own tests: data, a host that is hard to leave undisturbed, and a blueprint."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from esper_core.config.model import EpisodeConfig, GovernorConfig, GrowthConfig, OptimizersConfig
from esper_core.growth import Variety
from esper_core.leyline import BlueprintSpec, Metric, Site, SlotPlace, Split
from esper_core.trainer.environment import Recipe


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked ``members``, which look at the project's other packages, where the core stands alone."""
    if importlib.util.find_spec("esper_tasks") is None:
        for item in items:
            if item.get_closest_marker("members"):
                item.add_marker(pytest.mark.skip(reason="needs the project's other members"))


class NoisyHost(nn.Module):
    """BatchNorm and dropout: whoever disturbs buffers or random numbers is found out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.hidden(self.drop(self.stem(inputs))))


class LocalConv(nn.Module):
    """x + conv(relu(conv(x))), the last one zero: the identity at birth."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.first = nn.Conv1d(site.channels, site.channels, 3, padding=1)
        self.last = nn.Conv1d(site.channels, site.channels, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        assert self.last.bias is not None
        nn.init.zeros_(self.last.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.last(torch.relu(self.first(hidden)))


class ToyTask:
    """Three classes of bumps on noise, told apart by the bump's shape."""

    metric = Metric("accuracy", "up", "%")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets).float()


def toy_split(examples: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    shapes = torch.tensor([[1.0, 2.0, 1.0], [2.0, -1.0, 2.0], [-1.0, 0.0, 1.0]])
    targets = torch.randint(0, 3, (examples,), generator=generator)
    inputs = 0.1 * torch.randn(examples, 1, 12, generator=generator)
    for row, (target, start) in enumerate(
        zip(targets, torch.randint(0, 9, (examples,), generator=generator), strict=True)
    ):
        inputs[row, 0, start : start + 3] += shapes[target]
    return Split(inputs, targets)


LOCAL_CONV = Variety("test/local-conv", BlueprintSpec("sequence", "6*c*c + 2*c", starts_as_identity=True), LocalConv)


@pytest.fixture
def noisy_host() -> Callable[[], nn.Module]:
    """Builds a host from torch's default generator."""
    return NoisyHost


@pytest.fixture
def local_conv() -> Variety:
    return LOCAL_CONV


@pytest.fixture
def make_recipe() -> Callable[..., Recipe]:
    """``make_recipe(steps=…, batches=…, varieties=…)``: what environments of the small world have in common."""

    def make(
        *,
        steps: int = 6,
        batches: int = 3,
        host: Callable[[], nn.Module] = NoisyHost,
        variety: Variety = LOCAL_CONV,
        place: SlotPlace | None = None,
        optimizer: dict[str, object] | None = None,
        embargo: int = 2,
        governor: dict[str, object] | None = None,
    ) -> Recipe:
        own = {"learning_rate": 1e-2, **(optimizer or {})}
        return Recipe(
            task=ToyTask(),
            data={"train": toy_split(120, 1), "validation": toy_split(60, 2), "test": toy_split(60, 3)},
            build_host=host,
            slots={"early": place or SlotPlace("stem")},
            varieties={"early": (variety,)},
            episode=EpisodeConfig(steps=steps, batches=batches, batch_size=20),
            optimizers=OptimizersConfig.model_validate({"host": own, "seed": own}),
            growth=GrowthConfig(embargo=embargo),
            governor=GovernorConfig.model_validate(governor or {}),
            device=torch.device("cpu"),
        )

    return make
