"""CIFAR-10 is read from its binary format, and other folders are refused."""

import numpy as np
import pytest
import torch

from esper_tasks.cifar10 import RECORD, TEST, TRAIN, cifar10
from esper_tasks.hosts import cnn2d
from esper_testing import check_task

EACH = 12


def record(number):
    """Return a record: the class, then each colour at its own level; the first red pixel identifies the record."""
    levels = np.repeat(np.array([50 + number % 7, 100, 200 + number % 5], dtype=np.uint8), 1024)
    levels[0] = number
    return bytes([number % 10]) + levels.tobytes()


@pytest.fixture
def folder(tmp_path):
    for place, name in enumerate((*TRAIN, TEST)):
        (tmp_path / name).write_bytes(b"".join(record(EACH * place + row) for row in range(EACH)))
    return tmp_path


def ranks(numbers):
    return torch.searchsorted(numbers.unique(), numbers.contiguous())


def test_it_conforms_and_fits_a_host(folder):
    settings = {"folder": str(folder), "validation": 10}
    assert [check.message for check in check_task(cifar10, settings=settings) if not check.ok] == []
    task = cifar10(**settings)
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [50, 10, 12]
    assert cnn2d(task.shape)(task.split("test").inputs).shape == (12, 10)


def test_classes_stay_with_their_images_and_colours_with_their_channels(folder):
    task = cifar10(folder=str(folder), validation=10)
    splits = [task.split(name) for name in ("train", "validation", "test")]
    inputs, classes = torch.cat([split.inputs for split in splits]), torch.cat([split.targets for split in splits])
    number = ranks(inputs[:, 0, 0, 0])
    assert sorted(number.tolist()) == list(range(6 * EACH))
    assert torch.equal(classes, number % 10)
    assert torch.equal(ranks(inputs[:, 0, 31, 31]), number % 7)
    assert torch.equal(ranks(inputs[:, 2, 31, 31]), number % 5)
    assert number[-EACH:].tolist() == list(range(5 * EACH, 6 * EACH))


def test_colours_are_normalised_by_the_training_data(folder):
    train = cifar10(folder=str(folder), validation=10).split("train").inputs
    assert torch.allclose(train.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(train[:, [0, 2]].std(dim=(0, 2, 3), correction=0), torch.ones(2), atol=1e-4)


def test_fewer_examples_do_not_change_the_validation_split(folder):
    all_of, few = (cifar10(folder=str(folder), validation=10, examples=most) for most in (None, 20))
    assert len(few.split("train")) == 20
    assert few.split("validation").targets.tolist() == all_of.split("validation").targets.tolist()


def test_a_missing_folder_is_reported_with_the_source_of_the_data(tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    message = refusal(cifar10, folder="cifar")
    assert message.startswith('folder: there is no folder "cifar"')
    assert f"A relative path is looked up where esper is called: {tmp_path}" in message
    assert "CIFAR-10 binary version (suitable for C programs), from the University of Toronto's page" in message


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / TEST).unlink(), "does not have test_batch.bin\nNothing is downloaded"),
        (lambda folder: (folder / TRAIN[2]).write_bytes(record(1)[:-1]), "does not hold a whole number of records"),
        (lambda folder: (folder / TRAIN[2]).write_bytes(record(1)[:-1]), f"Received: {RECORD - 1} bytes"),
        (lambda folder: (folder / TEST).write_bytes(b""), "does not hold a whole number of records"),
        (lambda folder: (folder / TEST).write_bytes(record(1) + b"\x0a" + record(2)[1:]), "Record 1 has the class 10"),
        (lambda folder: [(folder / name).rename(folder / name[:-4]) for name in TRAIN], "the Python version"),
    ],
)
def test_a_folder_with_other_files_is_refused(folder, spoil, message, refusal):
    spoil(folder)
    assert message in refusal(cifar10, folder=str(folder), validation=10)


def test_the_parent_folder_is_refused_with_a_hint(folder, refusal):
    inner = folder / "cifar-10-batches-bin"
    inner.mkdir()
    for name in (*TRAIN, TEST):
        (folder / name).rename(inner / name)
    assert f'folder: "{folder}/cifar-10-batches-bin"' in refusal(cifar10, folder=str(folder))


def test_a_validation_split_without_training_examples_is_refused(folder, refusal):
    assert "There are 60 training images. Received: 60" in refusal(cifar10, folder=str(folder), validation=60)
