"""The expert: a convolutional policy trained by PPO (`ppo.py`), shipped and loaded as safetensors + JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from envs import EnvConfig

SHIPPED = Path(__file__).parent / "experts"
"""One folder per control: `discrete`."""

SCHEMA = "nac-drive expert 1"
NUM_OUTPUTS = {"discrete": 5, "continuous": 3}


class ExpertVision(nn.Sequential):
    """One RGB frame to 128 features: convolutions 5x5x16, 5x5x32, 3x3x32, 3x3x32 of stride 2, then a dense layer.

    Shapes: (B, 3, 96, 96) in [0, 1] -> (B, 128).
    """

    features_dim = 128

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(),   # (B, 16, 46, 46)
            nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(),  # (B, 32, 21, 21)
            nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(),  # (B, 32, 10, 10)
            nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(),  # (B, 32, 4, 4)
            nn.Flatten(),
            nn.Linear(512, self.features_dim), nn.ReLU(),
        )  # fmt: skip

    def forward(self, frames: Tensor) -> Tensor:
        return super().forward(frames.contiguous(memory_format=torch.channels_last))  # 1.6 times faster on CPU


class ExpertNetwork(nn.Module):
    """`ExpertVision` and a linear layer: action logits (discrete) or the mean of steer, gas and brake (continuous).

    It has no memory: speed and steering angle stand in the status bar. Shapes: (B, 3, 96, 96) -> (B, 5) or (B, 3).
    """

    def __init__(self, control: str):
        super().__init__()
        self.control = control
        self.vision = ExpertVision()
        self.action = nn.Linear(ExpertVision.features_dim, NUM_OUTPUTS[control])

    def forward(self, frames: Tensor) -> Tensor:
        return self.action(self.vision(frames))


class Expert:
    """A `Driver` (see `envs.rollout`) that runs an `ExpertNetwork` deterministically.

    Its advice is only as good as its frames: it was trained on the environment in `env_config`, status bar in sight.
    """

    def __init__(self, network: ExpertNetwork, env: EnvConfig, meta: dict[str, Any]):
        self.network = network.eval()
        self.control = env.control
        self.env_config = asdict(env)
        self.meta = meta

    def begin(self, env: gym.Env) -> None:
        return None

    @torch.inference_mode()
    def act(self, observation: np.ndarray, state: None, dt: float) -> tuple[Any, None]:
        frames = torch.from_numpy(np.ascontiguousarray(observation)).permute(2, 0, 1)[None].float() / 255
        output = self.network(frames)[0]
        if self.control == "discrete":
            return np.int64(output.argmax().item()), None
        low, high = torch.tensor([-1.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0])
        return output.clamp(low, high).numpy(), None


def save_expert(path: Path, network: ExpertNetwork, env: EnvConfig, meta: dict[str, Any]) -> None:
    """Write `config.json` and `model.safetensors` into the folder `path`, which must not hold an expert yet."""
    path.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, path / "model.safetensors")
    config = {"schema": SCHEMA, "env": asdict(env), "meta": meta}
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_expert(path: Path | None = None, control: str = "discrete") -> Expert:
    """The expert in the folder `path`; without one, the expert shipped for `control`.

    Raises FileNotFoundError when there is none and ValueError when the folder holds something else.
    """
    if path is None:
        path = SHIPPED / control
        if not path.is_dir():
            shipped = sorted(p.name for p in SHIPPED.iterdir()) if SHIPPED.is_dir() else []
            raise FileNotFoundError(
                f"no expert is shipped for control {control!r} (there is one for: {', '.join(shipped) or 'none'}); "
                f"train one with `nac-drive expert --control {control} --out FOLDER` and pass that folder, "
                "or pass controller."
            )
    for name in ("config.json", "model.safetensors"):
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path} is not an expert folder: {name} is missing; pass an expert's folder.")
    try:
        config = json.loads((path / "config.json").read_text())
        if config.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {config.get('schema')!r}, expected {SCHEMA!r}")
        env = EnvConfig(**config["env"])
        network = ExpertNetwork(env.control)
        network.load_state_dict(load_file(path / "model.safetensors"))
    except Exception as error:
        raise ValueError(f"{path} cannot be read as an expert: {error}. Copy or train it again.") from error
    return Expert(network, env, config["meta"])
