"""Drivers on the Hugging Face hub: folders with model cards."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nac_drive.policies.checkpoint import CARD, CONFIG, WEIGHTS, load_driver, save_driver
from nac_drive.policies.driver import Driver
from nac_drive.storage.names import markdown
from nac_drive.storage.write import write_atomically

FILES = (CONFIG, WEIGHTS, CARD)
"""The files of a driver in a repository of the hub."""


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
        ValueError: The folder exists and holds no driver.
    """
    path = save_driver(folder, driver)
    if not (path / CARD).exists():
        write_atomically(path / CARD, model_card(driver, license, metrics).encode())
    return path


def from_pretrained(source: str | os.PathLike[str], revision: str | None = None) -> Driver:
    """Load a driver by name, folder, or repository.

    Repositories lie on the Hugging Face hub.

    A name or a folder never touches the network, nor does a repository in the hub's cache.

    Args:
        source: A driver that comes with the package, such as `champion-continuous`; the folder of a driver or of a run;
            or a repository of the hub, OWNER/NAME.
        revision: A branch, tag or commit of that repository; the main branch by default.

    Returns:
        The driver, in evaluation mode.

    Raises:
        FileNotFoundError: There is no such name, folder or repository.
        CheckpointError: A file cannot be read or does not fit the other.
        ValueError: A repository is named and huggingface_hub is not installed.
    """
    name = os.fspath(source)
    if Path(source).exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return load_driver(source)
    return load_driver(download(name, revision))


def download(repo_id: str, revision: str | None = None) -> Path:
    """Return the folder of a repository of the hub.

    It lies in the cache, or is downloaded.

    Args:
        repo_id: OWNER/NAME.
        revision: A branch, tag or commit; the main branch by default.

    Raises:
        FileNotFoundError: It is not in the cache, and cannot be downloaded.
        ValueError: huggingface_hub is not installed.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError as error:
        raise ValueError(
            f"driver: there is no folder {repo_id}, and {error.name} is not installed to look for it on the Hugging "
            "Face hub; run `pip install nac-drive[hub]`."
        ) from error
    wanted: dict[str, Any] = {"repo_id": repo_id, "revision": revision, "allow_patterns": list(FILES)}
    try:
        folder = Path(huggingface_hub.snapshot_download(**wanted, local_files_only=True))
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            return folder
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(huggingface_hub.snapshot_download(**wanted))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"driver: there is no folder {repo_id}, and the Hugging Face hub has not given a repository of that name "
            f"({type(error).__name__}); check the name and the network."
        ) from error


def model_card(driver: Driver, license: str | None, metrics: Mapping[str, float] | None) -> str:
    """Return the model card of a driver, in Markdown.

    It has a header in YAML, and says how to drive.
    """
    config, env = driver.config, driver.env_config
    header: dict[str, Any] = {
        "library_name": "nac-drive",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["nac-drive", "imitation-learning", "car-racing", config.core],
    }
    if license:
        header["license"] = license
    if metrics:
        values = [{"type": name, "name": name, "value": float(value)} for name, value in metrics.items()]
        dataset = {"type": "CarRacing-v3", "name": "CarRacing-v3"}
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
        '    nd.evaluate(driver, "test-10")',
        "",
        f"- **Settings:** {', '.join(markdown(f'{name} = {value}') for name, value in settings.items())}.",
    ]
    if env:
        lines.append(f"- **Environment:** {', '.join(markdown(f'{name} = {value}') for name, value in env.items())}.")
    if metrics:
        lines.append(f"- **Metrics:** {', '.join(f'{markdown(name)} {value:g}' for name, value in metrics.items())}.")
    return "\n".join([*lines, "- `config.json` holds every setting of the driver and its training.", ""])
