"""Instances of a family depend on their number only."""

import pytest
import torch

from esper_core.leyline import DataShape
from esper_tasks.hosts import PointwiseMlp
from esper_tasks.mnist1d import mnist1d, mnist1d_shuffled
from esper_tasks.signals_family import SIGNALS, signals_family, signals_family_host

SHAPE = DataShape("sequence", (1, 40), 10)


def test_instances_of_both_parts_have_different_seeds():
    train, held_out = SIGNALS.train_instances(300), SIGNALS.held_out_instances(300)
    seeds = [one.seed for one in (*train, *held_out)]
    assert len(set(seeds)) == 600
    assert {seed % 2 for seed in seeds[:300]} == {0}
    assert 42 not in seeds


def test_instances_cover_the_ranges_of_the_family():
    drawn = SIGNALS.train_instances(400)
    for name in ("samples", "channels", "hidden"):
        assert {getattr(one, name) for one in drawn} == set(getattr(SIGNALS, name))
    assert {one.kernel for one in drawn} == set(SIGNALS.kernels)
    assert {one.task for one in drawn} == set(SIGNALS.tasks)
    for name in ("noise", "price"):
        least, most = getattr(SIGNALS, name)
        values = sorted(getattr(one, name) for one in drawn)
        assert least <= values[0] < least * 1.05
        assert most / 1.05 < values[-1] <= most
        assert values[200] == pytest.approx((least * most) ** 0.5, rel=0.1)


@pytest.mark.parametrize("part", ["train", "held_out"])
def test_the_task_and_the_host_are_those_of_the_instance(part):
    for number in range(3):
        one = SIGNALS.instance(number, part)
        build = {"mnist1d": mnist1d, "mnist1d-shuffled": mnist1d_shuffled}[one.task]
        known = build(samples=one.samples, seed=one.seed, noise=one.noise, validation=one.samples * 4 // 25)
        task = signals_family(instance=number, part=part)
        for name in ("train", "validation", "test"):
            assert torch.equal(task.split(name).inputs, known.split(name).inputs)
        host = signals_family_host(SHAPE, instance=number, part=part)
        own = PointwiseMlp(SHAPE, channels=one.channels, hidden=one.hidden, kernel=one.kernel)
        assert str(host) == str(own)


def test_the_configuration_describes_the_instance():
    one = SIGNALS.instance(7)
    assert one.config()["task"] == {"use": one.task, "settings": one.task_settings}
    assert one.config()["reward"]["settings"] == {"price": one.price}
    assert PointwiseMlp(SHAPE, **one.config()["host"]["settings"])(torch.zeros(1, 1, 40)).shape == (1, 10)


@pytest.mark.parametrize(("number", "part"), [(-1, "train"), (0, "test")])
def test_invalid_instances_are_refused(number, part):
    with pytest.raises(ValueError, match=f"Received: {number}, '{part}'"):
        SIGNALS.instance(number, part)
