"""The encoders of Hasani's thesis (2020), Tables 6.3 and 6.4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nac_drive.policies.encoder_base import Encoder, in_chunks, last_maps, strided_convolutions


class WhitenedEncoder(Encoder):
    """Convolutions with ReLU over a whitened image.

    Both encoders have them in common.

    Whitening (Section 6.2) takes the mean of all pixels and colours of an image from them, and divides by their
    standard deviation. An image of one colour becomes zeros.

    Args:
        frame_shape: Height, width and channels of a frame.
        layers: See `strided_convolutions`.
        least: Least height and width of a frame.
        dropout: Fraction of the last maps' features dropped in training.

    Raises:
        ValueError: The frames are too small for the convolutions, or do not have three channels.
    """

    def __init__(
        self, frame_shape: tuple[int, int, int], layers: Sequence[Sequence[int]], least: int, dropout: float
    ) -> None:
        super().__init__()
        height, width, channels = frame_shape
        if channels != 3 or height < least or width < least:
            raise ValueError(f"frame_shape: must be (H >= {least}, W >= {least}, 3), got {tuple(frame_shape)}.")
        self.image_size = height, width
        self.convolutions, self.map_features = strided_convolutions(channels, self.image_size, layers)
        self.dropout = nn.Dropout(dropout)

    def encode(self, prepared: Tensor) -> Tensor:
        """Return features (..., features) of frames (..., H, W, 3)."""
        images = prepared.flatten(0, -4)
        maps = [last_maps(self.maps(chunk)) for chunk in in_chunks(images)]
        return self.read(torch.cat(maps), prepared).unflatten(0, prepared.shape[:-3])

    def maps(self, prepared: Tensor) -> Iterator[Tensor]:
        """Yield the maps (n, C, h, w) of every convolution of frames (n, H, W, 3)."""
        first: Any = self.convolutions[0]
        x = whitened(prepared.permute(0, 3, 1, 2).to(first.weight.dtype))  # (n, 3, H, W), channels last in memory
        for conv in self.convolutions:
            x = conv(x).relu_()
            yield x


class ThesisEncoder(WhitenedEncoder):
    """The convolutional head of the recurrent networks (Table 6.4).

    Each channel of the last maps has its own features.

    24, 36, 48, 64 and 8 filters, padded to keep ceil(side / stride) rows and columns; then one linear layer for each of
    the 8 channels. With 32 features and frames of 78 x 200 pixels it has 79,420 parameters, as the thesis says.

    Args:
        frame_shape: Height, width and channels of a frame.
        features: Number of output features, a multiple of 8.
        dropout: Fraction of the last maps' features dropped in training; the thesis has none.

    Raises:
        ValueError: `features` is no multiple of 8, or the frames do not have three channels.
    """

    LAYERS = ((24, 5, 2, 2), (36, 5, 2, 2), (48, 3, 1, 2), (64, 3, 1, 1), (8, 3, 1, 1))
    """Filters, kernel, padding and stride."""

    def __init__(self, frame_shape: tuple[int, int, int], features: int, dropout: float) -> None:
        channels = self.LAYERS[-1][0]
        if features % channels:
            raise ValueError(
                f"features: must be a multiple of the encoder's {channels} channels, got {features}; the thesis has 32."
            )
        super().__init__(frame_shape, self.LAYERS, 1, dropout)
        places = self.map_features // channels
        linear = [nn.Linear(places, features // channels) for _ in range(channels)]
        self.weight = nn.Parameter(torch.stack([each.weight.detach() for each in linear]))  # (8, features / 8, places)
        self.bias = nn.Parameter(torch.stack([each.bias.detach() for each in linear]))  # (8, features / 8)

    def read(self, maps: Tensor, prepared: Tensor) -> Tensor:
        places = self.dropout(maps.flatten(2))  # (n, 8, places)
        return (torch.einsum("ncp,cfp->ncf", places, self.weight) + self.bias).flatten(1)


class BojarskiEncoder(WhitenedEncoder):
    """The convolutions of the network without memory (Table 6.3, after Bojarski et al., arXiv 1604.07316), flattened.

    24, 36, 48, 64 and 64 filters without padding. Core `cnn-bojarski` has the dense layers. Together, with one output,
    they have 5,068,901 parameters at 78 x 200 pixels; the thesis counts 5,068,900, without the bias of the output.

    Args:
        frame_shape: Height, width and channels of a frame.
        features: Number of output features, all values of the last maps: 2304 for 96 x 96 pixels.
        dropout: Fraction of features dropped in training; 0.5 in the thesis.

    Raises:
        ValueError: `features` is not their number, the frames are too small, or do not have three channels.
    """

    LAYERS = ((24, 5, 0, 2), (36, 5, 0, 2), (48, 3, 0, 2), (64, 3, 0, 1), (64, 3, 0, 1))
    """Filters, kernel, padding and stride."""
    LEAST = 53
    """Pixels of a side of which one place is left."""

    def __init__(self, frame_shape: tuple[int, int, int], features: int, dropout: float) -> None:
        super().__init__(frame_shape, self.LAYERS, self.LEAST, dropout)
        if features != self.map_features:
            raise ValueError(
                f"features: must be {self.map_features} with encoder bojarski and frames of {tuple(frame_shape)}, got "
                f"{features}; its convolutions are not reduced."
            )

    def read(self, maps: Tensor, prepared: Tensor) -> Tensor:
        return self.dropout(maps.flatten(1))


def whitened(images: Tensor) -> Tensor:
    """Return images (n, C, H, W) of mean 0 and deviation 1.

    An image of one colour gives zeros.
    """
    deviation, mean = torch.std_mean(images, dim=(1, 2, 3), keepdim=True, correction=0)
    return (images - mean) / torch.where(deviation > 0, deviation, 1.0)
