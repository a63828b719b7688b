"""The encoders of the thesis: their sizes as printed, and plain networks that they equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nac_drive.analysis.saliency import visual_backprop
from nac_drive.policies import Driver, DriverConfig
from nac_drive.policies.thesis_encoders import BojarskiEncoder, ThesisEncoder

THESIS = (78, 200, 3)


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_printed_sizes() -> None:
    """Tables 6.4 and 6.6. And Table 6.3, whose output has no bias in the thesis' count."""
    assert size(ThesisEncoder(THESIS, 32, 0.0)) == 79_420
    config = DriverConfig("cnn-bojarski", encoder="bojarski", features=4864, d_model=1, frame_shape=THESIS)
    driver = Driver(config)
    assert size(driver.encoder) + size(driver.core) == 5_068_900 + 1


def white(images: torch.Tensor) -> torch.Tensor:
    return torch.stack([(image - image.mean()) / image.std(correction=0) for image in images])


@pytest.mark.parametrize("kind", [ThesisEncoder, BojarskiEncoder])
def test_an_encoder_equals_the_plain_network_whatever_the_chunks_and_the_scale(kind: Any) -> None:
    torch.manual_seed(0)
    shape = (53, 61, 3)
    encoder = kind(shape, 16 if kind is ThesisEncoder else 128, 0.0)
    video = torch.randint(0, 256, (2, 35, *shape), dtype=torch.uint8)  # 70 frames: more than one chunk
    maps = white(video.flatten(0, 1).permute(0, 3, 1, 2).float())
    for conv, (_, _, padding, stride) in zip(encoder.convolutions, encoder.LAYERS, strict=True):
        maps = nn.functional.conv2d(maps, conv.weight, conv.bias, stride=stride, padding=padding).relu()
    expected = maps.flatten(1)
    if kind is ThesisEncoder:
        assert maps.shape[1:] == (8, 7, 8)  # sides / 8, rounded up
        channels = [maps[:, c].flatten(1) @ encoder.weight[c].T + encoder.bias[c] for c in range(8)]
        expected = torch.cat(channels, dim=1)
    expected = expected.view(2, 35, -1)
    torch.testing.assert_close(encoder(video), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(encoder(0.5 * video.float() / 255 + 0.25), expected, atol=1e-4, rtol=1e-3)


def test_a_black_frame_has_finite_features() -> None:
    encoder = ThesisEncoder((32, 36, 3), 16, 0.0)
    features = encoder(torch.zeros(1, 32, 36, 3, dtype=torch.uint8))
    features.sum().backward()
    assert features.isfinite().all()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in encoder.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "thesis", "features": 20}, "features: must be a multiple of the encoder's 8 channels, got 20"),
        ({"encoder": "bojarski"}, "features: must be 2304 with encoder bojarski and frames of .*, got 64"),
        ({"encoder": "bojarski", "frame_shape": (52, 96, 3)}, r"frame_shape: must be \(H >= 53, W >= 53, 3\)"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Driver(DriverConfig("cnn", **changes))


def test_saliency_lies_where_the_picture_is() -> None:
    """Strides of 1 and 2, padded convolutions: a bright patch lights up on its side."""
    torch.manual_seed(0)
    driver = Driver(DriverConfig("cnn", encoder="thesis", features=16))
    frame = torch.full((1, 96, 96, 3), 100, dtype=torch.uint8)
    frame[:, 40:56, 8:24] = 255
    seen = visual_backprop(driver, torch.cat((frame, frame.flip(2))))
    assert seen.shape == (2, 96, 96)
    assert seen[0, :, :48].sum() > seen[0, :, 48:].sum()
    assert seen[1, :, :48].sum() < seen[1, :, 48:].sum()
