"""Saliency maps beside plain loops, finite differences and another library's interpolation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from nac_drive.analysis.saliency import grad_cam, input_gradient, steering, visual_backprop
from nac_drive.envs import Control
from nac_drive.policies import Driver, DriverConfig
from nac_drive.policies.encoders import Encoder

DT = torch.tensor([0.0, 0.02, 0.04], dtype=torch.float64)
SHAPE = (40, 36, 3)
ENCODERS = ("compact", "pooled")


def driver(encoder: str = "compact", core: str = "lstm", control: Control = "continuous") -> Driver:
    torch.manual_seed(0)
    settings = {"num_heads": 2} if core.startswith("nac") else {}
    config = DriverConfig(core, settings, encoder, d_model=8, dense=8, control=control, frame_shape=SHAPE)
    return Driver(config).double().eval()


def clip(frames: int = 3) -> Tensor:
    return torch.rand(frames, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def encoder_of(network: Driver) -> Encoder:
    assert isinstance(network.encoder, Encoder)
    return network.encoder


@pytest.mark.parametrize("name", ENCODERS)
def test_the_maps_of_an_encoder_lead_to_its_features(name):
    network, frames = driver(name), clip()
    encoder = encoder_of(network)
    prepared = encoder.prepare(frames)
    *_, last = encoder.maps(prepared)
    torch.testing.assert_close(encoder.read(last, prepared), network.features(frames))


def enlarged(image: np.ndarray, kernel: int, padding: int, size: Any) -> np.ndarray:
    """Every pixel is added to the kernel x kernel pixels that it came from."""
    result = np.zeros(size)
    for i, j in np.ndindex(*image.shape):
        top, left = 2 * i - padding, 2 * j - padding
        result[max(top, 0) : top + kernel, max(left, 0) : left + kernel] += image[i, j]
    return result


@pytest.mark.parametrize("name", ENCODERS)
def test_visual_backprop_is_algorithm_14_in_loops(name):
    network, frames = driver(name), clip()
    encoder = encoder_of(network)
    means = [each.mean(dim=1).detach().numpy() for each in encoder.maps(encoder.prepare(frames))]
    convolutions: list[Any] = list(encoder.convolutions)
    for t, found in enumerate(visual_backprop(network, frames)):
        s = means[-1][t]
        for number in (*range(len(means) - 1, 0, -1), 0):
            size = means[number - 1][t].shape if number else encoder.image_size
            s = enlarged(s, convolutions[number].kernel_size[0], convolutions[number].padding[0], size)
            s = s * means[number - 1][t] if number else s
        repeat = SHAPE[0] // s.shape[0]
        s = s.repeat(repeat, axis=0).repeat(repeat, axis=1)
        np.testing.assert_allclose(found, s / s.max(), atol=1e-12)


def test_a_dark_patch_where_no_filter_answers_is_not_salient():
    network = driver()
    for conv in encoder_of(network).convolutions:
        conv.weight.data.abs_()  # type: ignore[operator]
        conv.bias.data.zero_()  # type: ignore[operator]
    frame = torch.full((1, *SHAPE), 0.5, dtype=torch.float64)
    frame[:, :, 30:] = 1.0  # half grey is nothing to a centred encoder
    found = visual_backprop(network, frame)[0]
    assert found.max() == 1
    assert found[:, 30:].sum() > 5 * found[:, :12].sum()
    frame[:] = 0.5
    dark = visual_backprop(network, frame)
    assert torch.isfinite(dark).all()


@pytest.mark.parametrize(("name", "core"), [("compact", "lstm"), ("pooled", "cnn"), ("compact", "nac-exact")])
@pytest.mark.parametrize("control", ["continuous", "discrete"])
def test_the_input_gradient_is_the_change_of_the_steering_by_a_pixel(name, core, control):
    network = driver(name, core, control)
    frames, t = clip(), 2
    found = input_gradient(network, frames, DT)[t]
    with torch.no_grad():
        _, state = network(frames[None, :t], DT[None, :t], network.initial_state(1))

        def steer(frame: Tensor) -> float:
            return float(steering(network(frame[None, None], DT[None, t:], state)[0]))

        for row, column in ((5, 7), (20, 18), (38, 30)):
            expected = 0.0
            for colour in range(3):
                step = torch.zeros(SHAPE, dtype=torch.float64)
                step[row, column, colour] = 1e-5
                expected += abs(steer(frames[t] + step) - steer(frames[t] - step)) / 2e-5
            assert float(found[row, column]) == pytest.approx(expected, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("name", ENCODERS)
def test_grad_cam_weighs_the_last_maps_by_their_mean_gradient(name):
    network, frames = driver(name, "cnn"), clip(2)
    encoder = encoder_of(network)
    prepared = encoder.prepare(frames)
    *_, last = encoder.maps(prepared)

    def explained(maps: Tensor) -> Tensor:
        return steering(network.decide(encoder.read(maps, prepared)[:, None], DT[:2, None])[0])[:, 0]

    jacobian: Any = torch.func.jacrev(explained)(last.detach()).detach()  # (T, T, C, h, w)
    for t, found in enumerate(grad_cam(network, frames, DT[:2])):
        weights = jacobian[t, t].mean(dim=(1, 2)).numpy()
        cam = np.maximum(sum(w * image for w, image in zip(weights, last[t].detach().numpy(), strict=True)), 0)
        cam = cv2.resize(cam, SHAPE[1::-1], interpolation=cv2.INTER_LINEAR)
        np.testing.assert_allclose(found, cam / (cam.max() or 1), atol=1e-6)


def test_a_driver_without_convolutions_is_refused():
    network = driver()
    network.encoder = torch.nn.Flatten(2)
    for method in (lambda: visual_backprop(network, clip()), lambda: grad_cam(network, clip(), DT)):
        with pytest.raises(ValueError, match="its encoder must have convolutions, got Flatten"):
            method()


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("method", [input_gradient, grad_cam])
@pytest.mark.parametrize("settings", [{}, {"zero_lost_frames": True}, {"dt_input": True}, {"residual": True}])
def test_the_decisions_that_are_explained_are_the_drivers_own(method, encoder, settings):
    """Also after a lost frame, which is black all over."""
    network = driver(encoder)
    network = Driver(replace(network.config, dropout=0.5, **settings)).double()  # in training mode
    frames = clip(4)
    frames[1] = 0.0
    dt = torch.full((4,), 0.02, dtype=torch.float64)
    seen: list[Tensor] = []

    def target(prediction: Tensor) -> Tensor:
        seen.append(prediction.detach()[0, 0])
        return steering(prediction)

    maps = method(network, frames, dt, target)
    assert network.training
    with torch.no_grad():
        expected, _ = network.eval()(frames[None], dt[None])
    torch.testing.assert_close(torch.stack(seen), expected[0])
    assert not settings.get("zero_lost_frames") or not maps[1].any(), "the core does not see a lost frame"
