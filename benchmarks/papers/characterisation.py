"""Response characterisation of single cells (Hasani's thesis, Chapter 7).

A cell is taken out of a trained core and gets two test signals, a step and a sine, on all its inputs. Six numbers
describe its responses (Definitions 9 to 12).

Shapes: T frames, U cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from cells import count_cells, stream_cells

from nac_drive.policies.cores.base import NOMINAL_DT, Core

SECONDS = 8.0
"""Time of a signal, T: 400 frames of CarRacing. The step leaves 4 s to settle, more than most time constants."""
FREQUENCY = 1.0
"""Hertz of the sine, f: 50 frames a period, about the time of a bend, and a whole number of periods in T / 2."""
WINDOW = 0.1
"""Half the width of the window of the settling time: 90 % of the change are then made."""


@dataclass(frozen=True)
class Responses:
    """The responses of cells, (U,) each."""

    initial: np.ndarray
    """Output on the last frame before the step (Definition 9)."""
    final: np.ndarray
    """Output on the last frame after the step."""
    settling_time: np.ndarray
    """Seconds from the first frame of the step to the first from which the output stays within 10 % of its change
    around the final response (Definition 10); 0 for a cell that is there on that frame."""
    amplitude: np.ndarray
    """Largest less smallest output in the second half of the sine, when the start has died away (Definition 11)."""
    frequency: np.ndarray
    """Hertz with the highest power spectral density in that half; 0 for a constant output."""
    correlation: np.ndarray
    """Dot product over the whole sine of input and output, their means taken off (Definition 12)."""

    @property
    def delta(self) -> np.ndarray:
        """The delta response: final less initial response; its sign tells excitation from inhibition."""
        return self.final - self.initial


def step_signal(frames: int) -> np.ndarray:
    """Return x_t = [t > T / 2] for t = 1, ..., T."""
    return (np.arange(1, frames + 1) > frames / 2).astype(float)


def sine_signal(frames: int, frequency: float, dt: float) -> np.ndarray:
    """Return x_t = sin(2 pi f t) on frames t = dt, 2 dt, ..., T dt seconds."""
    return np.sin(2.0 * np.pi * frequency * dt * np.arange(1, frames + 1))


def isolated(core: Core, signal: np.ndarray, dt: float) -> np.ndarray:
    """Return the response of every cell as if it were the only one of its core.

    Row u of a batch belongs to cell u. Before every frame the state of all other cells is set to 0, so that cell u sees
    the input and itself alone. Within a frame of several solver steps (LTC, CT-RNN) the others leave 0.

    An LTC neuron is not cut off by this: a synapse also conducts where its source is 0, sigmoid(-gamma mu) of w. All
    of them together change the response as a leak does.

    Args:
        core: A core whose state is kept per output.
        signal: (T,), given on all inputs.
        dt: Seconds between two frames.

    Returns:
        (U, T).

    Raises:
        ValueError: The core does not keep its state per output.
    """
    keep = torch.eye(count_cells(core)).to(next(core.parameters()))
    x = torch.from_numpy(signal).to(keep)[:, None].expand(-1, core.input_size)  # (T, F)
    y = stream_cells(core, core.initial_state(len(keep)), x, torch.full_like(x[:, 0], dt), keep)  # (U, T, U)
    return y.diagonal(dim1=0, dim2=2).T.numpy(force=True)


def characterise(core: Core, scale: float = 1.0, dt: float = NOMINAL_DT) -> Responses:
    """Characterise all cells of a core.

    Args:
        core: A core whose state is kept per output, such as lstm, gru, rnn, cfc, ltc or ct-rnn.
        scale: Factor of both signals: the amplitude of the features that the core was trained on.
        dt: Seconds between two frames.

    Raises:
        ValueError: The core does not keep its state per output.
    """
    frames = 2 * round(SECONDS / dt / 2)
    step = isolated(core, scale * step_signal(frames), dt)
    wave = scale * sine_signal(frames, FREQUENCY, dt)
    cyclic = isolated(core, wave, dt)
    late = cyclic[:, frames // 2 :]
    return Responses(
        initial=step[:, frames // 2 - 1], final=step[:, -1], settling_time=settling_time(step, dt),
        amplitude=np.ptp(late, axis=1), frequency=peak_frequency(late, dt),
        correlation=(cyclic - cyclic.mean(axis=1, keepdims=True)) @ (wave - wave.mean()),
    )  # fmt: skip


def settling_time(responses: np.ndarray, dt: float) -> np.ndarray:
    """Return the settling times of step responses.

    Args:
        responses: (U, T); the step comes with frame T / 2, counted from 0.
        dt: Seconds between two frames.

    Returns:
        Seconds, (U,); at most the time of T / 2 - 1 frames.
    """
    half = responses.shape[1] // 2
    initial, final = responses[:, half - 1 : half], responses[:, -1:]
    outside = np.abs(responses[:, half:] - final) > WINDOW * np.abs(final - initial)  # (U, T / 2)
    return dt * np.where(outside.any(axis=1), half - outside[:, ::-1].argmax(axis=1), 0)


def peak_frequency(responses: np.ndarray, dt: float) -> np.ndarray:
    """Return the frequency with the highest power spectral density of responses (U, T), their means taken off.

    Returns:
        Hertz, (U,), in steps of 1 / (T dt).
    """
    density = np.abs(np.fft.rfft(responses - responses.mean(axis=1, keepdims=True))) ** 2  # (U, T / 2 + 1)
    return np.fft.rfftfreq(responses.shape[1], dt)[density.argmax(axis=1)]
