"""The encoders: the pixels they see, their size, and the plain network they equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nac_drive.envs import EnvConfig, make_env
from nac_drive.policies import ENCODERS, ConvEncoder, Driver, DriverConfig, load_driver, save_driver
from nac_drive.policies.encoders import COMPACT, PAPER, ChromaEncoder, PooledEncoder

SHAPE = (32, 36, 3)


def test_the_registered_encoders_have_their_layers() -> None:
    for name, layers in (("paper", PAPER), ("compact", COMPACT)):
        torch.manual_seed(0)
        registered = ENCODERS[name](SHAPE, 8, 0.2)
        torch.manual_seed(0)
        built = ConvEncoder(SHAPE, 8, 0.2, layers)
        assert str(registered) == str(built)
        assert all(torch.equal(a, b) for a, b in zip(registered.parameters(), built.parameters(), strict=True))


def test_the_paper_s_2430_features() -> None:
    assert ConvEncoder((96, 96, 3), 64, 0.2, PAPER).dense.in_features == 2430


def test_the_compact_encoder_has_a_third_of_the_parameters() -> None:
    paper, compact = (ConvEncoder((96, 96, 3), 64, 0.2, layers) for layers in (PAPER, COMPACT))
    assert compact.dense.in_features == 576
    assert sum(p.numel() for p in compact.parameters()) < sum(p.numel() for p in paper.parameters()) / 3


def seen_pixels(layers: tuple) -> torch.Tensor:
    """(96, 96) bool: the pixels that some feature depends on."""
    encoder = ConvEncoder((96, 96, 3), 8, 0.0, layers)
    for name, parameter in encoder.named_parameters():
        if name.startswith("convolutions"):
            nn.init.constant_(parameter, 1e-2)  # every ReLU lets through
    first: Any = encoder.convolutions[0]
    first.bias.data += 0.5 * first.weight.sum(dim=(1, 2, 3))  # the encoder centres pixels
    frame = torch.ones(1, 96, 96, 3, requires_grad=True)
    *_, last = encoder.maps(frame)
    last.sum().backward()
    assert frame.grad is not None
    return frame.grad[0].sum(-1) > 0


def test_the_compact_encoder_sees_the_whole_frame_and_the_paper_s_all_but_five_rows_and_columns() -> None:
    """Strides leave out what does not fill a step: at the bottom that is the status bar, with the speed gauge."""
    assert seen_pixels(COMPACT).all()
    paper = torch.zeros(96, 96, dtype=torch.bool)
    paper[:91, :91] = True
    assert torch.equal(seen_pixels(PAPER), paper)


@pytest.mark.parametrize(("layers", "least"), [(PAPER, 27), (COMPACT, 1)])
def test_the_smallest_frames_leave_one_feature_per_filter(layers: tuple, least: int) -> None:
    assert ConvEncoder((least, least, 3), 8, 0.0, layers).dense.in_features == layers[-1][0]
    with pytest.raises(ValueError, match=rf"frame_shape: must be \(H >= {least}, W >= {least}, 3\)"):
        ConvEncoder((96, least - 1, 3), 8, 0.0, layers)


@pytest.mark.parametrize("layers", [PAPER, COMPACT])
def test_an_encoder_equals_the_plain_network_whatever_the_chunks(layers: tuple) -> None:
    torch.manual_seed(0)
    encoder = ConvEncoder((33, 36, 3), 8, 0.0, layers)
    video = torch.randint(0, 256, (2, 35, 33, 36, 3), dtype=torch.uint8)  # 70 frames: more than one chunk
    maps = video.flatten(0, 1).permute(0, 3, 1, 2).float() / 255.0 - 0.5
    convolutions: list[Any] = list(encoder.convolutions)
    for conv, (_, _, padding) in zip(convolutions, layers, strict=True):
        black = nn.functional.pad(maps, 4 * (padding,), value=-0.5 if conv is convolutions[0] else 0.0)
        maps = nn.functional.conv2d(black, conv.weight, conv.bias, stride=2).relu()
    features = encoder.dense(maps.flatten(1)).view(2, 35, 8)
    mean, variance = features.mean(-1, keepdim=True), features.var(-1, keepdim=True, unbiased=False)
    expected = (features - mean) / (variance + 1e-5).sqrt()
    torch.testing.assert_close(encoder(video), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(encoder(video.float() / 255.0), expected, atol=1e-5, rtol=1e-5)


def test_features_never_saturate_the_core_whatever_the_weights() -> None:
    """Without the norm they grow together in training until the core sees a constant, and cloning stalls."""
    encoder = ConvEncoder(SHAPE, 64, 0.0, COMPACT)
    with torch.no_grad():
        encoder.dense.weight.mul_(100.0)
        encoder.dense.bias.add_(1000.0)
    features = encoder(torch.randint(0, 256, (2, 3, *SHAPE), dtype=torch.uint8))
    torch.testing.assert_close(features.square().mean(-1), torch.ones(2, 3), atol=1e-2, rtol=0)
    torch.testing.assert_close(features.mean(-1), torch.zeros(2, 3), atol=1e-4, rtol=0)


@pytest.fixture(name="chroma", scope="module")
def _chroma() -> ChromaEncoder:
    torch.manual_seed(0)
    return ChromaEncoder((32, 36, 3), 8, 0.0, COMPACT)


def test_chroma_is_the_convolutions_of_another_image(chroma: ChromaEncoder) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (70, 32, 36, 3), dtype=np.uint8)  # more than one chunk
    frames[0] //= 10
    image = frames / 255.0
    for frame in image[:, :28]:
        for pixel in frame.reshape(-1, 3):
            lightness = sum(pixel) / 3
            pixel[:] = 2.0 * (pixel - lightness) + 0.5 * min(lightness / 0.15, 1.0)
    plain = ConvEncoder((32, 36, 3), 8, 0.0, COMPACT)
    plain.load_state_dict(chroma.state_dict())
    expected = plain(torch.from_numpy(image).float())
    torch.testing.assert_close(chroma(torch.from_numpy(frames)), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(chroma(torch.from_numpy(frames).float() / 255.0), expected, atol=1e-5, rtol=1e-5)


def test_chroma_sees_no_change_of_lightness_but_black(chroma: ChromaEncoder) -> None:
    frame = torch.randint(40, 200, (1, 32, 36, 3), dtype=torch.uint8)
    lighter, black, gauge = (frame.clone() for _ in range(3))
    lighter[:, 4:28, 5:30] += 55
    black[:, 4:28, 5:30] = 0
    gauge[:, 28:] += 55
    before, *after = (chroma(each) for each in (frame, lighter, black, gauge))
    torch.testing.assert_close(after[0], before, atol=1e-5, rtol=1e-5)
    assert all((each - before).abs().max() > 1e-3 for each in after[1:])


class MeanColour(nn.Module):
    """An encoder of one's own: the mean colour of a frame."""

    def __init__(self, frame_shape: tuple[int, int, int], features: int, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(3, features)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.dense(frames.float().mean(dim=(-3, -2)))


def test_an_encoder_of_ones_own_needs_a_class_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "mean-colour", MeanColour)
    torch.manual_seed(0)
    driver = Driver(DriverConfig(core="lstm", encoder="mean-colour", frame_shape=SHAPE)).eval()
    frame = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    action, state = driver.act(frame, driver.begin(), 0.02)
    assert action in range(5)
    again = load_driver(save_driver(tmp_path / "driver", driver))
    assert isinstance(again.encoder, MeanColour)
    assert torch.equal(again.act(frame, again.begin(), 0.02)[1][0], state[0])


class Flat(MeanColour):
    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return super().forward(frames).flatten(0, 1)


class Single(MeanColour):
    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return super().forward(frames.permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (
            lambda: MeanColour(SHAPE, 64, 0.0),
            "cannot be called \\(frame_shape=.*, .*dropout=0\\): TypeError",
        ),
        (
            Flat,
            r"must map frames \(..., H, W, 3\) to features \(..., 64\), got \(2, 64\) with frames \(1, 2, 32.*",
        ),
        (Single, r"cannot be called with frames \(1, 2, .*\) uint8: test_encoders.py:\d+: RuntimeError"),
        (lambda *sizes: int("three"), r"cannot be called \(.*\): test_encoders.py:\d+: ValueError: invalid literal"),
        (lambda *sizes: torch.zeros, r"cannot be called with frames .*: AttributeError"),
    ],
)
def test_an_encoder_of_ones_own_is_checked(encoder: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "mine", encoder)
    with pytest.raises(ValueError, match=f"encoder 'mine' {message}"):
        Driver(DriverConfig(core="lstm", encoder="mine", frame_shape=SHAPE))


@pytest.mark.parametrize("encoder", [MeanColour(SHAPE, 8, 0.0), "compact"])
def test_what_makes_no_encoder_is_refused_where_it_is_added(encoder: Any) -> None:
    with pytest.raises(ValueError, match="encoder 'mine': must be a class of modules or a function that makes one of"):
        ENCODERS["mine"] = encoder


def test_an_encoder_of_ones_own_may_be_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(MeanColour):
        def __init__(self, frame_shape: tuple[int, int, int], features: int, dropout: float) -> None:
            super().__init__(frame_shape, features, dropout)
            self.dense = nn.LazyLinear(features)  # type: ignore[assignment]

    monkeypatch.setitem(ENCODERS, "mine", Lazy)
    driver = Driver(DriverConfig(core="lstm", encoder="mine", frame_shape=SHAPE))
    assert driver.encoder.training
    assert not any(nn.parameter.is_lazy(each) for each in driver.parameters())


def test_the_pooled_encoder_prepares_the_mean_of_the_grey_pixels_and_of_the_bar_s_columns() -> None:
    """Against numpy, from bytes and from floats, whole or in two steps, and every pixel counts."""
    torch.manual_seed(0)
    encoder = PooledEncoder((96, 96, 3), 8, 0.0)
    frames = np.random.default_rng(0).integers(256, size=(2, 3, 96, 96, 3), dtype=np.uint8)
    scaled = frames / 255.0
    grey = (scaled @ PooledEncoder.GREY).reshape(2, 3, 48, 2, 48, 2).mean(axis=(3, 5))
    columns = 4.0 * scaled[:, :, 84:].mean(axis=2)  # (2, 3, 96, 3)
    expected = np.concatenate((grey.reshape(2, 3, -1), columns.swapaxes(-1, -2).reshape(2, 3, -1)), axis=-1)
    for given in (torch.from_numpy(frames), torch.from_numpy(scaled).float()):
        prepared = encoder.prepare(given)
        np.testing.assert_allclose(prepared.numpy(), expected, atol=1e-5)
        assert torch.equal(encoder(given), encoder.encode(prepared))
    frame = torch.rand(1, 96, 96, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(encoder.prepare(frame).sum(), frame)
    assert (gradient > 0).all()


def test_the_speed_of_the_car_is_linear_in_what_the_pooled_encoder_prepares() -> None:
    """The white gauge fills the columns 12 to 14. The frames show a drive on gas alone."""
    env = make_env(EnvConfig())
    env.reset(seed=3)
    rows, speeds = [], []
    for _ in range(110):
        frame, *_, info = env.step(3)
        rows.append(frame)
        speeds.append(info["speed"])
    prepared = PooledEncoder((96, 96, 3), 8, 0.0).prepare(torch.from_numpy(np.stack(rows)))
    white = prepared[:, 48 * 48 :].reshape(-1, 3, 96)[:, 2, 12:15].sum(dim=1).numpy()
    assert np.corrcoef(white, speeds)[0, 1] > 0.99


@pytest.mark.parametrize("shape", [(8, 96, 3), (96, 96, 1)])
def test_frames_that_the_pooled_encoder_cannot_see_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"frame_shape: must be \(H >= 16, W >= 16, 3\)"):
        PooledEncoder(shape, 8, 0.0)
