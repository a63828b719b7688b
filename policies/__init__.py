"""Networks that drive: the Neuronal Attention Circuit, its rivals behind one contract, and drivers made of them."""

from policies.ages import ages
from policies.cfc import CfC
from policies.checkpoint import CheckpointError, load_driver, save_driver
from policies.core import Core, State, map_state, reset_rows
from policies.cores import CORES, build_core
from policies.driver import NOMINAL_DT, Driver, DriverConfig
from policies.feedforward import Feedforward
from policies.graphs import (
    WIRINGS,
    backbone_wiring,
    fully_connected_wiring,
    mlp_wiring,
    ncp_wiring,
    random_wiring,
    sensory_gate_wiring,
)
from policies.heads import ContinuousActionHead, DiscreteActionHead, VisionHead
from policies.nac import NAC, Attention, Circuit
from policies.nac_core import NACCore
from policies.ncp import Backbone, SensoryGate
from policies.pretrained import PRETRAINED, is_pretrained, load_pretrained, pretrained_folder
from policies.recurrent import GRU, LSTM
from policies.variants import NAC_VARIANTS
from policies.wiring import Groups, Wiring

__all__ = [
    "CORES",
    "GRU",
    "LSTM",
    "NAC",
    "NAC_VARIANTS",
    "NOMINAL_DT",
    "PRETRAINED",
    "WIRINGS",
    "Attention",
    "Backbone",
    "CfC",
    "CheckpointError",
    "Circuit",
    "ContinuousActionHead",
    "Core",
    "DiscreteActionHead",
    "Driver",
    "DriverConfig",
    "Feedforward",
    "Groups",
    "NACCore",
    "SensoryGate",
    "State",
    "VisionHead",
    "Wiring",
    "ages",
    "backbone_wiring",
    "build_core",
    "fully_connected_wiring",
    "is_pretrained",
    "load_driver",
    "load_pretrained",
    "map_state",
    "mlp_wiring",
    "ncp_wiring",
    "pretrained_folder",
    "random_wiring",
    "reset_rows",
    "save_driver",
    "sensory_gate_wiring",
]
