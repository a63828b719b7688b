"""Networks that drive: the Neuronal Attention Circuit, its rivals behind one contract, and drivers made of them."""

from policies.cfc import CfC
from policies.checkpoint import CheckpointError, load_driver, save_driver
from policies.core import Core, State, map_state, reset_rows
from policies.cores import CORES, build_core
from policies.driver import NOMINAL_DT, Driver, DriverConfig
from policies.feedforward import Feedforward
from policies.heads import ContinuousActionHead, DiscreteActionHead, VisionHead
from policies.nac import NAC, Attention
from policies.nac_core import NACCore
from policies.ncp import Backbone, SensoryGate
from policies.recurrent import GRU, LSTM
from policies.wiring import (
    Wiring,
    backbone_wiring,
    fully_connected_wiring,
    ncp_wiring,
    random_wiring,
    sensory_gate_wiring,
)

__all__ = [
    "CORES",
    "GRU",
    "LSTM",
    "NAC",
    "NOMINAL_DT",
    "Attention",
    "Backbone",
    "CfC",
    "CheckpointError",
    "ContinuousActionHead",
    "Core",
    "DiscreteActionHead",
    "Driver",
    "DriverConfig",
    "Feedforward",
    "NACCore",
    "SensoryGate",
    "State",
    "VisionHead",
    "Wiring",
    "backbone_wiring",
    "build_core",
    "fully_connected_wiring",
    "load_driver",
    "map_state",
    "ncp_wiring",
    "random_wiring",
    "reset_rows",
    "save_driver",
    "sensory_gate_wiring",
]
