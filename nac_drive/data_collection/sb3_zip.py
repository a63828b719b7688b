"""The policy in a .zip file of stable-baselines3.

Most of such a file are pickles, which can run foreign code. None is read. The policy is built anew from the shapes of
its weights and from plain JSON, and the weights are read without pickle's code (`torch.load(weights_only=True)`).
"""

from __future__ import annotations

import ast
import io
import json
import zipfile
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import Any

from nac_drive.policies.image_input import ImageInput
from nac_drive.storage.names import shown
from nac_drive.storage.read import FileError, one_line

LARGEST_FILE = 2**28
"""Bytes of all parts of a file, unpacked."""
MOST_WEIGHTS = 2**26
"""Numbers in the largest tensor."""
MOST_LAYERS = 16
_DATA, _WEIGHTS = "data", "policy.pth"
_ACTOR_CRITIC, _Q_NETWORK = "stable_baselines3.common.policies", "stable_baselines3.dqn.policies"
_KNOWN = {"features_extractor_kwargs", "optimizer_class", "optimizer_kwargs", "net_arch", "normalize_images"}
"""Settings of a policy that are rebuilt, or that only its training needs."""


def load_zip(path: Path) -> Any:
    """Load the CnnPolicy of a saved PPO, A2C or DQN.

    The file may come from anybody.

    Args:
        path: The file.

    Returns:
        The policy, whose `predict` drives.

    Raises:
        FileNotFoundError: There is no such file.
        FileError: It is another policy, or damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"driver: there is no file {path}; pass a .zip file of stable-baselines3.")
    try:
        data, weights = _read(path)
        return _built(path.name, data, weights)
    except Exception as error:  # zip, JSON and torch have no common base
        raise FileError(
            f"driver {shown(path)}: only the weights of a CnnPolicy of PPO, A2C or DQN are read from a .zip, and it "
            f"has none: {shorten(one_line(error), 400).rstrip('.')}. Its pickles are never read here. If you trust it "
            f"and its frames fit, load it in mine.py by its own class, such as `model = stable_baselines3.SAC.load("
            f"{path.name!r})`, and pass mine.py:model."
        ) from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plain JSON of a file, and its weights.

    Raises:
        Exception: Several kinds.
    """
    import torch

    with zipfile.ZipFile(path) as parts:
        for name in (_DATA, _WEIGHTS):
            if parts.getinfo(name).file_size > LARGEST_FILE:
                raise ValueError(f"{name} is larger than {LARGEST_FILE:,} bytes")
        data, content = json.loads(parts.read(_DATA)), parts.read(_WEIGHTS)
    with zipfile.ZipFile(io.BytesIO(content)) as tensors:
        if sum(part.file_size for part in tensors.infolist()) > LARGEST_FILE:
            raise ValueError(f"its weights are larger than {LARGEST_FILE:,} bytes")
    weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if any(not isinstance(values, torch.Tensor) or values.numel() > MOST_WEIGHTS for values in weights.values()):
        raise ValueError("its weights are no tensors, or too large")
    return data, dict(weights)


def _built(name: str, data: dict[str, Any], weights: dict[str, Any]) -> Any:
    """Build the policy that has these weights.

    Raises:
        Exception: Several kinds: it is another policy.
    """
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common.policies import ActorCriticCnnPolicy
    from stable_baselines3.dqn.policies import CnnPolicy

    source, space = data["policy_class"]["__module__"], data["observation_space"]
    if source not in (_ACTOR_CRITIC, _Q_NETWORK):
        raise ValueError(f"its policy is of the module {source!r}")
    settings = {name: value for name, value in data["policy_kwargs"].items() if not name.startswith(":")}
    if unknown := settings.keys() - _KNOWN:
        raise ValueError(f"its policy has the setting {min(unknown)!r}")
    first = "q_net." if source == _Q_NETWORK else ""
    rows, columns = weights[f"{first}features_extractor.linear.0.weight"].shape
    shape = tuple(_plain(space["_shape"]))
    ImageInput.of(shape, name)
    if space["dtype"] != "uint8" or columns != _features(*shape):
        raise ValueError(f"its observations are {space['dtype']} {shape}, which do not fit its weights")
    frames = spaces.Box(0, 255, shape, np.uint8)
    keywords: dict[str, Any] = {"features_extractor_kwargs": {"features_dim": rows}}
    keywords |= {name: _plain(settings[name]) for name in ("net_arch", "normalize_images") if name in settings}
    _require_small(rows, keywords.get("net_arch", []))
    if source == _Q_NETWORK:
        biases = [values for name, values in weights.items() if name.startswith("q_net.q_net.") and values.ndim == 1]
        policy: Any = CnnPolicy(frames, spaces.Discrete(len(biases[-1])), _no_rate, **keywords)
    else:
        policy = ActorCriticCnnPolicy(frames, _actions(data, weights), _no_rate, **keywords)
    policy.load_state_dict(weights, strict=True)
    return policy


def _require_small(features: int, layers: Any) -> None:
    """Check the sizes of a policy's layers before they are made.

    Raises:
        ValueError: They are no sizes, or too large.
    """
    for chain in layers.values() if isinstance(layers, dict) else [layers]:
        sizes = [features, *chain]
        if len(sizes) > MOST_LAYERS or not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError(f"its net_arch must be at most {MOST_LAYERS} sizes, got {str(layers)[:100]}")
        if any(one * other > MOST_WEIGHTS // MOST_LAYERS for one, other in pairwise(sizes)):
            raise ValueError(f"its net_arch is too large, {str(layers)[:100]}")


def _actions(data: dict[str, Any], weights: dict[str, Any]) -> Any:
    """Return the action space of an actor.

    Raises:
        ValueError: Its bounds are not CarRacing's.
    """
    import numpy as np
    from gymnasium import spaces

    if "log_std" not in weights:
        return spaces.Discrete(len(weights["action_net.weight"]))
    bounds = [[float(word) for word in data["action_space"][end].strip("[]").split()] for end in ("low", "high")]
    low, high = np.array(bounds, np.float32)
    return spaces.Box(low, high)


def _features(channels: int, height: int, width: int) -> int:
    """Return the number of features of stable-baselines3's NatureCNN."""
    sizes = [((size - 8) // 4 + 1 - 4) // 2 + 1 - 2 for size in (height, width)]
    return 64 * sizes[0] * sizes[1]


def _plain(value: Any) -> Any:
    """Return the value of a setting without running code."""
    return ast.literal_eval(value) if isinstance(value, str) and len(value) < 200 else value


def _no_rate(_: float) -> float:
    """Return a learning rate: it does not learn."""
    return 0.0
