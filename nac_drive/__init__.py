"""nac-drive: collect laps of CarRacing, clone drivers from them, measure how they drive.

The front door: everything a user needs is importable from here.
"""

from data_collection.controller import Controller, ControllerConfig
from data_collection.dataset import Demonstrations
from data_collection.drivers import resolve_driver
from data_collection.noise import ActionNoise, NoiseConfig
from data_collection.ppo import ExpertConfig, train_expert
from data_collection.processes import worker_pool
from data_collection.recipe import rebuild, save_recipe
from data_collection.record import record
from data_collection.sb3_vec_env import SB3VecEnv
from envs import (
    PERTURBATIONS,
    EnvConfig,
    Episode,
    ProcessVectorEnv,
    Step,
    Track,
    make_env,
    make_vec_env,
    perturb,
    rollout,
    track_seeds,
)
from nac_drive.cloning import CloneConfig, clone
from nac_drive.compare import compare
from nac_drive.dagger import DaggerConfig, dagger
from nac_drive.evaluation import Evaluation, evaluate
from nac_drive.metrics import EpisodeResult, Summary, summarise
from nac_drive.video import record_video, side_by_side
from nac_drive.wiring_figure import draw_wiring
from policies import (
    CORES,
    NAC,
    NAC_VARIANTS,
    Attention,
    Circuit,
    Core,
    Driver,
    DriverConfig,
    Groups,
    Wiring,
    ages,
    fully_connected_wiring,
    load_driver,
    mlp_wiring,
    ncp_wiring,
    random_wiring,
    save_driver,
)

__all__ = [
    "CORES",
    "NAC",
    "NAC_VARIANTS",
    "PERTURBATIONS",
    "ActionNoise",
    "Attention",
    "Circuit",
    "CloneConfig",
    "Controller",
    "ControllerConfig",
    "Core",
    "DaggerConfig",
    "Demonstrations",
    "Driver",
    "DriverConfig",
    "EnvConfig",
    "Episode",
    "EpisodeResult",
    "Evaluation",
    "ExpertConfig",
    "Groups",
    "NoiseConfig",
    "ProcessVectorEnv",
    "SB3VecEnv",
    "Step",
    "Summary",
    "Track",
    "Wiring",
    "ages",
    "clone",
    "compare",
    "dagger",
    "draw_wiring",
    "evaluate",
    "fully_connected_wiring",
    "load_driver",
    "make_env",
    "make_vec_env",
    "mlp_wiring",
    "ncp_wiring",
    "perturb",
    "random_wiring",
    "rebuild",
    "record",
    "record_video",
    "resolve_driver",
    "rollout",
    "save_driver",
    "save_recipe",
    "side_by_side",
    "summarise",
    "track_seeds",
    "train_expert",
    "worker_pool",
]
