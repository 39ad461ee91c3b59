"""Arrays and tables become tasks, and mistakes are reported with their place and what to change."""

import numpy as np
import pytest
import torch

from esper_core.leyline import ConfigError
from esper_tasks.own_data import npz
from esper_tasks.supervised import drawn_parts
from esper_testing import check_task

DRAW = np.random.default_rng(0)
SIGNALS = DRAW.standard_normal((60, 2, 9))
CLASSES = np.arange(60) % 3
DATA = {"inputs": SIGNALS, "targets": CLASSES}
SPLITS = ("train", "validation", "test")


def saved(folder, **arrays):
    np.savez(folder / "data.npz", **arrays)
    return str(folder / "data.npz")


def refusal(**settings):
    """Return path, message and hint of the only problem when this is built."""
    with pytest.raises(ConfigError) as caught:
        npz(**settings)
    (problem,) = caught.value.problems
    return f"{problem.path}: {problem.message}\n{problem.hint}"


def lengths(task):
    return [len(task.split(name)) for name in SPLITS]


@pytest.mark.parametrize(
    ("inputs", "targets", "settings", "shape"),
    [
        (SIGNALS, CLASSES, {}, ("sequence", (2, 9), 3)),
        (SIGNALS[:, 0], CLASSES.astype(float), {}, ("vector", (9,), 3)),
        (SIGNALS[:, :, :, None], np.array(["owl", "cat", "emu"])[CLASSES], {}, ("image", (2, 9, 1), 3)),
        (SIGNALS, CLASSES, {"kind": "tokens"}, ("tokens", (2, 9), 3)),
        (DRAW.integers(0, 50, (60, 6)), CLASSES, {"kind": "tokens"}, ("tokens", (6,), 3)),
        (SIGNALS, 3.0 * SIGNALS[:, 0, 0], {"predict": "number"}, ("sequence", (2, 9), 1)),
        (SIGNALS, SIGNALS[:, 0, :4], {"predict": "number"}, ("sequence", (2, 9), 4)),
    ],
)
def test_arrays_of_each_kind_make_a_task_that_conforms(inputs, targets, settings, shape, tmp_path):
    path = saved(tmp_path, inputs=inputs, targets=targets)
    broken = [check for check in check_task(npz, settings={"path": path, **settings}) if not check.ok]
    task = npz(path=path, **settings)
    assert [check.message for check in broken] == []
    assert (task.shape.kind, task.shape.example, task.shape.outputs) == shape
    assert lengths(task) == [42, 9, 9]
    assert task.metric.direction == ("down" if "predict" in settings else "up")


def test_features_are_normalised_by_the_training_data(tmp_path):
    inputs = SIGNALS * 5 + np.array([1e6, 7.0])[:, None]
    task = npz(path=saved(tmp_path, inputs=inputs, targets=CLASSES))
    train, test = (task.split(name).inputs for name in ("train", "test"))
    assert torch.allclose(train.mean(dim=(0, 2)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(train.std(dim=(0, 2), correction=0), torch.ones(2), atol=1e-5)
    assert test.mean(dim=(0, 2)).abs().min() > 1e-3
    kept = npz(path=saved(tmp_path, inputs=SIGNALS, targets=CLASSES), normalise=False)
    assert set(kept.split("test").inputs[:, 0, 0].tolist()) <= set(SIGNALS[:, 0, 0].astype(np.float32).tolist())


def test_regression_scores_are_shares_of_the_variance(tmp_path):
    task = npz(path=saved(tmp_path, inputs=SIGNALS, targets=40 + 9 * SIGNALS[:, 0, 0]), predict="number")
    train = task.split("train")
    assert task.scores(torch.zeros(42, 1), train.targets).mean() == pytest.approx(1)
    assert task.losses(train.targets, train.targets).tolist() == [0.0] * 42


def test_classes_have_their_order_and_stay_with_their_inputs(tmp_path):
    inputs = np.stack([CLASSES * 10.0, np.arange(60)], axis=1)
    path = saved(tmp_path, inputs=inputs, targets=np.array(["cat", "emu", "owl"])[CLASSES])
    for name in SPLITS:
        split = npz(path=path, normalise=False).split(name)
        assert (split.inputs[:, 0] / 10).tolist() == split.targets.tolist()


def test_a_folder_of_npy_files_is_the_same_as_an_npz(tmp_path):
    np.save(tmp_path / "x.npy", SIGNALS)
    np.save(tmp_path / "y.npy", CLASSES)
    task = npz(path=str(tmp_path), inputs="x", targets="y")
    again = npz(path=saved(tmp_path, inputs=SIGNALS, targets=CLASSES))
    assert all(torch.equal(task.split(name).inputs, again.split(name).inputs) for name in SPLITS)


def test_given_splits_are_kept(tmp_path):
    parts = {"train": slice(0, 30), "validation": slice(30, 40), "test": slice(40, 60)}
    arrays = {f"{name}_{kind}": array[rows] for name, rows in parts.items() for kind, array in
              (("inputs", SIGNALS), ("targets", CLASSES))}  # fmt: skip
    task = npz(path=saved(tmp_path, **arrays), normalise=False)
    assert lengths(task) == [30, 10, 20]
    assert torch.equal(task.split("test").inputs, torch.from_numpy(SIGNALS[40:]).float())
    without = {name: array for name, array in arrays.items() if not name.startswith("validation")}
    assert lengths(npz(path=saved(tmp_path, **without), validation=0.2)) == [24, 6, 20]


@pytest.mark.parametrize(
    ("change", "settings", "why"),
    [
        ({"test_inputs": SIGNALS[:, :1]}, {}, "inputs or targets of different shapes"),
        ({"test_targets": SIGNALS[:, 0, :2]}, {"predict": "number"}, "inputs or targets of different shapes"),
        ({"test_inputs": -np.ones((60, 7))}, {"kind": "tokens"}, "symbols must be integers from 0"),
    ],
)
def test_splits_that_differ_are_refused(change, settings, why, tmp_path):
    inputs = np.arange(420).reshape(60, 7) if settings.get("kind") == "tokens" else SIGNALS
    arrays = {"train_inputs": inputs, "train_targets": CLASSES, "test_inputs": inputs, "test_targets": CLASSES}
    assert why in refusal(path=saved(tmp_path, **arrays | change), **settings)


@pytest.mark.parametrize(
    ("arrays", "settings", "message"),
    [
        ({"inputs": SIGNALS}, {}, 'targets: there is no array "targets"'),
        ({"input": SIGNALS, "targets": CLASSES}, {}, 'Did you mean "input"?'),
        ({"inputs": SIGNALS, "targets": CLASSES[1:]}, {}, r"Received: inputs (60, 2, 9), targets (59,)"),
        ({"inputs": np.where(SIGNALS > 2, np.nan, SIGNALS), "targets": CLASSES}, {}, 'in "inputs" are not finite'),
        ({"inputs": SIGNALS.astype(str), "targets": CLASSES}, {}, 'inputs: "inputs" is not numeric'),
        ({"inputs": SIGNALS.astype(object), "targets": CLASSES}, {}, "has Python objects"),
        ({"inputs": SIGNALS, "targets": CLASSES.astype(object)}, {}, "texts for classes, array.astype(str)"),
        ({"inputs": SIGNALS, "targets": SIGNALS[:, 0, 0]}, {}, "predict: the classes in"),
        ({"inputs": SIGNALS, "targets": 0 * CLASSES}, {}, "all examples are in one class"),
        ({"inputs": SIGNALS, "targets": SIGNALS[:, 0]}, {}, "class targets have the shape (N,)"),
        ({"inputs": SIGNALS, "targets": SIGNALS}, {"predict": "number"}, "(N,) or (N, numbers)"),
        ({"inputs": SIGNALS, "targets": CLASSES}, {"kind": "image"}, "kind: an example of kind image does not have 2"),
        ({"inputs": SIGNALS[:, 0] ** 2, "targets": CLASSES}, {"kind": "tokens"}, "symbols must be integers from 0"),
        ({"inputs": SIGNALS[:2], "targets": CLASSES[:2]}, {}, "too few different examples for 3 splits"),
        ({"inputs": np.zeros((60, 4)), "targets": CLASSES}, {}, "Equal examples stay together"),
        ({"train_inputs": SIGNALS, "train_targets": CLASSES}, {}, 'there is no array "test_inputs"'),
        ({**DATA, "test_inputs": SIGNALS}, {}, 'inputs: the array "test_inputs" would not be used'),
        (
            {f"{name}_{kind}": rows for kind, rows in DATA.items() for name in ("train", "val", "test")},
            {},
            'inputs: the array "val_inputs" would not be used',
        ),
    ],
)
def test_invalid_arrays_are_reported_with_a_remedy(arrays, settings, message, tmp_path):
    assert message in refusal(path=saved(tmp_path, **arrays), **settings)


def test_a_class_without_training_examples_is_reported(tmp_path):
    rare = np.where(np.arange(60) == 17, 9, CLASSES)
    path = saved(tmp_path, inputs=SIGNALS, targets=rare)
    train = {seed: set(drawn_parts(SIGNALS, validation=9, test=9, seed=seed)["train"].tolist()) for seed in range(9)}
    seeds = {17 in rows: seed for seed, rows in train.items()}
    message = refusal(path=path, seed=seeds[False])
    assert "path: 1 of 4 classes are missing from the training split" in message
    assert message.endswith("Received: 9")
    assert npz(path=path, seed=seeds[True]).shape.outputs == 4


def test_a_missing_or_damaged_file_is_reported_with_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, inputs=SIGNALS, targets=CLASSES)
    message = refusal(path="dta.npz")
    assert 'path: there is no file "dta.npz"' in message
    assert f'Did you mean "data.npz"?\nA relative path is looked up where esper is called: {tmp_path}' in message
    np.save(tmp_path / "one.npy", SIGNALS)
    assert "is one array" in refusal(path="one.npy")
    (tmp_path / "text.npz").write_text("no arrays")
    assert "has Python objects, or no arrays" in refusal(path="text.npz")
    content = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    assert "cannot be read" in refusal(path="cut.npz")
    (tmp_path / "flipped.npz").write_bytes(content.replace(SIGNALS.tobytes()[:64], b"\0" * 64))
    assert "cannot be read" in refusal(path="flipped.npz")
