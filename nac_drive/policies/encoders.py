"""Encoders: frames in, features out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.plugins import is_of_package, place_of
from nac_drive.policies.encoder_base import Encoder, in_chunks, last_maps, strided_convolutions
from nac_drive.policies.ops.size_limit import is_limited
from nac_drive.policies.thesis_encoders import BojarskiEncoder, ThesisEncoder
from nac_drive.registry import Registry
from nac_drive.storage.read import one_line


class ConvEncoder(Encoder):
    """Convolutions of stride 2 with ReLU, dropout, a dense layer, LayerNorm.

    The NAC paper passes its 2430 features to the recurrent layer. Here a dense layer reduces them to `features`, so
    that every core has the same, moderate input. Neighbouring frames are nearly equal and mostly grass: without centred
    pixels and LayerNorm the features grow together until they saturate the core, which then learns the frequency of
    each action and nothing else.

    Args:
        frame_shape: Height, width and channels of a frame.
        features: Number of output features.
        dropout: Fraction of convolutional features dropped in training.
        layers: Filters, kernel and padding of every convolution. Padding counts as black.

    Raises:
        ValueError: The frames are too small for the convolutions, or do not have three channels.
    """

    def __init__(
        self,
        frame_shape: tuple[int, int, int],
        features: int,
        dropout: float,
        layers: tuple[tuple[int, int, int], ...],
    ) -> None:
        super().__init__()
        height, width, channels = frame_shape
        least = 1
        for _, kernel, padding in reversed(layers):
            least = max(2 * (least - 1) + kernel - 2 * padding, 1)
        if channels != 3 or height < least or width < least:
            raise ValueError(f"frame_shape: must be (H >= {least}, W >= {least}, 3), got {tuple(frame_shape)}.")
        self.image_size = height, width
        self.convolutions, maps = strided_convolutions(channels, self.image_size, layers)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(maps, features)
        self.norm = nn.LayerNorm(features)

    def encode(self, prepared: Tensor) -> Tensor:
        """Return features (..., features) of frames (..., H, W, 3)."""
        batch = prepared.shape[:-3]
        images, first = prepared.flatten(0, -4), self._first(prepared)
        maps = [last_maps(self._convolve(chunk, *first)) for chunk in in_chunks(images)]
        return self.read(maps[0] if len(maps) == 1 else torch.cat(maps), prepared).unflatten(0, batch)

    def maps(self, prepared: Tensor) -> Iterator[Tensor]:
        """Yield the maps (n, C, h, w) of every convolution of frames (n, H, W, 3)."""
        return self._convolve(prepared, *self._first(prepared))

    def read(self, maps: Tensor, prepared: Tensor) -> Tensor:
        return self.norm(self.dense(self.dropout(maps.flatten(1))))

    def _first(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the first convolution of such frames."""
        scale = 255.0 if frames.dtype == torch.uint8 else 1.0
        first: Any = self.convolutions[0]
        weight = first.weight / scale  # folds the scaling to 0..1
        return weight, first.bias - 0.5 * first.weight.sum(dim=(1, 2, 3))  # and the centring around 0.5

    def _convolve(self, frames: Tensor, weight: Tensor, bias: Tensor) -> Iterator[Tensor]:
        first: Any = self.convolutions[0]
        images = frames.permute(0, 3, 1, 2).to(weight.dtype)  # (n, 3, H, W), channels last in memory
        x = F.conv2d(images, weight, bias, stride=2, padding=first.padding).relu_()
        yield x
        for conv in list(self.convolutions)[1:]:
            x = conv(x).relu_()  # h and w halved
            yield x


class ChromaEncoder(ConvEncoder):
    """A ConvEncoder that sees colours without their lightness.

    A road in the shade and one in the sun have the same colour in different lightness, the mean of red, green and blue.
    Three numbers of a pixel stay: its differences from the lightness, GAIN times, plus how far it is from black, which
    is the same for all that is no darker than DARK. So black bars are no grey road. The lowest eighth of the frame,
    where CarRacing's gauges are, stays as it is: they are white on black.
    """

    GAIN = 2.0
    """Factor of the differences. In grass they are -0.13 to 0.27, where white is 1."""
    DARK = 0.15
    """Lightness, 0-1, below which a pixel is more or less black."""

    def seen(self, frames: Tensor) -> Tensor:
        """Return what the convolutions see of frames (n, H, W, 3).

        It has their shape and their white, as floats.
        """
        white = 255.0 if frames.dtype == torch.uint8 else 1.0
        world_rows = frames.shape[1] - frames.shape[1] // 8
        world, gauges = frames.to(self.dense.weight.dtype).tensor_split([world_rows], dim=1)  # (n, h, W, 3)
        lightness = world.mean(dim=-1, keepdim=True)  # (n, h, W, 1)
        presence = 0.5 * white * (lightness / (self.DARK * white)).clamp(max=1.0)
        return torch.cat((self.GAIN * (world - lightness) + presence, gauges), dim=1)

    def _convolve(self, frames: Tensor, weight: Tensor, bias: Tensor) -> Iterator[Tensor]:
        yield from super()._convolve(self.seen(frames), weight, bias)


class PooledEncoder(Encoder):
    """A small grey image, and the status bar's column means.

    The image has half the height and width.

    Made for learning by driving, which passes every frame through the network several times: `prepare`, which has no
    weights, does its part once.
    CarRacing's gauges are bars of a variable length in the lowest eighth of the frame. They are too small to be seen in
    the grey image, but their readings are linear in the means of the columns there.

    Args:
        frame_shape: Height, width and channels of a frame.
        features: Number of output features.
        dropout: Fraction of features of convolutions and columns dropped in training.

    Raises:
        ValueError: The frames are too small for the convolutions, or do not have three channels.
    """

    LAYERS = ((16, 5, 2), (32, 3, 1), (32, 3, 1))
    """Filters, kernel and padding; every stride is 2."""
    GREY = (0.299, 0.587, 0.114)
    """Weights of red, green and blue (ITU-R BT.601)."""
    COLUMN_SCALE = 4.0
    """Factor of the columns' means, which are small: most of the bar is black."""

    def __init__(self, frame_shape: tuple[int, int, int], features: int, dropout: float) -> None:
        height, width, channels = frame_shape
        if channels != 3 or height < 16 or width < 16:
            raise ValueError(f"frame_shape: must be (H >= 16, W >= 16, 3), got {tuple(frame_shape)}.")
        super().__init__()
        self.image_size, self._bar, self._columns = (height // 2, width // 2), height // 8, width * channels
        self._grey: Tensor
        self.register_buffer("_grey", torch.tensor(2 * self.GREY), persistent=False)  # (6,)
        self.convolutions, maps = strided_convolutions(1, self.image_size, self.LAYERS)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(maps + self._columns, features)
        self.norm = nn.LayerNorm(features)

    def prepare(self, frames: Tensor) -> Tensor:
        """Return the grey image and the columns (..., P) of frames (..., H, W, 3)."""
        batch, weight, (height, width) = frames.shape[:-3], self.dense.weight, self.image_size
        scale = 255.0 if frames.dtype == torch.uint8 else 1.0
        images = frames.flatten(0, -4).to(weight.dtype)  # (N, H, W, 3)
        rows = images[:, : 2 * height, : 2 * width].reshape(-1, height, 2, width, 6)  # pixels side by side
        grey = self._grey.to(weight.dtype) / (4 * scale)
        image = (rows[:, :, 0] + rows[:, :, 1]) @ grey  # (N, H/2, W/2)
        columns = images[:, -self._bar :].mean(dim=1).mT * (self.COLUMN_SCALE / scale)  # (N, 3, W)
        return torch.cat((image.flatten(1), columns.flatten(1)), dim=1).unflatten(0, batch)

    def encode(self, prepared: Tensor) -> Tensor:
        """Return features (..., features) of what `prepare` made (..., P)."""
        batch = prepared.shape[:-1]
        prepared = prepared.flatten(0, -2)
        maps = [last_maps(self.maps(chunk)) for chunk in in_chunks(prepared, smaller=2)]
        return self.read(maps[0] if len(maps) == 1 else torch.cat(maps), prepared).unflatten(0, batch)

    def maps(self, prepared: Tensor) -> Iterator[Tensor]:
        """Yield the maps (n, C, h, w) of every convolution.

        They come from what `prepare` made (n, P).
        """
        x = (prepared[:, : -self._columns] - 0.5).unflatten(1, (*self.image_size, 1))
        x = x.permute(0, 3, 1, 2)  # (n, 1, H/2, W/2), channels last; of one channel, `contiguous` would not make it so
        for conv in self.convolutions:
            x = conv(x).relu_()
            yield x

    def read(self, maps: Tensor, prepared: Tensor) -> Tensor:
        seen = torch.cat((maps.flatten(1), prepared[:, -self._columns :]), dim=1)  # (n, C h w + 3 W)
        return self.norm(self.dense(self.dropout(seen)))


def zero_black(features: Tensor, frames: Tensor) -> Tensor:
    """Return features (..., d), zeros where a frame is black.

    The frame is (..., H, W, 3) or as prepared, and black all over.
    """
    return features * frames.flatten(features.dim() - 1).any(dim=-1, keepdim=True)


class ZeroBlack(nn.Module):
    """An encoder whose features are zeros for black frames."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, frames: Tensor) -> Tensor:
        """Return features (..., d) of frames (..., H, W, 3)."""
        return zero_black(self.encoder(frames), frames)


PAPER = ((10, 3, 0), (20, 5, 0), (30, 5, 0))
"""Filters, kernel and padding (NAC paper, Table 4; the middle layer and the strides follow the published code):
2430 features of a 96 x 96 frame."""
COMPACT = ((16, 5, 2), (32, 3, 1), (32, 3, 1), (16, 3, 1))
"""576 features, a third of the parameters. Without padding every stride of 2 may leave out the last row and column. The
paper's convolutions miss five of a frame's 96 rows and columns, with half of the speed gauge; these miss none."""

EncoderFactory = Callable[[tuple[int, int, int], int, float], nn.Module]


def _require_factory(name: str, factory: Any) -> None:
    """Check what a user adds.

    Raises:
        ValueError: It makes no encoder.
    """
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ValueError(
            f"encoder {name!r}: must be a class of modules or a function that makes one of (frame_shape, features, "
            f"dropout), got {type(factory).__name__}; pass the class itself."
        )


_SHIPPED: dict[str, EncoderFactory] = {
    "paper": partial(ConvEncoder, layers=PAPER),
    "compact": partial(ConvEncoder, layers=COMPACT),
    "chroma": partial(ChromaEncoder, layers=COMPACT),
    "pooled": PooledEncoder,
    "thesis": ThesisEncoder,
    "bojarski": BojarskiEncoder,
}
ENCODERS: Registry[EncoderFactory] = Registry(
    "encoder", _SHIPPED, adapt=lambda name, encoder: encoder, check=_require_factory
)
"""Name -> (frame_shape, features, dropout) -> module: frames (..., H, W, 3) -> features (..., features)."""


def build_encoder(name: str, frame_shape: tuple[int, int, int], features: int, dropout: float) -> nn.Module:
    """Make an encoder.

    What a user's module makes of two frames is checked, but for a saved driver, whose training began with that.

    Args:
        name: A name in ENCODERS.
        frame_shape: Height, width and channels of a frame.
        features: Number of output features.
        dropout: Fraction of convolutional features dropped in training.

    Raises:
        ValueError: There is none of that name, or it does not map frames (..., H, W, 3) to features (..., features).
    """
    factory = ENCODERS.require(name)
    if factory in _SHIPPED.values():
        return factory(frame_shape, features, dropout)
    call = f"(frame_shape={frame_shape}, features={features}, dropout={dropout:g})"
    try:
        encoder = factory(frame_shape, features, dropout)
        if is_limited() and not any(nn.parameter.is_lazy(weight) for weight in encoder.parameters()):
            return encoder
        for batch in ((1, 2), (2,)):
            shape = (*batch, *frame_shape)
            call = f"with frames {shape} uint8"
            with torch.no_grad():
                seen = encoder.eval()(torch.zeros(shape, dtype=torch.uint8))
            if not isinstance(seen, Tensor) or seen.shape != (*batch, features):
                got = tuple(seen.shape) if isinstance(seen, Tensor) else type(seen).__name__
                raise ValueError(
                    f"encoder {name!r} must map frames (..., H, W, 3) to features (..., {features}), got {got} {call}; "
                    "convolve frames.flatten(0, -4), and unflatten its axis 0 to frames.shape[:-3] at the end."
                )
    except Exception as error:
        if isinstance(error, ValueError) and is_of_package(error):
            raise
        raise ValueError(
            f"encoder {name!r} cannot be called {call}: {place_of(error)}{type(error).__name__}: {one_line(error)}"
        ) from error
    return encoder.train()
