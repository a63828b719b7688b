"""Saliency maps: the pixels that a driver's decision depends on.

Shapes: T frames of an episode in their order, H and W of a frame, C, h and w of the maps of a convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.envs import EnvSpec
from nac_drive.policies.driver import Driver
from nac_drive.policies.encoders import Encoder, zero_black
from nac_drive.policies.ops.evaluation_mode import evaluation_mode

Target = Callable[[Tensor], Tensor]
"""Predictions of a driver (..., A) -> numbers (...) that are explained."""


def steering(prediction: Tensor) -> Tensor:
    """Steer to the right: the first control (..., 3), or the logit of right minus the logit of left (..., 5)."""
    return prediction[..., 0] if prediction.shape[-1] == 3 else prediction[..., 1] - prediction[..., 2]


def steering_target(control: str, spec: EnvSpec) -> Target:
    """Return `steering` for the actions of an environment.

    Args:
        control: Control of the driver, see `EnvConfig`.
        spec: The environment, which says where each discrete action steers to.
    """
    if control != "discrete":
        part = spec.steering_part or 0  # without a known one, the first number is explained
        return lambda prediction: prediction[..., part]
    if spec.steering is None:
        return lambda prediction: prediction.amax(dim=-1)  # the logit of the chosen action
    signs = {number: 1 if command > 0 else -1 for number, command in enumerate(spec.steering) if command}
    return lambda prediction: sum(sign * prediction[..., number] for number, sign in signs.items())  # type: ignore


def visual_backprop(driver: Driver, frames: Tensor) -> Tensor:
    """VisualBackProp: places where all convolutions are active (thesis, Algorithm 14; Bojarski et al., ICRA 2018).

    The maps of every convolution are averaged over their channels. From the last to the first, the result is scaled
    up by a transposed convolution of ones with the geometry of the convolution, and multiplied by the maps before it.
    The last step takes it to the size of the frame.

    Args:
        driver: A driver with one of `ENCODERS`.
        frames: (T, H, W, 3) uint8, or float in 0..1.

    Returns:
        (T, H, W) in 0..1; every map is divided by its largest value.

    Raises:
        ValueError: The encoder has no convolutions.
    """
    encoder = _encoder(driver)
    with torch.no_grad():
        maps = [each.mean(dim=1, keepdim=True) for each in encoder.maps(encoder.prepare(frames))]  # (T, 1, h, w) each
        result = maps[-1]
        for number in range(len(maps) - 1, -1, -1):
            conv: Any = encoder.convolutions[number]
            size = tuple(maps[number - 1].shape[2:]) if number else encoder.image_size
            result = _enlarge(result, conv, size)
            if number:
                result = result * maps[number - 1]
        return _scaled(F.interpolate(result, size=frames.shape[1:3])[:, 0])


def _enlarge(image: Tensor, conv: nn.Conv2d, size: tuple[int, ...]) -> Tensor:
    """Spread (T, 1, h, w) to (T, 1, *size) by the geometry of `conv`."""
    stride, kernel, padding = conv.stride[0], conv.kernel_size[0], int(conv.padding[0])
    missing = [
        to - (stride * (side - 1) + kernel - 2 * padding) for side, to in zip(image.shape[2:], size, strict=True)
    ]
    ones = torch.ones(1, 1, kernel, kernel, dtype=image.dtype, device=image.device)
    return F.conv_transpose2d(image, ones, stride=stride, padding=padding, output_padding=missing)


def input_gradient(driver: Driver, frames: Tensor, dt: Tensor, target: Target = steering) -> Tensor:
    """Absolute gradient of a decision by the present frame, summed over colours (Simonyan et al., arXiv 1312.6034).

    The state before the frame counts as given: what the driver remembers is not explained.

    Args:
        driver: A driver.
        frames: (T, H, W, 3) uint8, or float in 0..1: an episode from its start.
        dt: (T,) seconds since the previous frame.
        target: The number that is explained.

    Returns:
        (T, H, W), in units of the target per full change of a colour.
    """
    maps = []

    def look(frame: Tensor) -> tuple[Tensor, Tensor]:
        frame = _unit(frame).requires_grad_()
        return driver.features(frame), frame

    def note(source: Tensor, gradient: Tensor) -> None:
        maps.append(gradient[0].abs().sum(dim=-1))

    _explain(driver, frames, dt, target, look, note)
    return torch.stack(maps)


def grad_cam(driver: Driver, frames: Tensor, dt: Tensor, target: Target = steering) -> Tensor:
    """Grad-CAM of the last convolution (Selvaraju et al., ICCV 2017).

    Every map is weighted by the mean of the target's gradient over its places. Their sum, where it is positive, is
    scaled up to the frame, bilinearly. The state before the frame counts as given.

    Args:
        driver: A driver with one of `ENCODERS`.
        frames: (T, H, W, 3) uint8, or float in 0..1: an episode from its start.
        dt: (T,) seconds since the previous frame.
        target: The number that is explained.

    Returns:
        (T, H, W) in 0..1; every map is divided by its largest value.

    Raises:
        ValueError: The encoder has no convolutions.
    """
    encoder = _encoder(driver)
    maps = []

    def look(frame: Tensor) -> tuple[Tensor, Tensor]:
        prepared = encoder.prepare(frame)
        with torch.no_grad():
            *_, last = encoder.maps(prepared)
        last.requires_grad_()
        features = encoder.read(last, prepared)
        return zero_black(features, prepared) if driver.config.zero_lost_frames else features, last

    def note(source: Tensor, gradient: Tensor) -> None:
        weights = gradient.mean(dim=(2, 3), keepdim=True)  # (1, C, 1, 1)
        maps.append((weights * source.detach()).sum(dim=1, keepdim=True).relu())  # (1, 1, h, w)

    _explain(driver, frames, dt, target, look, note)
    return _scaled(F.interpolate(torch.cat(maps), size=frames.shape[1:3], mode="bilinear")[:, 0])


def _explain(
    driver: Driver,
    frames: Tensor,
    dt: Tensor,
    target: Target,
    look: Callable[[Tensor], tuple[Tensor, Tensor]],
    note: Callable[[Tensor, Tensor], None],
) -> None:
    """Note the gradient of every decision of an episode.

    Args:
        driver: A driver.
        frames: (T, H, W, 3).
        dt: (T,).
        target: The number that is explained.
        look: A frame (1, H, W, 3) -> its features (1, d), and the tensor that gradients are taken by.
        note: Called with that tensor and its gradient.
    """
    state = driver.initial_state(1)
    with evaluation_mode(driver):
        for frame, seconds in zip(frames, dt, strict=True):
            with torch.enable_grad():
                features, source = look(frame[None])
                prediction, after = driver.decide(features[:, None], seconds.view(1, 1), state)
                (gradient,) = torch.autograd.grad(target(prediction).sum(), source)
            note(source, gradient)
            state = tuple(part.detach() for part in after)


def _encoder(driver: Driver) -> Encoder:
    if not isinstance(driver.encoder, Encoder):
        raise ValueError(f"driver: its encoder must have convolutions, got {type(driver.encoder).__name__}.")
    return driver.encoder


def _unit(frames: Tensor) -> Tensor:
    """Frames as floats in 0..1."""
    return frames / 255.0 if frames.dtype == torch.uint8 else frames.clone()


def _scaled(maps: Tensor) -> Tensor:
    """Divide every map (T, H, W) by its largest value. A map of zeros stays."""
    largest = maps.amax(dim=(1, 2), keepdim=True)
    return maps / torch.where(largest > 0, largest, 1.0)
