"""A dataset in words: `Demonstrations.info` with units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.episode_file import opened_row
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import REPORTED, DatasetRow, labelled_frames, reported
from nac_drive.data_collection.drivers import reported_return
from nac_drive.envs import EnvConfig

_VIEWS = {"above": "from above, ", "seat": "from the driver's seat, "}


def _action_summary(actions: NDArray[Any], env: EnvConfig) -> dict[str, float]:
    """Return fractions of discrete actions, or means of controls.

    Discrete actions are int (N,), others float (N, K), such as steer, gas and brake.
    """
    names = env.spec.action_names if env.control == "discrete" else env.spec.parts
    if env.control == "discrete":
        values = np.bincount(actions, minlength=len(names)) / len(actions)
    else:
        values = actions.mean(axis=0)
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def _read_columns(path: Path, row: DatasetRow, env: EnvConfig) -> tuple[NDArray[Any], NDArray[Any], float]:
    """Return labels, actions and duration of an episode.

    The duration is from its first to its last observation, in seconds.

    All columns are read, so that each value is checked.
    """
    with opened_row(path, row, env) as episode:
        columns = {name: episode.column(name) for name in episode.columns}
    return columns["label"], columns["action"], float(columns["dt"].sum())


def dataset_info(path: Path, meta: Meta, rows: Sequence[DatasetRow]) -> dict[str, Any]:
    """Return `Demonstrations.info` of the dataset at `path`.

    Raises:
        DatasetError: If an episode is damaged.
    """
    info: dict[str, Any] = {
        "path": str(path), "episodes": len(rows), "environment": meta.env.environment,
        "view": meta.env.view if meta.env.spec.views else None, "frame_shape": list(meta.env.spec.frame_shape),
        "control": meta.env.control, "mask_bar": None if meta.env.spec.bar_top is None else meta.env.mask_bar,
        "driver": meta.driver,
        "noise": asdict(meta.noise) if meta.noise else None,
    }  # fmt: skip
    if not rows:
        return info
    frames = sum(row["length"] for row in rows)
    episode_labels, episode_actions, seconds = zip(*(_read_columns(path, row, meta.env) for row in rows), strict=True)
    labels, actions = np.concatenate(episode_labels), np.concatenate(episode_actions)
    size = sum((path / row["file"]).stat().st_size for row in rows)
    info |= {
        "frames": frames,
        "seconds": sum(seconds),
        "mean_return": float(np.mean([row["return"] for row in rows])),
        "min_return": min(row["return"] for row in rows),
    }
    if meta.noise and meta.simulated:
        info["return_without_noise"] = reported_return(meta.driver, meta.driver_sha256, meta.env)
    masks = [labelled_frames(row) for row in rows]
    if any(mask is not None for mask in masks):
        corrected = sum(mask.sum() for mask in masks if mask is not None)
        info["corrected_fraction"] = float(corrected / sum(len(mask) for mask in masks if mask is not None))
    ones = (np.ones(row["length"], bool) for row in rows)
    labelled = np.concatenate([one if mask is None else mask for one, mask in zip(ones, masks, strict=True)])
    measured = [reported(row, meta.simulated) for row in rows]
    totals = ("mean_completion", "laps_finished", "off_road_events", "crashes")
    for total, name in zip(totals, REPORTED, strict=True):
        if all(name in episode for episode in measured):
            values = [episode[name] for episode in measured]
            info[total] = float(np.mean(values)) if total == "mean_completion" else sum(values)
    return info | {
        "labels": _action_summary(labels[labelled], meta.env) if labelled.any() else None,
        "actions": _action_summary(actions, meta.env),
        "off_label_fraction": (
            float((labels != actions)[labelled].reshape(labelled.sum(), -1).any(axis=1).mean())
            if labelled.any()
            else None
        ),
        "bytes": size,
        "bytes_per_frame": size / frames,
    }


def facts(meta: Meta, rows: Sequence[DatasetRow]) -> list[tuple[str, str]]:
    """Return names and values in short. No episode is read."""
    returns = [row["return"] for row in rows]
    named = [("driver", meta.driver), ("control", meta.env.control), ("episodes", f"{len(returns):,}")]
    if returns:
        named.append(("frames", f"{sum(row['length'] for row in rows):,}"))
        under = " under action noise" if meta.noise else ""
        named.append(("return", f"mean {np.mean(returns):z.1f}, minimum {min(returns):z.1f}{under}"))
    return named


def describe(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Turn a dataset's `info` into text.

    Args:
        info: A result of `Demonstrations.info`.

    Returns:
        (name, value with its unit) of each line.
    """
    noise = "none"
    if info["noise"]:
        noise = f"{_percent(info['noise']['probability'])} of frames, held for {info['noise']['hold']:g}"
    height, width, _ = info["frame_shape"]
    lines = [
        ("folder", info["path"]),
        ("driver", info["driver"]),
        ("environment", info["environment"]),
        ("view", f"{_VIEWS.get(info['view'], '')}{width} x {height} pixels"),
        ("control", info["control"]),
        *([] if info["mask_bar"] is None else [("status bar", "masked" if info["mask_bar"] else "visible")]),
        ("action noise", noise),
        ("episodes", f"{info['episodes']:,}"),
    ]
    if "frames" not in info:
        return lines
    if "corrected_fraction" in info:
        lines.append(("labelled", f"{_percent(info['corrected_fraction'])} of the frames of partly labelled episodes"))
    actions = _discrete if info["control"] == "discrete" else _continuous
    lines += [
        ("frames", f"{info['frames']:,} ({_duration(info['seconds'])})"),
        ("return", f"mean {info['mean_return']:z.1f}, minimum {info['min_return']:z.1f}{_under_noise(info)}"),
    ]
    if "mean_completion" in info:
        lines.append(("completion", f"mean {_percent(info['mean_completion'])} of the track"))
    if "laps_finished" in info:
        lines.append(("laps finished", f"{info['laps_finished']} of {info['episodes']}"))
    if "off_road_events" in info:
        lines.append(("off-road events", f"{info['off_road_events']}"))
    if "crashes" in info:
        lines.append(("crashes", f"{info['crashes']}"))
    labels, off_label = "none", "-"
    if info["labels"] is not None:
        labels, off_label = actions(info["labels"]), f"{_percent(info['off_label_fraction'])} of executed actions"
    return [
        *lines,
        ("labels", labels),
        ("executed actions", actions(info["actions"])),
        ("not the label", off_label),
        ("size", f"{info['bytes'] / 1e6:,.1f} MB ({info['bytes_per_frame'] / 1e3:.1f} KB per frame)"),
    ]


def _under_noise(info: Mapping[str, Any]) -> str:
    """Return why the returns of noisy demonstrations are low."""
    if not info["noise"]:
        return ""
    undisturbed = info.get("return_without_noise")
    return " under action noise" + (f"; without it {undisturbed:.0f}, on test-100" if undisturbed else "")


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s"


def _discrete(fractions: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_percent(fraction)}" for name, fraction in fractions.items())


def _continuous(means: Mapping[str, float]) -> str:
    return "mean " + ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())
