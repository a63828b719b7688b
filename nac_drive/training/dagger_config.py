"""The settings of dagger.

Free of torch: the command line reads them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.mixture import MixtureConfig
from nac_drive.envs import SPLITS, EnvConfig, track_seeds
from nac_drive.envs.views import Size, View
from nac_drive.policies.ranges import check_number, check_positive, check_type, check_whole
from nac_drive.training.config import HIGHEST_RATE, LARGEST_FACTOR, MOST, CloningConfig


@dataclass(frozen=True)
class DaggerConfig(CloningConfig):
    """Settings of `dagger`. `driver` has the control."""

    max_steps: int = 1000
    """Frames before an episode is truncated."""
    environment: str = EnvConfig.environment
    """The track environment: car-racing, or an id that is registered with gymnasium (docs/your-own-road.md)."""
    view: View = EnvConfig.view
    """What the learner sees: above, gymnasium's frames, or seat, from the driver's seat (docs/simulator.md)."""
    size: Size = EnvConfig.size
    """Width and height of the learner's frames from the seat, in pixels."""
    perturb: str | None = None
    """Perturbations of what the learner sees and does, such as gap:2+frame-rate:1 (docs/perturbations.md); the expert
    labels the true frames. Of several, separated by commas, each episode has one, in turn by track."""
    rounds: int = 8
    """Rounds with the mixture policy, after round 0 of the expert alone."""
    initial_episodes: int = 20
    """Episodes of the expert in round 0."""
    episodes: int = 12
    """Episodes in each later round."""
    first_track: int = 0
    """Training track of the first episode; each episode drives the next one."""
    training_tracks: str | None = None
    """Training tracks of the episodes in their order, a comma list of seeds, such as those that a driver fails on; in
    place of first_track."""
    noise: float = 0.15
    """Fraction of frames of round 0 whose executed action is random while the label stays the expert's."""
    noise_hold: float = 4.0
    """Mean number of frames that one random action is held."""
    beta: float = 0.2
    """Probability that the expert, not the learner, drives through a switch interval of the mixture policy."""
    switch_interval: int = 25
    """Frames before the mixture policy draws again between expert and learner."""
    initial_epochs: int = 6
    """Epochs over the episodes of round 0."""
    epochs: int = 2
    """Epochs over all episodes so far in each later round."""
    final_learning_rate: float = 2e-4
    """Adam's rate in the last round; in between it falls by the same factor from round to round."""

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: The settings cannot be trained with.
        """
        super().check()
        for name, value in self.optim.of_epochs().items():
            raise ValueError(
                f"{name} must be left out in dagger, got {value!r}: its rate falls from round to round, to "
                "final_learning_rate, and every round has the same epochs."
            )
        check_positive("final_learning_rate", self.final_learning_rate, HIGHEST_RATE, "0.0002 is usual")
        for name in ("initial_episodes", "episodes", "initial_epochs", "epochs", "max_steps", "switch_interval"):
            check_whole(name, getattr(self, name), 1, MOST)
        for name in ("rounds", "first_track"):
            check_whole(name, getattr(self, name), 0, MOST)
        check_type("environment", self.environment, str)
        if self.perturb is not None:
            check_type("perturb", self.perturb, str)
        for name in ("noise", "noise_hold", "beta"):
            check_number(name, getattr(self, name), most=LARGEST_FACTOR)
        if self.data.sequence_length > (most := self.env.max_steps):
            raise ValueError(
                f"sequence_length must not exceed max_steps ({most} frames), "
                f"got {self.data.sequence_length}; choose a shorter one."
            )
        tracks, last = len(SPLITS["train"]), self.first_track + self.initial_episodes + self.rounds * self.episodes - 1
        if self.training_tracks is not None:
            self._check_training_tracks(last - self.first_track + 1)
        elif last >= tracks:
            raise ValueError(
                f"first_track, initial_episodes, rounds and episodes must name tracks 0 to {tracks - 1}, "
                f"got {self.first_track} to {last}; start lower or drive fewer."
            )
        for part in ("env", "noise_config", "mixture"):
            getattr(self, part)  # it checks its own numbers

    @property
    def env(self) -> EnvConfig:
        """The environment of the learner."""
        control: Any = self.driver.control
        mask_bar = self.data.mask_bar
        return EnvConfig(control, mask_bar, self.max_steps, self.environment, self.perturb, self.view, self.size)

    @property
    def noise_config(self) -> NoiseConfig:
        """The action noise of round 0."""
        return NoiseConfig(self.noise, self.noise_hold)

    @property
    def mixture(self) -> MixtureConfig:
        """The mixture policy of the later rounds."""
        return MixtureConfig(self.beta, self.switch_interval)

    def _check_training_tracks(self, episodes: int) -> None:
        check_type("training_tracks", self.training_tracks, str)
        tracks = track_seeds(str(self.training_tracks))
        if strangers := [track for track in tracks if track not in SPLITS["train"]]:
            raise ValueError(
                f"training_tracks must be of the split train, 0 to {SPLITS['train'].stop - 1}, got {strangers[0]}."
            )
        if self.first_track or len(tracks) < episodes:
            raise ValueError(
                f"training_tracks must name a track for each of the {episodes} episodes of initial_episodes + rounds x "
                f"episodes, without first_track, got {len(tracks)} tracks and first_track {self.first_track}."
            )

    def tasks(self, number: int) -> list[tuple[int, int]]:
        """(episode, track) of the episodes of round `number`."""
        first = 0 if number == 0 else self.initial_episodes + (number - 1) * self.episodes
        count = self.initial_episodes if number == 0 else self.episodes
        named = self.training_tracks
        tracks = SPLITS["train"][self.first_track :] if named is None else track_seeds(named)
        return [(i, tracks[i]) for i in range(first, first + count)]

    def rate(self, number: int) -> float:
        """Adam's rate in round `number`."""
        start = self.rate_of_core
        return start * (self.final_learning_rate / start) ** (number / max(1, self.rounds))

    def round_epochs(self, number: int) -> range:
        """Numbers of the epochs of round `number`."""
        first = 1 if number == 0 else 1 + self.initial_epochs + (number - 1) * self.epochs
        count = self.initial_epochs if number == 0 else self.epochs
        return range(first, first + count)
