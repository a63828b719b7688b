"""A secret of this user, which signs this user's files.

Files that came with a folder of somebody else lack it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from nac_drive.storage.write import write_atomically

_BYTES = 32


def own_key() -> bytes:
    """Return 32 random bytes. They are made once and kept in the user's cache folder, which no dataset travels with.

    Raises:
        OSError: They cannot be kept, or the user has no home.
    """
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise OSError(str(error)) from error
    path = caches / "nac-drive" / "key"
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, secrets.token_bytes(_BYTES))
    return path.read_bytes()
