"""Hooks of the build: one compiles the simulator, one makes the links of the README absolute.

hatchling compiles for wheels and editable installations, never for the source distribution (docs/dependencies.md).
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import platform_tags

NATIVE = "nac_drive/envs/native"
"""Folder of the simulator, in a checkout, in the source distribution and in a wheel."""


def _load_build() -> ModuleType:
    """Load build.py by its path. The package cannot be imported before its dependencies are installed."""
    spec = importlib.util.spec_from_file_location("nac_drive_native_build", Path(__file__).parent / NATIVE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _load_build()


def this_platform() -> str:
    """Return this machine's platform tag, for example linux_x86_64.

    PyPI refuses a wheel with this tag, because the tag promises no version of glibc.
    """
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))


def wheel_platform() -> str | None:
    """Return the platform in NAC_DRIVE_PLATFORM, or None for this machine."""
    chosen = os.environ.get("NAC_DRIVE_PLATFORM") or None
    if chosen is not None and chosen not in build.PLATFORMS:
        raise build.BuildError(f"NAC_DRIVE_PLATFORM must be one of {sorted(build.PLATFORMS)}, got {chosen!r}")
    return chosen


class CustomBuildHook(BuildHookInterface):
    """Hook that adds the compiled library to a wheel.

    The wheel is for one platform and for every Python, as the library uses nothing of Python.

    The environment variable NAC_DRIVE_PLATFORM chooses the platform of a wheel, for example manylinux_2_17_aarch64. zig
    compiles for it on any machine. By default the wheel is for this machine.
    """

    _scratch: tempfile.TemporaryDirectory[str] | None = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """End the build with the message instead of a traceback."""
        try:
            yield
        except build.BuildError as error:
            self.app.abort(f"nac-drive: {error}")

    def dependencies(self) -> list[str]:
        """Return ziglang for another platform, or without a C compiler."""
        with self._errors():
            return [build.ZIGLANG] if wheel_platform() or not build.system_compiler() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the simulator and add it to the wheel.

        The library for this machine is compiled in place. An editable installation uses it there, and so does a Python
        that is started in the checkout. A library for another platform never lies in the source tree.
        """
        with self._errors():
            chosen = None if version == "editable" else wheel_platform()
            folder = Path(self.root, NATIVE)
            if chosen is not None or not os.access(folder, os.W_OK):
                self._scratch = tempfile.TemporaryDirectory()
                folder = Path(self._scratch.name)
            library = folder / build.library_name(chosen)
            build.compile_library(library, chosen)
        if version == "editable":
            return
        build_data["force_include"][str(library)] = f"{NATIVE}/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{chosen or this_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()


class CustomMetadataHook(MetadataHookInterface):
    """Hook that adds the README, as the page of a package index shows it, and the address of the repository.

    GitHub Actions names its repository in GITHUB_REPOSITORY, so a fork links to itself. Elsewhere links stay relative.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme`, and `urls` where the repository is known."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get("GITHUB_REPOSITORY"):
            url = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}"
            text = with_absolute_links(text, url, os.environ.get("GITHUB_REF_NAME", "main"))
            metadata["urls"] = {"Source": url, "Issues": f"{url}/issues"}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, url: str, version: str) -> str:
    """Return Markdown whose relative links lead to one version of a repository at GitHub.

    Args:
        text: Markdown with links `[text](path)` and images `![text](path)`.
        url: Address of the repository.
        version: Tag or branch.
    """
    text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:)", rf"\g<1>{url}/raw/{version}/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{url}/blob/{version}/", text)
