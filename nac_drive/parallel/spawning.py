"""The start of worker processes, and the reason of their end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from multiprocessing import current_process

GUARD = 'put the code that starts them under `if __name__ == "__main__":` in a file'


def require_spawn(without: str) -> None:
    """Check that worker processes can be started here.

    Args:
        without: What to pass to do without processes, for the error message.

    Raises:
        ChildProcessError: This process is a worker that still imports the script, or one that may start none, or the
            script is read from stdin, where workers cannot import it.
    """
    process = current_process()
    if getattr(process, "_inheriting", False):
        raise ChildProcessError(
            f"worker processes: a worker imports the script, which starts workers again; {GUARD}, or {without}."
        )
    if process.daemon:
        raise ChildProcessError(
            "worker processes: this process is itself a worker, of multiprocessing.Pool or another daemon, which may "
            f"start none; {without}, or use concurrent.futures.ProcessPoolExecutor around it."
        )
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is None and file is not None and not os.path.exists(file):
        raise ChildProcessError(
            f"worker processes: they import the script, and there is no file {os.path.basename(file)!r}; {GUARD}, "
            f"or {without}."
        )


def reason_of_end(exit_codes: Iterable[int | None]) -> str:
    """Return how worker processes ended: by an error, or killed.

    The others are terminated then, or lose their connection and end with an error.

    Args:
        exit_codes: Exit status of each; None while it runs, negative for a signal.
    """
    codes = {code for code in exit_codes if code}
    if not any(code < 0 and code != -signal.SIGTERM for code in codes) and max(codes, default=0) > 0:
        return f"ended with an error, which is printed above. In a script, {GUARD}"
    return "died, perhaps out of memory"
