"""Synthetic images: waves that cannot be told apart by single pixels."""

import torch

from esper_tasks.images_synthetic import images_synthetic


def all_images(task):
    splits = [task.split(name) for name in ("train", "validation", "test")]
    return torch.cat([split.inputs for split in splits]), torch.cat([split.targets for split in splits])


def test_no_example_occurs_twice():
    inputs, targets = all_images(images_synthetic())
    assert len(torch.unique(inputs.flatten(1), dim=0)) == len(inputs) == 3000
    assert targets.bincount().tolist() == [375] * 8


def test_waves_run_along_their_orientation_and_have_their_length():
    inputs, targets = all_images(images_synthetic(samples=240, size=64, noise=0.0))
    spectra = torch.fft.fft2(inputs).abs().sum(dim=1)
    for one in range(8):
        spectrum = spectra[targets == one].sum(dim=0)
        down, right = divmod(int(spectrum.flatten().argmax()), 64)
        vector = torch.tensor([right if right < 32 else right - 64, down if down < 32 else down - 64]) / 64
        angle = torch.pi * (one % 4) / 4
        expected = torch.tensor([torch.tensor(angle).cos(), torch.tensor(angle).sin()]) / (3.0, 6.0)[one // 4]
        assert min((vector - expected).norm(), (vector + expected).norm()) < 0.03


def test_no_pixel_and_no_colour_tells_the_class():
    inputs, targets = all_images(images_synthetic(samples=24_000, size=8))
    strength = inputs.square().mean(dim=(0, 2, 3))
    for one in range(8):
        own = inputs[targets == one]
        assert own.mean(dim=0).abs().max() < 0.08
        assert (own.square().mean(dim=(0, 2, 3)) / strength - 1).abs().max() < 0.03
