"""CarRacing with telemetry, and the one rollout loop. No torch here."""

from nac_drive.callable_modules import callable_module
from nac_drive.envs.branches import branch, go_back
from nac_drive.envs.car_racing import CarRacing, Control, CrashMode
from nac_drive.envs.config import EnvConfig, make_env, same_actions
from nac_drive.envs.donkeycar import DONKEYCAR, donkeycar_frame
from nac_drive.envs.foreign import gymnasium_environment
from nac_drive.envs.foreign_road import Road
from nac_drive.envs.image_file import image_size, unpack_image
from nac_drive.envs.metadrive.environment import METADRIVE, METADRIVE_EMPTY, MetaDrive
from nac_drive.envs.perturbations.base import Perturbation
from nac_drive.envs.perturbations.frames import ActionRepeat
from nac_drive.envs.perturbations.registry import (
    CORRUPTIONS,
    PERTURBATIONS,
    Augmentation,
    draw_effect,
    parse_corruptions,
    perturb,
    perturbation_table,
    recordable,
)
from nac_drive.envs.rollout import BatchPolicy, Episode, EpisodeSetup, Policy, Step, rollout, rollouts, trained_view
from nac_drive.envs.saved_state import CarState
from nac_drive.envs.spec import ENVIRONMENTS, EnvSpec
from nac_drive.envs.telemetry import (
    FRAMES_PER_SECOND,
    TRACK_HALF_WIDTH,
    EventDetector,
    LapDetector,
    Pose,
    Track,
    wrap_angle,
)
from nac_drive.envs.tracks import LARGEST_SEED, SPLITS, track_seeds
from nac_drive.envs.udacity import UDACITY, decode_image, udacity_frame
from nac_drive.envs.vector import ProcessVectorEnv, make_vec_env
from nac_drive.envs.views import FRAME_SHAPE, View
from nac_drive.envs.wrappers import BAR_TOP, MaskBar

rollout = callable_module("nac_drive.envs.rollout", rollout)

__all__ = [
    "BAR_TOP",
    "CORRUPTIONS",
    "DONKEYCAR",
    "ENVIRONMENTS",
    "FRAMES_PER_SECOND",
    "FRAME_SHAPE",
    "LARGEST_SEED",
    "METADRIVE",
    "METADRIVE_EMPTY",
    "PERTURBATIONS",
    "SPLITS",
    "TRACK_HALF_WIDTH",
    "UDACITY",
    "ActionRepeat",
    "Augmentation",
    "BatchPolicy",
    "CarRacing",
    "CarState",
    "Control",
    "CrashMode",
    "EnvConfig",
    "EnvSpec",
    "Episode",
    "EpisodeSetup",
    "EventDetector",
    "LapDetector",
    "MaskBar",
    "MetaDrive",
    "Perturbation",
    "Policy",
    "Pose",
    "ProcessVectorEnv",
    "Road",
    "Step",
    "Track",
    "View",
    "branch",
    "decode_image",
    "donkeycar_frame",
    "draw_effect",
    "go_back",
    "gymnasium_environment",
    "image_size",
    "make_env",
    "make_vec_env",
    "parse_corruptions",
    "perturb",
    "perturbation_table",
    "recordable",
    "rollout",
    "rollouts",
    "same_actions",
    "track_seeds",
    "trained_view",
    "udacity_frame",
    "unpack_image",
    "wrap_angle",
]
