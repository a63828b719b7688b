"""Driver folders with model cards, for the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nac_drive.arguments import require_kind
from nac_drive.envs import ENVIRONMENTS, EnvConfig
from nac_drive.policies import Driver, save_driver
from nac_drive.policies.checkpoint import CARD
from nac_drive.storage.names import markdown
from nac_drive.storage.write import write_atomically


def save_pretrained(
    driver: Driver,
    folder: str | os.PathLike[str],
    *,
    license: str | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """Write a driver folder with a model card (README.md).

    A repository of the Hugging Face hub has this form.

    Args:
        driver: The driver.
        folder: The folder. A driver that is already there is replaced, its model card kept; anything else is refused.
        license: The license of the weights, such as "mit", for the model card.
        metrics: Measured results by name, for the model card.

    Returns:
        The folder.

    Raises:
        ValueError: The folder exists and holds no driver, `driver` is none, or `metrics` are no dict.
    """
    if metrics is not None:
        require_kind("metrics", metrics, Mapping, "pass results by name, such as {'return': 900.0}")
    path = save_driver(folder, driver)
    if not (path / CARD).exists():
        write_atomically(path / CARD, model_card(driver, license, metrics).encode())
    return path


def model_card(driver: Driver, license: str | None, metrics: Mapping[str, float] | None) -> str:
    """Return the model card of a driver, in Markdown.

    It has a header in YAML, and an example of the driver in its environment.
    """
    config, env = driver.config, driver.env_config
    environment = str(env.get("environment", EnvConfig.environment))
    header: dict[str, Any] = {
        "library_name": "nac-drive",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["nac-drive", "imitation-learning", environment, config.core],
    }
    if license:
        header["license"] = license
    if metrics:
        values = [{"type": name, "name": name, "value": float(value)} for name, value in metrics.items()]
        name = "CarRacing-v3" if environment == EnvConfig.environment else environment
        dataset = {"type": name, "name": name}
        task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
        result = {"task": task, "dataset": dataset, "metrics": values}
        header["model-index"] = [{"name": f"{config.core}-{config.control}", "results": [result]}]
    parameters = sum(parameter.numel() for parameter in driver.parameters())
    settings = {**config.core_args, "encoder": config.encoder, "residual": config.residual, "d_model": config.d_model}
    if config.features is not None:
        settings["features"] = config.features
    height, width, _ = config.frame_shape
    lines = [
        "---",
        yaml.safe_dump(header, sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        "",
        f"# A driver with the core {config.core}",
        "",
        f"It sees one RGB frame of {height} x {width} pixels at a time and chooses a {config.control} action. It has "
        f"{parameters:,} parameters.",
        "",
        "    import nac_drive as nd",
        "",
        '    driver = nd.from_pretrained("OWNER/NAME")  # or the folder of this file',
        f"    {_example(environment)}",
        "",
        f"- **Settings:** {', '.join(markdown(f'{name} = {value}') for name, value in settings.items())}.",
    ]
    if env:
        lines.append(f"- **Environment:** {', '.join(markdown(f'{name} = {value}') for name, value in env.items())}.")
    if metrics:
        lines.append(f"- **Metrics:** {', '.join(f'{markdown(name)} {value:g}' for name, value in metrics.items())}.")
    return "\n".join([*lines, "- `config.json` holds every setting of the driver and its training.", ""])


def _example(environment: str) -> str:
    """Return the call that measures a driver.

    It drives on tracks, or is compared with recordings where nothing is simulated.
    """
    spec = ENVIRONMENTS.get(environment)  # the environment of a user may not be registered in this process
    recorded = spec is not None and spec.make is None
    return 'nd.evaluate_recorded(driver, "DATASET")' if recorded else 'nd.evaluate(driver, "test-10")'
