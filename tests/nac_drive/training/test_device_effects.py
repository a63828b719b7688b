"""Augmentation on the device of the frames: the images of the CPU's, and noise of the same distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nac_drive.envs import BAR_TOP, CORRUPTIONS, PERTURBATIONS, draw_effect, parse_corruptions
from nac_drive.envs.perturbations.effects import BlackAndWhite, Noise
from nac_drive.envs.perturbations.images import FrameSize
from nac_drive.training.data.device_effects import apply_on_device

SIZE = FrameSize(96, 96, BAR_TOP)
STATIC = [name for name in CORRUPTIONS if name not in ("gaussian-noise", "salt-and-pepper")]
SPECS = [f"{name}:{level}" for name in STATIC for level in range(1, len(PERTURBATIONS[name]) + 1)]


def frames() -> np.ndarray:
    """Five frames of random colours, and one of CarRacing's road and grass."""
    drawn = np.random.default_rng(0).integers(256, size=(6, 96, 96, 3), dtype=np.uint8)
    drawn[5, :, :40] = (100, 204, 100)
    drawn[5, :, 40:] = 103
    return drawn


@pytest.mark.parametrize("spec", [*SPECS, "colour:3+shadows:2+brightness:1"])
def test_without_noise_the_images_are_equal(spec):
    images, generator = frames(), torch.Generator().manual_seed(0)
    for seed in range(3):
        effect = draw_effect(parse_corruptions(spec), np.random.default_rng(seed), SIZE)
        found = apply_on_device(effect, torch.from_numpy(images), generator)
        np.testing.assert_array_equal(found.numpy(), effect(images))
    np.testing.assert_array_equal(images, frames())  # a copy


def test_noise_has_the_distribution_of_the_cpu():
    images, generator = np.full((20, 96, 96, 3), 120, np.uint8), torch.Generator().manual_seed(0)
    for effect in (Noise(np.random.default_rng(0), np.float32(30)), BlackAndWhite(np.random.default_rng(0), 0.2)):
        expected, found = effect(images), apply_on_device(effect, torch.from_numpy(images), generator).numpy()
        assert found.mean() == pytest.approx(expected.mean(), abs=1.0)
        assert found.std() == pytest.approx(expected.std(), rel=0.02)
        assert not (found[0] == found[1]).all()  # every frame has its own
    whole = np.all(found == found[..., :1], axis=-1)
    assert whole.all()  # salt and pepper is of whole pixels
    assert (found != 120).any(axis=-1).mean() == pytest.approx(0.2, abs=0.01)


def test_an_effect_that_has_no_form_on_the_device_is_named():
    with pytest.raises(TypeError, match="add it to apply_on_device"):
        apply_on_device(lambda images: images, torch.zeros(1, 2, 2, 3, dtype=torch.uint8), torch.Generator())
