"""Demonstrations: collect, store, verify and rebuild them.

The names are in `__init__.pyi`.
"""

import lazy_loader

from nac_drive.callable_modules import with_callable_modules

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_callable_modules(__name__, _load)
