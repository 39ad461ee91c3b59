"""MNIST-1D equals the published data, and is split as documented."""

import hashlib

import numpy as np
import pytest
import torch

from esper_tasks.mnist1d import digit_signals, mnist1d, mnist1d_shuffled, smoothed


@pytest.fixture(scope="module")
def task():
    return mnist1d()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("shuffled", "samples", "seed", "noise"),
    [(True, 300, 8, 2.0), (False, 300, 1, 0.0), pytest.param(False, 5000, 42, 1.0, marks=pytest.mark.slow)],
)
def test_it_equals_the_published_generator(shuffled, samples, seed, noise):
    pytest.importorskip("requests", reason="mnist1d.data imports requests")
    published = pytest.importorskip("mnist1d.data", reason="the published generator is not installed")
    arguments = published.get_dataset_args()
    arguments.shuffle_seq, arguments.num_samples, arguments.seed = shuffled, samples, seed
    arguments.corr_noise_scale *= noise
    arguments.iid_noise_scale *= noise
    theirs = published.make_dataset(arguments)

    signals, digits = digit_signals(samples=samples, seed=seed, noise=noise, shuffled=shuffled)

    train = samples * 4 // 5
    np.testing.assert_allclose(signals[:train], theirs["x"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(signals[train:], theirs["x_test"], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(digits[:train], theirs["y"])
    np.testing.assert_array_equal(digits[train:], theirs["y_test"])


def test_smoothing_equals_scipys():
    ndimage = pytest.importorskip("scipy.ndimage")
    rows = np.random.RandomState(0).standard_normal((5, 72))
    expected = np.stack([ndimage.gaussian_filter(row, 2) for row in rows])
    np.testing.assert_allclose(smoothed(rows), expected, rtol=0, atol=1e-13)


def test_the_data_did_not_change():
    # Holds where the published generator is not installed. Rounded, for the last bits may differ between machines.
    signals, digits = digit_signals(samples=5000, seed=42)
    assert digits[:12].tolist() == [2, 6, 4, 5, 6, 6, 6, 0, 3, 1, 6, 9]
    assert signals[0, :3].round(6).tolist() == [-0.332006, -0.47191, -0.778697]
    assert hashlib.sha256(digits.astype("<i8").tobytes()).hexdigest()[:16] == "6feec4a017698c7f"


def test_splits_are_the_published_ones(task):
    signals, digits = digit_signals(samples=5000, seed=42)
    for name, part in {"train": slice(0, 3200), "validation": slice(3200, 4000), "test": slice(4000, None)}.items():
        torch.testing.assert_close(task.split(name).inputs[:, 0], torch.tensor(signals[part], dtype=torch.float32))
        assert task.split(name).targets.tolist() == digits[part].tolist()


def test_the_shuffled_task_has_the_same_signals_with_their_positions_permuted():
    plain, shuffled = mnist1d(samples=200, validation=20), mnist1d_shuffled(samples=200, validation=20)
    assert torch.equal(plain.split("test").targets, shuffled.split("test").targets)
    ours, theirs = plain.split("test").inputs[:, 0], shuffled.split("test").inputs[:, 0]
    assert not torch.equal(ours, theirs)
    torch.testing.assert_close(ours.sort(dim=1).values, theirs.sort(dim=1).values)
    position_of = [(theirs == ours[:, [i]]).all(dim=0).nonzero().flatten().tolist() for i in range(40)]
    assert sorted(position for positions in position_of for position in positions) == list(range(40))
