"""nac-drive: collect demonstrations of CarRacing, clone drivers from them, measure how they drive.

The front door: everything a user needs is importable from here, and loaded when it is first used. The names are in
`__init__.pyi`. `import nac_drive` registers the environments `nac_drive/CarRacing-v0` and `nac_drive/MetaDrive-v0` with
gymnasium, by their names alone.
"""

import lazy_loader
from gymnasium.envs import registration

from nac_drive.callable_modules import with_callable_modules
from nac_drive.light_install import naming_what_is_missing

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = naming_what_is_missing(__name__, with_callable_modules(__name__, _load))
__version__ = "0.3.0"

if (
    "nac_drive/CarRacing-v0" not in registration.registry
):  # a second import under another name, or a reload, registers nothing
    registration.register(
        id="nac_drive/CarRacing-v0",
        entry_point="nac_drive.envs.registered:single_env",
        vector_entry_point="nac_drive.envs.vector:vector_env",
        max_episode_steps=1000,
    )
    for _name in ("nac_drive/MetaDrive-v0", "nac_drive/MetaDriveEmpty-v0"):
        registration.register(
            id=_name,
            entry_point="nac_drive.envs.metadrive.environment:gymnasium_env",
            max_episode_steps=1000,
            kwargs={"name": _name},
        )
