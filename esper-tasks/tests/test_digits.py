"""scikit-learn's digits as a task, and the error where it is missing."""

import random
import re
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from esper_core.leyline import ConfigError
from esper_tasks.digits import digits
from esper_tasks.hosts import Mlp, cnn2d


@pytest.mark.usefixtures("scikit_learn")
def test_digits_are_images_that_two_hosts_accept():
    task = digits()
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [300, 300, 300]
    train = task.split("train")
    assert abs(train.inputs.mean()) < 1e-5
    assert abs(train.inputs.std(correction=0) - 1) < 1e-5
    for host in (cnn2d, Mlp):
        assert host(task.shape)(train.inputs[:2]).shape == (2, 10)


@pytest.mark.usefixtures("scikit_learn")
def test_classes_stay_with_their_images():
    for name in ("train", "validation", "test"):
        split = digits(validation=100, test=100).split(name)
        first = split.inputs[:, 0, 0, 0].contiguous()
        assert torch.equal(torch.searchsorted(first.unique(), first), split.targets)


def test_a_missing_scikit_learn_is_reported_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    message = r"E120 the task digits needs scikit-learn[\s\S]*pip install .esper-tasks.digits.."
    with pytest.raises(ConfigError, match=message):
        digits()


@pytest.mark.usefixtures("scikit_learn")
def test_loading_leaves_pythons_random_generator_as_it_was(monkeypatch):
    """To import scikit-learn draws from it, of which a run would warn (E237)."""

    def drawing(name):
        random.random()
        return sys.modules[name]

    monkeypatch.setattr("esper_tasks.digits.import_module", drawing)
    state = random.getstate()
    digits()
    assert random.getstate() == state


def share_of_a_linear_model(seed):
    """Return its accuracy on held-out examples after 200 full-batch steps of Adam."""
    task = digits(seed=seed)
    train = task.split("train")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(200):
        optimizer.zero_grad()
        task.losses(model(train.inputs), train.targets).mean().backward()
        optimizer.step()
    held_out = [task.split(name) for name in ("validation", "test")]
    with torch.no_grad():
        scores = [task.scores(model(split.inputs), split.targets) for split in held_out]
    return torch.cat(scores).mean().item()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_the_documented_accuracy_of_a_linear_model_is_right():
    """Mean over ten splits; the page on tasks and the docstring of the task give the same figure."""
    documented = int(re.search(r"linear model classifies (\d+) %", digits.__doc__)[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        share = sum(share_of_a_linear_model(seed) for seed in range(10)) / 10
    assert round(100 * share) == documented
