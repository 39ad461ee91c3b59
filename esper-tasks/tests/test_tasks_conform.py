"""The plugin registers tasks and hosts, which pass the conformance checks; splits and examples are as declared."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from esper_core.leyline import DataShape, Metric, SlotPlace, Task
from esper_run.app.compose import prepare
from esper_tasks import plugin
from esper_tasks.byte_text import byte_text
from esper_tasks.images_synthetic import images_synthetic
from esper_tasks.marked_sum import marked_sum
from esper_tasks.mnist1d import mnist1d
from esper_tasks.stripes import stripes
from esper_tasks.supervised import drawn_parts
from esper_testing import parametrize_with_checks
from esper_testing.components import components_of

REQUIRE_SETTINGS = ("npz",)  # their own tests check them, with data


@parametrize_with_checks([component for component in components_of("tasks") if component.short not in REQUIRE_SETTINGS])
def test_it_conforms(check, request):
    if check.component == "digits" and find_spec("sklearn") is None:
        request.getfixturevalue("scikit_learn")  # a fake: the checks do not depend on its images
    check.run()


TASKS = {"bytes", "digits", "images-synthetic", "marked-sum", "mnist1d", "mnist1d-shuffled", "npz", "stripes"}
HOSTS = {"cnn1d", "cnn2d", "mlp", "pointwise-mlp", "token-mlp", "transformer", "wide-cnn1d"}


def test_the_plugin_registers_all_tasks_and_hosts(esper_plugins):
    registered = {component.short: component for component in esper_plugins(plugin).registry.components()}
    assert registered.keys() == TASKS | HOSTS
    slots = {"early": SlotPlace("stem", "sequence"), "late": SlotPlace("hidden", "vector")}
    assert registered["pointwise-mlp"].spec.slots == slots


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.members
@pytest.mark.parametrize("name", ["images", "tokens", "bytes", "control-shuffled", "no-deficit"])
def test_examples_are_valid(name):
    prepared = prepare(EXAMPLES / f"{name}.yaml")
    assert prepared.arm_names[-1] == "twin"
    assert prepared.resolution.warnings == ()


ACCURACY = Metric("accuracy", "up", "%")
PERPLEXITY = Metric("perplexity", "down", exponential=True)


@pytest.mark.parametrize(
    ("task", "shape", "metric", "lengths"),
    [
        (stripes, DataShape("sequence", (1, 16), 4), ACCURACY, (200, 100, 80)),
        (mnist1d, DataShape("sequence", (1, 40), 10), ACCURACY, (3200, 800, 1000)),
        (images_synthetic, DataShape("image", (3, 16, 16), 8), ACCURACY, (2000, 500, 500)),
        (marked_sum, DataShape("tokens", (12, 5), 4), ACCURACY, (3000, 750, 750)),
        (byte_text, DataShape("tokens", (64,), 256), PERPLEXITY, (None, 200, 200)),
    ],
)
def test_a_task_has_the_data_that_it_declares(task, shape, metric, lengths):
    """Whether the data fit the shape is a check of conformance."""
    built = task()
    assert isinstance(built, Task)
    assert (built.shape, built.metric) == (shape, metric)
    for name, count in zip(("train", "validation", "test"), lengths, strict=True):
        split = built.split(name)
        assert count in (len(split), None)
        assert split.inputs.is_contiguous()
        if task is stripes:
            counts = split.targets.bincount(minlength=shape.outputs)
            assert counts.max() - counts.min() <= 1, "classes are balanced"


def test_the_requested_number_of_examples_is_held_out():
    parts = drawn_parts(np.arange(100)[:, None], validation=15, test=20, seed=3)
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 65, "validation": 15, "test": 20}
    assert parts["train"].tolist() != sorted(parts["train"].tolist())
