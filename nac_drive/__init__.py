"""nac-drive: collect laps of CarRacing, clone drivers from them, measure how they drive.

The front door: everything a user needs is importable from here.
"""

from data_collection.controller import Controller, ControllerConfig
from data_collection.dataset import Demonstrations
from data_collection.drivers import resolve_driver
from data_collection.expert import Expert, load_expert
from data_collection.noise import ActionNoise, NoiseConfig
from data_collection.processes import worker_pool
from data_collection.record import record
from envs import EnvConfig, Episode, Step, Track, make_env, rollout, track_seeds
from nac_drive.cloning import CloneConfig, clone
from nac_drive.compare import compare
from nac_drive.evaluation import Evaluation, evaluate
from nac_drive.metrics import EpisodeResult, Summary, summarise
from nac_drive.video import record_video, side_by_side
from policies import CORES, NAC, NAC_VARIANTS, Core, Driver, DriverConfig, Wiring, ages, load_driver, save_driver

__all__ = [
    "CORES",
    "NAC",
    "NAC_VARIANTS",
    "ActionNoise",
    "CloneConfig",
    "Controller",
    "ControllerConfig",
    "Core",
    "Demonstrations",
    "Driver",
    "DriverConfig",
    "EnvConfig",
    "Episode",
    "EpisodeResult",
    "Evaluation",
    "Expert",
    "NoiseConfig",
    "Step",
    "Summary",
    "Track",
    "Wiring",
    "ages",
    "clone",
    "compare",
    "evaluate",
    "load_driver",
    "load_expert",
    "make_env",
    "record",
    "record_video",
    "resolve_driver",
    "rollout",
    "save_driver",
    "side_by_side",
    "summarise",
    "track_seeds",
    "worker_pool",
]
