"""Parts of the package by name. Users and plug-ins add their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

from nac_drive import plugins
from nac_drive.suggest import did_you_mean

T = TypeVar("T")

_registries: dict[str, Registry[Any]] = {}
_inherited: dict[str, bytes] = {}
"""Kind of a part -> pickled additions of the parent process, read when its registry is."""


class Registry(MutableMapping[str, T], Generic[T]):
    """Names and parts of one kind. Plug-ins are loaded for a name that is unknown, and when all are listed.

    A dotted name such as `mine.MinGRU` stands for an object in the plug-in `mine`.

    Args:
        kind: One word for a part, such as core.
        parts: The parts that come with the package.
        adapt: Makes a part of a plug-in's object and its name, where the user may name one; None if a name must be
            registered.
        check: Raises ValueError for a name and an object that a user adds and that are no part.
    """

    def __init__(
        self,
        kind: str,
        parts: Mapping[str, T],
        adapt: Callable[[str, Any], T] | None = None,
        check: Callable[[str, Any], None] = lambda name, part: None,
    ) -> None:
        self.kind, self._adapt, self._check = kind, adapt, check
        self._parts: dict[str, T] = dict(parts)
        self._own = set(parts)
        _registries[kind] = self

    def __getitem__(self, name: str) -> T:
        if name not in self._parts:
            self._complete()
            if name not in self._parts and self._adapt is not None:
                self[name] = self._adapt(name, plugins.attribute_of_plugin(name))
        return self._parts[name]

    def __contains__(self, name: object) -> bool:
        try:
            self[name]  # type: ignore[index]
        except KeyError:
            return False
        return True

    def __setitem__(self, name: str, part: T) -> None:
        self._check(name, part)
        self._parts[name] = part

    def __delitem__(self, name: str) -> None:
        del self._parts[name]

    def __iter__(self) -> Iterator[str]:
        self._complete()
        return iter(self._parts)

    def __len__(self) -> int:
        self._complete()
        return len(self._parts)

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}, {sorted(self)})"

    def require(self, name: str) -> T:
        """Return the part of that name.

        Raises:
            ValueError: There is none. The message names the close ones, and the plug-in that may have it.
        """
        if name not in self:
            if module := plugins.missing_plugin(str(name)):
                raise ValueError(f"{self.kind} {name!r} comes from the plug-in {module}; pass --plugin {module}.py.")
            advice = did_you_mean(str(name), self)
            raise ValueError(f"{self.kind} {name!r} is unknown; choose from {', '.join(sorted(self))}.{advice}")
        return self[name]

    def _complete(self) -> None:
        """Add the parts of plug-ins, and the parent process's."""
        plugins.load_plugins()
        if self.kind in _inherited:
            import cloudpickle

            self._parts |= cloudpickle.loads(_inherited.pop(self.kind))

    def ship(self, name: str, part: T) -> None:
        """Add a part that comes with the package."""
        self._parts[name] = part
        self._own.add(name)

    def additions(self) -> dict[str, T]:
        """Return the parts that a user has added."""
        return {name: part for name, part in self._parts.items() if name not in self._own}


def pickled_additions() -> dict[str, bytes]:
    """Return all that users have added, for `inherit`.

    Classes of a notebook are pickled with their code.
    """
    additions = {kind: parts for kind, registry in _registries.items() if (parts := registry.additions())}
    if not additions:
        return dict(_inherited)
    import cloudpickle

    return _inherited | {kind: cloudpickle.dumps(parts) for kind, parts in additions.items()}


def inherit(additions: Mapping[str, bytes]) -> None:
    """Take over the additions of the parent process. They are unpickled when their registry is read."""
    _inherited.update(additions)
