"""Errors of the light install.

It is the simulator alone, with the three packages that docs/simulator.md names. Everything else needs more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def what_is_missing(needy: str, error: BaseException) -> str | None:
    """Return a sentence about a package that is not installed.

    Args:
        needy: What needs the package, as the sentence begins with it.
        error: What an import raised.

    Returns:
        The sentence, or None if nothing but a module of nac-drive itself is missing.
    """
    if not isinstance(error, ModuleNotFoundError) or str(error.name).partition(".")[0] == "nac_drive":
        return None
    return f"{needy} needs {error.name}, which is not installed; run pip install nac-drive."


def naming_what_is_missing(package: str, load: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a `__getattr__` whose errors name the missing package.

    Args:
        package: The dotted name of the package.
        load: Its `__getattr__`, which imports what is asked for.
    """

    def getattr_of_package(name: str) -> Any:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            if sentence := what_is_missing(f"{package}.{name}", error):
                raise ModuleNotFoundError(sentence, name=error.name) from error
            raise

    return getattr_of_package
