"""One recorded episode: frames, actions, saliency, neurons, attention, track."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from nac_drive.analysis.attention import mean_age, normalised_entropy, watched_attention
from nac_drive.analysis.cells import SIGNALS
from nac_drive.analysis.curvature import curvature
from nac_drive.analysis.probe import Probe, by_age
from nac_drive.analysis.regions import fractions
from nac_drive.analysis.saliency import grad_cam, input_gradient, steering_target, visual_backprop
from nac_drive.data_collection.dataset.recorded_episode import RecordedEpisode
from nac_drive.envs import ENVIRONMENTS, CarRacing, EnvSpec, Episode, Policy, Step, rollout
from nac_drive.envs.pulses import BRAKE, COMMANDS, GAS
from nac_drive.envs.views import VideoView, other_frame
from nac_drive.evaluation.formulas import steering_of
from nac_drive.markdown import number_text
from nac_drive.notebook import image
from nac_drive.policies.cores.nac_transformer import nac_of
from nac_drive.policies.driver import Driver
from nac_drive.policies.encoders import Encoder
from nac_drive.policies.nac.records import AttentionRecord
from nac_drive.policies.ops.threads import one_thread
from nac_drive.storage.names import shown
from nac_drive.storage.write import write_atomically

SALIENCY = ("VisualBackProp", "input gradient", "Grad-CAM")
_REPORTED = ("speed", "lateral_offset", "heading_error", "completion", "wheels_off_road", "crash")
"""Keys of `info` that become series, if the environment reports them."""
_PEDALS = {"gas": COMMANDS[GAS][1:], "brake": COMMANDS[BRAKE][1:]}
"""Name of a discrete action -> gas and brake."""


RECORDED = "recorded "
"""Start of the names of series that hold the action of a recording."""


@dataclass
class Recording:
    """An episode of T decisions of one driver."""

    driver: str
    track: int
    perturbation: str | None
    road: np.ndarray
    """(P, 2): the centre line, in simulator units; (0, 2) if it is not known."""
    frames: np.ndarray
    """(T, 96, 96, 3) uint8: the observations."""
    series: dict[str, np.ndarray]
    """Name -> (T,) float32: time, actions, telemetry, and what the driver attends to."""
    position: np.ndarray
    """(T, 2): the car; (0, 2) if it is not known."""
    saliency: dict[str, np.ndarray] = field(default_factory=dict)
    """Method -> (T, 96, 96) uint8; see `SALIENCY`."""
    activity: dict[str, np.ndarray] = field(default_factory=dict)
    """Group -> (T, N) float32: features of the encoder, the core's neurons, its output, and the cells inside the core
    (see `watched_cells`)."""
    attention: np.ndarray | None = None
    """(T, H, W) float32: weights of each head on the present observation, the one before, and so on. None without
    attention."""
    signals: dict[str, np.ndarray] = field(default_factory=dict)
    """phi, omega, t and a -> (T, H): means over the keys that are kept, of frames that exist."""
    actions: tuple[str, ...] = ("steer", "gas", "brake")
    """Names of the series that are numbers of an action."""
    other_view: str = ""
    """Name of the view that the driver does not see: above or seat. Empty where it was not recorded."""
    other_frames: np.ndarray | None = None
    """(T, 96, 96, 3) uint8: the world in that view."""
    episode: Episode | None = None
    """The result of the episode; it is not saved."""
    source: str | None = None
    """The name of the dataset, and of its episode, for a recorded one; `series` has the labels that were recorded."""
    difference: str = ""
    """How far the actions are from the recorded labels, over the frames that offline metrics count."""

    def __repr__(self) -> str:
        return f"Recording({self.title}, {len(self.frames)} decisions)"

    @property
    def title(self) -> str:
        """Driver and track, with return or difference to a recording."""
        if self.source is not None:
            return f"{self.driver}, {self.source}: {self.difference}"
        under = f", {self.perturbation}" if self.perturbation else ""
        final = number_text(float(self.series["return"][-1]), ".0f")
        return f"{self.driver}, track {self.track}{under}: return {final}"

    def add_recorded(self, source: str, episode: RecordedEpisode) -> None:
        """Add the labels of the recording that the driver saw.

        Args:
            source: The name of the episode and its dataset.
            episode: The recording.
        """
        self.source = source
        recorded = [commands(label, episode.env.spec) for label in episode.arrays.label]
        for name in self.actions:
            self.series[RECORDED + name] = np.array([action[name] for action in recorded], np.float32)
        if not self.series["return"].any():  # own data without rewards
            del self.series["return"]
        name = self.actions[0]
        error = np.abs(self.series[name] - self.series[RECORDED + name])[episode.counted]
        if not len(error):
            self.difference = "no frame has an expert's label"
        elif name == "action":
            self.difference = f"{100 * np.mean(error == 0):.0f} % of the actions are the recorded ones"
        else:
            self.difference = f"{name} differs by {error.mean():.3f} on average"

    def _repr_html_(self) -> str:
        """The middle frame, and what the driver attends to."""
        middle = len(self.frames) // 2
        pictures = [image(self.frames[middle], f"{self.title}. Frame {middle}", 240)]
        for name, maps in list(self.saliency.items())[:1]:
            pictures.append(image(np.repeat(maps[middle, ..., None], 3, axis=2), name, 240))
        return "".join(pictures)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all arrays to an .npz file. `series/NAME`, `activity/GROUP` and so on are their names."""
        arrays: dict[str, Any] = {
            "driver": self.driver, "track": self.track, "perturbation": self.perturbation or "", "road": self.road,
            "frames": self.frames, "position": self.position,
        }  # fmt: skip
        for group in ("series", "saliency", "activity", "signals"):
            arrays |= {f"{group}/{name}": values for name, values in getattr(self, group).items()}
        if self.attention is not None:
            arrays["attention"] = self.attention
        if self.other_frames is not None:
            arrays[f"frames/{self.other_view}"] = self.other_frames
        buffer = BytesIO()
        np.savez_compressed(buffer, **arrays)
        write_atomically(Path(path), buffer.getvalue())
        return Path(path)


def record(
    env: gym.Env,
    driver: Policy,
    track: int,
    *,
    name: str,
    perturbation: str | None = None,
    spec: EnvSpec = ENVIRONMENTS["car-racing"],
    view: VideoView | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Recording:
    """Drive one episode and record it. The driver drives as without a record, bit for bit.

    Args:
        env: An environment of `make_env`, perturbed or not.
        driver: Any driver; of one without a network there are no neurons and no saliency.
        track: Seed of the track.
        name: Name of the driver.
        perturbation: What perturbs `env`, for the record.
        spec: The facts of `env`. Without `EnvSpec.regions` the record has no regions.
        view: A view, or `both`: the record shows it beside the view that the driver sees, if it is another one.
        on_step: Called with every step.

    Returns:
        The record.
    """
    watched = _Watched(driver, spec, view)
    steps: list[Step] = []
    with ExitStack() as stack:
        attention: list[tuple[AttentionRecord, Tensor]] = []
        nac = None
        if isinstance(driver, Driver) and (nac := nac_of(driver.core)):
            stack.enter_context(watched_attention(driver, lambda record, age, _: attention.append((record, age))))
        episode = rollout(env, watched, track, subscribers=[steps.append, on_step])
    simulator: Any = env.unwrapped
    frames = np.stack([step.observation for step in steps])
    series = _series(steps, spec)
    road = np.asarray(spec.road(simulator), float).reshape(-1, 2) if spec.road else np.zeros((0, 2))
    if isinstance(simulator, CarRacing):
        series["curvature"] = np.array(watched.curvatures, np.float32)
    result = Recording(
        shown(name), track, perturbation, road, frames, series, np.array(watched.positions).reshape(-1, 2),
        actions=tuple(commands(steps[0].action, spec)), episode=episode,
    )  # fmt: skip
    if watched.others:
        result.other_view, result.other_frames = watched.other_view, np.stack(watched.others)
    activity = {group: np.stack(rows) for group, rows in watched.neurons.items()}
    result.activity = {group: values for group, values in activity.items() if group not in SIGNALS}
    result.signals = {group: values for group, values in activity.items() if group in SIGNALS}
    if nac:
        _add_attention(result, attention, nac.window)
    if isinstance(driver, Driver) and isinstance(driver.encoder, Encoder):
        _add_saliency(result, driver, np.stack(watched.labels) if watched.labels else None, spec)
    return result


class _Watched:
    """A driver that notes its neurons and the car's place."""

    def __init__(self, driver: Policy, spec: EnvSpec, view: VideoView | None) -> None:
        self._regions, self._pose, self._view = spec.regions, spec.pose, view
        self._probe = Probe(driver) if isinstance(driver, Driver) else None
        self._driver = self._probe or driver
        self.neurons: dict[str, list[np.ndarray]] = {}
        self.positions: list[tuple[float, float]] = []
        self.curvatures: list[float] = []
        self.labels: list[np.ndarray] = []
        self.other_view = ""
        self.others: list[np.ndarray] = []

    def begin(self, env: gym.Env) -> Any:
        self._env = env
        return self._driver.begin(env)

    def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, Any]:
        simulator = self._env.unwrapped
        if self._pose:
            x, y, _ = self._pose(simulator)
            self.positions.append((float(x), float(y)))
        if isinstance(simulator, CarRacing):
            self.curvatures.append(curvature(simulator.centre_line, simulator.pose.index))
        if self._view not in (None, getattr(simulator, "view", None)) and (other := other_frame(simulator)):
            self.other_view, frame = other
            self.others.append(frame)
        if self._probe and self._regions:
            self.labels.append(self._regions(simulator))
        action, state = self._driver.act(observation, state, dt)
        if self._probe:
            for group, values in (self._probe.neurons | self._probe.cells).items():
                self.neurons.setdefault(group, []).append(values)
        return action, state


def command_names(control: str, spec: EnvSpec) -> tuple[str, ...]:
    """Return the names of an action's numbers.

    They are steer, gas and brake, if it is known what a discrete action does.
    """
    if control != "discrete":
        return spec.parts
    return ("action",) if spec.steering is None else ("steer", "gas", "brake")


def commands(action: Any, spec: EnvSpec) -> dict[str, float]:
    """Return the numbers of an action by name, see `command_names`."""
    if np.ndim(action):
        return dict(zip(spec.parts, np.asarray(action, np.float64).tolist(), strict=True))
    if spec.steering is None:
        return {"action": float(action)}
    pedals = _PEDALS.get(spec.action_names[int(action)], (0.0, 0.0))
    return {"steer": steering_of(action, spec), "gas": pedals[0], "brake": pedals[1]}


def _series(steps: list[Step], spec: EnvSpec) -> dict[str, np.ndarray]:
    actions = [commands(step.action, spec) for step in steps]
    reported = {
        name: [step.outcome[name] for step in steps]
        for name in _REPORTED
        if all(name in step.outcome for step in steps)
    }
    if "crash" in reported:
        reported["crash"] = [crash is not None for crash in reported["crash"]]
    columns: dict[str, Any] = {
        "time": np.cumsum([step.dt for step in steps]),
        "dt": [step.dt for step in steps],
        **{name: [action[name] for action in actions] for name in actions[0]},
        "return": np.cumsum([step.reward for step in steps]),
        **reported,
    }
    return {name: np.asarray(values, dtype=np.float32) for name, values in columns.items()}


def _add_attention(recording: Recording, steps: list[tuple[AttentionRecord, Tensor]], window: int) -> None:
    alpha, age, index = (
        torch.stack([part[0, :, 0] for part in parts]).cpu()  # (T, H, K): of the keys that are kept
        for parts in zip(*((record.alpha, age, record.index) for record, age in steps), strict=True)
    )
    attention = by_age(alpha, index, window)
    recording.attention = attention.numpy()
    if window > 1:
        recording.series["attention entropy"] = normalised_entropy(attention).mean(dim=1).numpy()
    recording.series["attention age"] = mean_age(alpha, age).mean(dim=1).numpy()


def _add_saliency(recording: Recording, driver: Driver, labels: np.ndarray | None, spec: EnvSpec) -> None:
    target = steering_target(driver.config.control, spec)
    frames, dt = (torch.from_numpy(array).to(driver.device) for array in (recording.frames, recording.series["dt"]))
    with one_thread():
        gradient = input_gradient(driver, frames, dt, target)
        gradient = gradient / gradient.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)
        maps = (visual_backprop(driver, frames), gradient, grad_cam(driver, frames, dt, target))
    for name, each in zip(SALIENCY, maps, strict=True):
        each = each.detach().cpu()
        recording.saliency[name] = (255 * each).round().to(torch.uint8).numpy()
        if labels is not None:
            _add_fractions(recording, name, each.numpy(), labels, spec)
    if labels is not None:
        _add_fractions(recording, "area", np.ones(labels.shape), labels, spec)


def _add_fractions(recording: Recording, name: str, maps: np.ndarray, labels: np.ndarray, spec: EnvSpec) -> None:
    rows = [fractions(image, label, spec.region_names) for image, label in zip(maps, labels, strict=True)]
    for region in spec.region_names:
        recording.series[f"{name} on {region}"] = np.array([row[region] for row in rows], dtype=np.float32)
