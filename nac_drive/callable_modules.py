"""Modules that are called by their name, as the function of that name in them.

`nac_drive.data_collection.collect` is a module and a function, and Python binds one of the two to the name. If it is
the function, `import nac_drive.data_collection.collect as module` fails. Here it is the module, and calling it calls
the function.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class CallableModule(ModuleType):
    """A module that is called as the function `__wrapped__`, whose signature and docstring it shows."""

    __wrapped__: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        package, _, name = self.__name__.rpartition(".")
        return resolve_name, (f"{package}:{name}",)  # a module is not pickled


def callable_module(name: str, function: Function) -> Function:
    """Let a module be called as a function.

    Args:
        name: The dotted name of the module, which is loaded.
        function: The function of the same name.

    Returns:
        The module, to be bound in place of the function.
    """
    module: Any = importlib.import_module(name)
    module.__class__ = CallableModule
    module.__wrapped__, module.__doc__ = function, function.__doc__
    return module


def with_callable_modules(package: str, load: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a package's `__getattr__` that prefers a module to the function of the same name in it.

    Args:
        package: The dotted name of the package.
        load: Its `__getattr__`, which loads functions and modules.
    """

    def getattr_of_package(name: str) -> Any:
        value = load(name)
        module = sys.modules.get(f"{package}.{name}")
        if module is not None and value is not module:
            value = vars(sys.modules[package])[name] = callable_module(module.__name__, value)
        return value

    return getattr_of_package
