"""CarRacing with telemetry, and the one rollout loop. No torch here."""

from envs.car_racing import FRAME_SHAPE, CarRacing, Control, CrashMode, EnvConfig, RendererName, make_env
from envs.frame_loss import ActionRepeat
from envs.perturbations import CORRUPTIONS, PERTURBATIONS, Augmentation, draw_effect, parse_corruptions, perturb
from envs.renderer import Renderer
from envs.rollout import Driver, Episode, Step, rollout
from envs.telemetry import FRAMES_PER_SECOND, TRACK_HALF_WIDTH, EventDetector, LapDetector, Pose, Track, wrap_angle
from envs.tracks import SPLITS, track_seeds
from envs.vector import ProcessVectorEnv, make_vec_env
from envs.wrappers import BAR_TOP, MaskBar

__all__ = [
    "BAR_TOP",
    "CORRUPTIONS",
    "FRAMES_PER_SECOND",
    "FRAME_SHAPE",
    "PERTURBATIONS",
    "SPLITS",
    "TRACK_HALF_WIDTH",
    "ActionRepeat",
    "Augmentation",
    "CarRacing",
    "Control",
    "CrashMode",
    "Driver",
    "EnvConfig",
    "Episode",
    "EventDetector",
    "LapDetector",
    "MaskBar",
    "Pose",
    "ProcessVectorEnv",
    "Renderer",
    "RendererName",
    "Step",
    "Track",
    "draw_effect",
    "make_env",
    "make_vec_env",
    "parse_corruptions",
    "perturb",
    "rollout",
    "track_seeds",
    "wrap_angle",
]
