"""Datasets that are exported, made once."""

from __future__ import annotations

import numpy as np
import pytest

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.envs import EnvConfig
from tests.data_collection.dataset.exports import CONTINUOUS, DISCRETE, OWN
from tests.data_collection.recordings import collect_small


@pytest.fixture(scope="session")
def datasets(tmp_path_factory, recorded) -> dict[str, Demonstrations]:
    """Recorded under noise in either control, and own data with labels, times and ends; not to be changed."""
    folder, rng = tmp_path_factory.mktemp("datasets"), np.random.default_rng(0)
    env = EnvConfig(control="continuous", max_steps=25, mask_bar=True)
    episodes = [
        {
            "observations": rng.integers(256, size=(n + 1, 96, 96, 3), dtype=np.uint8),
            "actions": rng.integers(5, size=n),
            "labels": rng.integers(5, size=n),
            "rewards": rng.normal(size=n),
            "dt": np.r_[0, rng.choice([0.1, 0.2], size=n - 1)],
            "terminated": n == 7,
            "truncated": n == 1,
        }
        for n in (1, 7)
    ]
    return {
        DISCRETE: Demonstrations.open(recorded),
        CONTINUOUS: collect_small(folder / CONTINUOUS, env=env, seeds=[5, 2]),
        OWN: Demonstrations.from_episodes(folder / OWN, episodes, seeds=[4, 4]),
    }
