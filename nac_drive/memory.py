"""Tell errors of a full memory from others: each library reports them in its own way."""

import errno
import re

NO_MEMORY = "out of memory; use fewer workers or a smaller batch, or raise the limit of the process (ulimit -v)."
"""The message of a command that ran out of memory."""

_WORDS = re.compile(r"failed to map segment|cannot allocate memory|can't allocate memory|out of memory", re.IGNORECASE)
"""How the dynamic linker (in an ImportError), PyTorch (in a RuntimeError) and CUDA say it."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory could not be had."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (
        isinstance(error, ImportError | RuntimeError) and _WORDS.search(str(error)) is not None
    )
