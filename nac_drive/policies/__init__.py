"""Networks that drive: NAC, its baselines, and drivers of them.

The names are in `__init__.pyi`; torch is loaded with the first of them that needs it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
