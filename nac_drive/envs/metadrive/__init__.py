"""MetaDrive's roads as a track environment (docs/metadrive.md)."""

from nac_drive.envs.metadrive.environment import METADRIVE, METADRIVE_EMPTY, MetaDrive, metadrive_environment
from nac_drive.envs.metadrive.simulator import Settings

__all__ = ["METADRIVE", "METADRIVE_EMPTY", "MetaDrive", "Settings", "metadrive_environment"]
