"""Plug-ins: Python files and modules of the user.

They add cores, environments, drivers and other parts.

A plug-in is imported because the user named it: by `--plugin`, in the variable NAC_DRIVE_PLUGINS, in a reference such
as `mine.py:MinGRU`, or by installing a package with an entry point of the group `nac_drive`. A name that a run, a
dataset or another file holds never imports anything.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from nac_drive.suggest import did_you_mean

VARIABLE = "NAC_DRIVE_PLUGINS"
"""Environment variable with the plug-ins of this process and of its workers, separated as PATH is."""
GROUP = "nac_drive"
"""Group of the entry points of installed plug-ins."""

_PACKAGE, _PYTHON = Path(__file__).parent, Path(os.__file__).parent
_INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders of installed packages."""

_REFERENCE = re.compile(r"(?P<source>.*\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)", re.DOTALL)


@dataclass(frozen=True)
class Plugin:
    """A loaded plug-in, as a run's config.json names it."""

    module: str
    """Name of the module, such as `mine`."""
    source: str
    """What to pass to --plugin: the file or the module."""
    version: str
    """Version of the package that holds it, or SHA-256 of the file."""

    @property
    def file(self) -> str:
        """Name of the file, or of the installed module."""
        return Path(self.source).name


_loaded: dict[str, Plugin] = {}
_busy = False
_entry_points_loaded = False


def load_plugin(source: str | os.PathLike[str]) -> Plugin:
    """Import a plug-in.

    The workers that this process starts later import it too.

    Args:
        source: A Python file, or the dotted name of a module that is installed or lies in the current folder.

    Returns:
        The plug-in. A second call with the same source imports nothing.

    Raises:
        FileNotFoundError: There is no such file or module.
        ValueError: Its name is taken by another module, or its import fails.
    """
    text = os.fspath(source)
    if text.endswith(".py"):
        text = os.path.abspath(text)
    for plugin in _loaded.values():
        if plugin.source == text:
            return plugin
    module = _import_file(Path(text)) if text.endswith(".py") else _import_module(text)
    plugin = _loaded[module.__name__] = Plugin(module.__name__, text, _version(module))
    sources = _sources_of_variable()
    if text not in sources:
        os.environ[VARIABLE] = os.pathsep.join([*sources, text])
    return plugin


def load_plugins(*, installed: bool = True) -> None:
    """Import the plug-ins of the variable and of installed packages.

    It is done once.

    Args:
        installed: Whether to look for installed packages, which takes some milliseconds.

    Raises:
        FileNotFoundError, ValueError: See `load_plugin`.
    """
    global _busy, _entry_points_loaded
    if _busy:  # a plug-in reads a registry while it is imported
        return
    _busy = True
    try:
        for source in _sources_of_variable():
            load_plugin(source)
        if installed and not _entry_points_loaded:
            _entry_points_loaded = True
            for entry_point in metadata.entry_points(group=GROUP):
                module = _import_module(entry_point.module)
                _loaded.setdefault(module.__name__, Plugin(module.__name__, entry_point.module, _version(module)))
    finally:
        _busy = False


def attribute_of_plugin(name: str) -> Any:
    """Return the object behind a dotted name such as `mine.MinGRU`.

    Raises:
        KeyError: It is not, or the plug-in has no such object.
    """
    module, _, attribute = name.rpartition(".")
    if module not in _loaded or not hasattr(sys.modules[module], attribute):
        raise KeyError(name)
    return getattr(sys.modules[module], attribute)


def is_reference(text: str) -> bool:
    """Return whether a text has the form FILE.py:NAME or MODULE:NAME."""
    return _REFERENCE.fullmatch(text) is not None


def named_object(text: str) -> str:
    """Load the plug-in of a typed reference.

    Args:
        text: FILE.py:NAME or MODULE:NAME, such as `mine.py:MinGRU`. Any other text is returned as it is.

    Returns:
        A name such as `mine.MinGRU`, which registries know from now on.

    Raises:
        FileNotFoundError: There is no such file or module.
        ValueError: It has no such object.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return text
    plugin, name = load_plugin(match["source"]), match["name"]
    module = sys.modules[plugin.module]
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise ValueError(f"{text}: {match['source']} defines no {name!r}.{did_you_mean(name, public)}")
    return f"{plugin.module}.{name}"


def missing_plugin(name: str) -> str | None:
    """Return the module of a name, unless it is loaded.

    None for another name.
    """
    module = name.rpartition(".")[0]
    return module if module and module not in _loaded else None


def named_plugins(classes: Iterable[type]) -> list[dict[str, str]]:
    """Return the loaded plug-ins, for a driver's config.json.

    Args:
        classes: Classes of the driver. One of a script or a notebook has the module `__main__`.
    """
    plugins = [*_loaded.values()]
    if any(kind.__module__ == "__main__" for kind in classes):
        plugins.append(Plugin("__main__", "", ""))
    return [{"module": plugin.module, "file": plugin.file, "version": plugin.version} for plugin in plugins]


def saved_plugins(meta: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the plug-ins that a driver's notes name.

    Anybody may have written the notes: others than `named_plugins` writes are left out.
    """
    plugins = meta.get("plugins")
    return [plugin for plugin in plugins if _is_plugin(plugin)] if isinstance(plugins, list) else []


def _is_plugin(value: Any) -> bool:
    keys = {"module", "file", "version"}
    return isinstance(value, dict) and set(value) == keys and all(isinstance(word, str) for word in value.values())


def advice_for(saved: Iterable[Mapping[str, Any]]) -> str:
    """Return the advice about saved plug-ins that are missing.

    Empty if all are loaded.

    Args:
        saved: The plug-ins that a file names, see `saved_plugins`.
    """
    missing = [plugin for plugin in saved if plugin.get("module") not in {*_loaded, "__main__"}]
    if missing:
        return "; ".join(f"it comes from the plug-in {p.get('module')}: pass --plugin {p.get('file')}" for p in missing)
    if any(plugin.get("module") == "__main__" for plugin in saved):
        return "it comes from a script or a notebook: register it there before, or move it to a file and pass --plugin"
    return ""


def _sources_of_variable() -> list[str]:
    """Return the plug-ins that the variable names.

    The character between them may be a part of a file's path, too.
    """
    sources, pieces = [], [*filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))]
    while pieces:
        lengths = range(len(pieces), 1, -1)
        length = next((length for length in lengths if os.path.isfile(os.pathsep.join(pieces[:length]))), 1)
        sources.append(os.pathsep.join(pieces[:length]))
        del pieces[:length]
    return sources


def _import_file(path: Path) -> ModuleType:
    name = path.stem
    if not path.is_file():
        raise FileNotFoundError(f"plugin: there is no file {path}; pass a Python file or the name of a module.")
    if not name.isidentifier():
        raise ValueError(f"plugin: the name of {path.name} must be a Python name, such as my_model.py; rename it.")
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded and os.path.exists(loaded) and path.samefile(loaded):
        return sys.modules[name]  # a script has imported it
    if name in sys.modules or name in sys.stdlib_module_names or _is_installed(name, path):
        raise ValueError(f"plugin: another module has the name of {path.name}; rename the file.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for the modules beside it
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _import_error(path.name, error) from error
    return module


def _is_installed(name: str, path: Path) -> bool:
    """Return whether another module of that name could be imported."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return False
    return spec.origin is None or not os.path.exists(spec.origin) or not path.samefile(spec.origin)


def _import_module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_error(name, error) from error
        file = f"; did you mean {name}.py?" if os.path.exists(f"{name}.py") else ""
        raise FileNotFoundError(
            f"plugin: there is no module {name!r}; pass a Python file, or a module that is installed{file}."
        ) from None
    except Exception as error:
        raise _import_error(name, error) from error


def _import_error(source: str, error: Exception) -> ValueError:
    fix = "; install the package that has it" if isinstance(error, ModuleNotFoundError) else ""
    return ValueError(
        f"plugin {source} cannot be imported: {place_of(error)}{type(error).__name__}: {str(error).rstrip('.')}{fix}."
    )


def place_of(error: BaseException) -> str:
    """Return the file and line of an error, as "mine.py:3: ".

    It is the last line of the user's, or of a library if there is none. Empty if there are lines of this package alone.
    """
    frames, of_user, of_library = error.__traceback__, "", ""
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        location, folders = f"{Path(file).name}:{frames.tb_lineno}: ", Path(file).parents
        if _PACKAGE not in folders and not file.startswith("<"):
            if _PYTHON in folders or _INSTALLED & {folder.name for folder in folders}:
                of_library = location
            else:
                of_user = location
        frames = frames.tb_next
    return of_user or of_library


def is_of_package(error: BaseException) -> bool:
    """Return whether a line of this package raised an error."""
    frames, file = error.__traceback__, ""
    while frames is not None:
        file, frames = frames.tb_frame.f_code.co_filename, frames.tb_next
    return _PACKAGE in Path(file).parents


def _version(module: ModuleType) -> str:
    """Return the version of a package, or a SHA-256."""
    top = module.__name__.partition(".")[0]
    packages = metadata.packages_distributions().get(top) if _in_packages(module) else None
    if packages:
        return f"{packages[0]} {metadata.version(packages[0])}"
    file = getattr(module, "__file__", None)
    return f"sha256 {hashlib.sha256(Path(file).read_bytes()).hexdigest()}" if file else "unknown"


def _in_packages(module: ModuleType) -> bool:
    return "site-packages" in Path(getattr(module, "__file__", None) or "").parts
