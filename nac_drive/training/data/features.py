"""Features of a frozen encoder, kept for the next run.

They are computed block by block, and lie in the dataset's folder.

DATASET/features/ENCODER/EPISODE.safetensors: ENCODER is the hash of all that decides the features, EPISODE is the hash
of the episode's file, 32 digits of each. A file is signed with a key of this user: features that came with a dataset of
somebody else are computed again.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.data_collection.identity import object_hash
from nac_drive.envs import EnvConfig
from nac_drive.policies import encoders
from nac_drive.storage.names import shown
from nac_drive.storage.own_key import own_key
from nac_drive.storage.write import WriteError, write_atomically, writing
from nac_drive.training.data.images import flip_frames, masked
from nac_drive.training.data.read_ahead import read_ahead

FEATURES = "features"
"""The folder in a dataset. It may be removed at any time: features are then computed again."""
_BLOCK = 1024
"""Frames that are decoded at a time."""
_HEADER = 2**12
"""Bytes that a file may have besides its numbers."""


@torch.no_grad()
def frozen_features(
    encoder: nn.Module,
    frames: Frames,
    env: EnvConfig,
    device: torch.device,
    flips: Sequence[bool] = (False,),
    dataset: Path | None = None,
) -> list[Tensor]:
    """Return the features of frames, without gradients. No more than some thousand frames are decoded at a time.

    Args:
        encoder: The encoder, on `device`.
        frames: E episodes of N frames, in memory or in their files.
        env: The environment; it may mask the status bar.
        device: Where the features go.
        flips: True for the features of the flipped frames, False for the frames' own.
        dataset: The dataset folder of the episodes, where features are looked for and kept; None for neither. A file
            there that is damaged, does not belong to encoder and episode, or was not written by this user, is written
            again.

    Returns:
        (N, d) for each of `flips`: 4 d bytes a frame.

    Raises:
        DatasetError: If an episode is damaged.
    """
    width = encoder(torch.zeros((1, *env.spec.frame_shape), dtype=torch.uint8, device=device)).shape[-1]
    results = [torch.empty((len(frames), width), device=device) for _ in flips]
    keys = [encoder_key(encoder, env, device, flip) for flip in flips]
    caches = [_Cache(dataset, key, width) for key in keys] if dataset and frames.hashes else []
    spans = list(zip(frames.offsets[:-1].tolist(), frames.offsets[1:].tolist(), strict=True))
    blocks = []
    for episode, (first, end) in enumerate(spans):
        found = [cache.load(frames.hashes[episode], end - first) for cache in caches]
        kept = [features for features in found if features is not None]
        if len(kept) == len(flips):
            for result, features in zip(results, kept, strict=True):
                result[first:end] = features
        else:
            blocks += [(episode, start, min(start + _BLOCK, end)) for start in range(first, end, _BLOCK)]

    def read(block: tuple[int, int, int]) -> NDArray[np.uint8]:
        return masked(frames.frames[block[1] : block[2]], env)

    size = _BLOCK * math.prod(env.spec.frame_shape)
    for (episode, start, stop), images in zip(blocks, read_ahead(read, blocks, size), strict=True):
        seen = torch.from_numpy(images).to(device)  # (n, H, W, 3)
        for result, flip in zip(results, flips, strict=True):
            result[start:stop] = encoder(flip_frames(seen, env.spec) if flip else seen)
        first, end = spans[episode]
        if stop == end:
            for cache, result in zip(caches, results, strict=False):  # without a dataset there is none
                cache.save(frames.hashes[episode], result[first:end])
    return results


def encoder_key(encoder: nn.Module, env: EnvConfig, device: torch.device, flip: bool) -> str:
    """Return the SHA-256 of what decides a frame's features.

    It covers encoder, its code, weights, mask, flip, kind of device.
    """
    spec = env.spec
    changes = (env.mask_bar and spec.bar_top, flip and (spec.bar_top, spec.flipped_bar_columns))
    digest = hashlib.sha256(f"{encoder} {encoder.training} {changes} {device.type}".encode())
    digest.update(object_hash(type(encoder)).encode())  # a user may have edited it
    digest.update(Path(encoders.__file__).read_bytes())
    for name, weight in sorted(encoder.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def sign(secret: bytes, encoder: str, episode: str, features: Tensor) -> str:
    """Return the keyed hash of an episode's features (N, d).

    It tells that this user computed them.

    Args:
        secret: The result of `own_key`.
        encoder: The result of `encoder_key`.
        episode: SHA-256 of the episode's file.
        features: The features, on the CPU.
    """
    return hmac.new(secret, f"{encoder} {episode} ".encode() + features.numpy().tobytes(), "sha256").hexdigest()


class _Cache:
    """The files of one encoder in a dataset.

    Args:
        dataset: The dataset folder.
        key: The result of `encoder_key`.
        width: Number of features.
    """

    def __init__(self, dataset: Path, key: str, width: int):
        self._key, self._width = key, width
        self._folder: Path | None = dataset / FEATURES / key[:32]
        try:
            self._secret = own_key()
        except OSError as error:
            self._give_up(f"no key can be kept in the cache folder of the user ({error.strerror or error})")
            return
        if any(folder.is_symlink() for folder in (self._folder, self._folder.parent)):
            self._give_up("it is a link")

    def load(self, episode: str, length: int) -> Tensor | None:
        """Return the features (N, d) of the episode with a hash.

        The hash is a SHA-256. None without sound features of this user.
        """
        path = self._path(episode)
        size = 4 * length * self._width
        try:
            if path is None or path.is_symlink() or not size < path.stat().st_size <= size + _HEADER:
                return None
            with safe_open(path, "pt") as file:
                stored = file.get_slice("features")
                if (stored.get_dtype(), stored.get_shape()) != ("F32", [length, self._width]):
                    return None
                features, metadata = file.get_tensor("features"), file.metadata()
        except (OSError, SafetensorError):
            return None
        sound = metadata == self._metadata(episode, features) and bool(features.isfinite().all())
        return features if sound else None

    def save(self, episode: str, features: Tensor) -> None:
        """Keep the features of an episode. If nothing can be written there, a warning says so, once."""
        if (path := self._path(episode)) is None:
            return
        features = features.cpu().contiguous()
        try:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, save({"features": features}, self._metadata(episode, features)))
        except (WriteError, FileExistsError) as error:
            self._give_up(str(error.__cause__ or error))

    def _path(self, episode: str) -> Path | None:
        return self._folder / f"{episode[:32]}.safetensors" if self._folder else None

    def _metadata(self, episode: str, features: Tensor) -> dict[str, str]:
        return {"encoder": self._key, "episode": episode, "mac": sign(self._secret, self._key, episode, features)}

    def _give_up(self, cause: str) -> None:
        warnings.warn(
            f"features cannot be kept in {shown(self._folder)}: {shown(cause)}; every run computes them again.",
            stacklevel=2,
        )
        self._folder = None
