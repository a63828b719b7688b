"""Compilation of the simulator.

    python envs/native/build.py             # in place
    python envs/native/build.py --if-stale  # only if the library was built from other sources
    CC="gcc -fsanitize=undefined" python envs/native/build.py OUTPUT

The C files of this folder become one library. hatch_build.py runs this file before anything is installed, so it needs
the standard library only. The library holds a digest of its sources: `library.py` refuses a library of other sources.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).absolute().parent
ZIGLANG = "ziglang>=0.14,<0.18"
"""The C compiler from PyPI, for machines that have none."""

FLAGS = (
    "-O3", "-g0", "-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra",
    "-ffp-contract=off",  # a fused multiply-add rounds once where Box2D rounds twice
)  # fmt: skip
_ZIG_FLAGS = (
    "-mcpu=baseline",  # zig's default is the processor of this machine
    "-fno-sanitize=undefined",
    "-rtlib=none",  # zig's runtime library has a sine and a cosine, which round unlike the platform's
    "-s",
)
PLATFORMS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
}
"""Platforms of the released wheels, and their names in zig, which compiles for all of them on any machine."""

_PROBE = "#include <math.h>\n#include <stdint.h>\nfloat probe(float x) { return sinf(x); }\n"


class BuildError(Exception):
    """Failure to compile the library. The message says what to do."""


def library_name(wheel_platform: str | None = None) -> str:
    """Return the file name of the library.

    Args:
        wheel_platform: Key of PLATFORMS, or None for this machine.
    """
    system = wheel_platform or platform.system().lower()
    return "libcarracing.dylib" if system.startswith(("darwin", "macosx")) else "libcarracing.so"


LIBRARY = FOLDER / library_name()


def source_digest(folder: Path = FOLDER) -> str:
    """Return a digest of the C files and the compilers' flags.

    It has 16 hexadecimal digits. An installed wheel has no C files: there it is "".
    """
    sources = sorted([*folder.glob("*.c"), *folder.glob("*.h")])
    if not sources:
        return ""
    digest = hashlib.sha256()
    for path in sources:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    digest.update(repr((FLAGS, _ZIG_FLAGS)).encode())
    return digest.hexdigest()[:16]


def is_current(library: Path, folder: Path = FOLDER) -> bool:
    """Report whether the library was built from these C files."""
    return library.exists() and source_digest(folder).encode() in library.read_bytes()


@cache
def system_compiler() -> tuple[str, ...] | None:
    """Return the command of this machine's C compiler, or None.

    The environment variable CC comes first. A compiler works if it compiles a few lines: gcc may be there without the
    headers of libc, and macOS has a `cc` that only offers to install one.

    Raises:
        BuildError: If the compiler in CC does not work.
    """
    if chosen := shlex.split(os.environ.get("CC", "")):
        if message := _try(chosen):
            raise BuildError(f"{message}\nCC must be a C compiler, got {shlex.join(chosen)!r}; unset CC or correct it.")
        return tuple(chosen)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name) and not _try([name]):
            return (name,)
    return None


def _try(compiler: Sequence[str]) -> str:
    """Return the message with which the compiler fails, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(_PROBE)
        try:
            _run([*compiler, *FLAGS, source.name, "-o", "probe.so", "-lm"], folder)
        except BuildError as error:
            return str(error)
    return ""


def compiler_command(wheel_platform: str | None = None) -> list[str]:
    """Return the command that compiles for a platform.

    Args:
        wheel_platform: Key of PLATFORMS, which zig compiles for. None is this machine.

    Raises:
        BuildError: If there is no compiler.
    """
    if wheel_platform is None and (command := system_compiler()):
        return [*command, *FLAGS]
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError(
            "no C compiler was found (cc, gcc, clang, or the one in CC), and the package ziglang is not installed; "
            f"install a compiler, run `pip install '{ZIGLANG}'`, or build without --no-build-isolation."
        )
    target = [] if wheel_platform is None else ["-target", PLATFORMS[wheel_platform]]
    return [sys.executable, "-m", "ziglang", "cc", *FLAGS, *_ZIG_FLAGS, *target]


def compile_library(output: Path, wheel_platform: str | None = None, folder: Path = FOLDER) -> None:
    """Compile the C files of a folder.

    The output is replaced in one step, so that processes which have loaded the old library go on.

    Args:
        output: The library to write.
        wheel_platform: Key of PLATFORMS, or None for this machine.
        folder: Holds the C files.

    Raises:
        BuildError: If there is no compiler, or it reports an error, which the message quotes.
    """
    sources = [str(path) for path in sorted(folder.glob("*.c"))]
    if not sources:
        raise BuildError(f"{folder} must hold the C files of the simulator; use a checkout or the source distribution.")
    command = [*compiler_command(wheel_platform), f'-DSOURCE_DIGEST="{source_digest(folder)}"', *sources, "-lm"]
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".build-") as scratch:
        built = Path(scratch, output.name)
        try:
            warnings = _run([*command, "-o", output.name], scratch)  # macOS writes the output's path into it
        except BuildError as error:
            raise BuildError(
                f"{error}\nThe C compiler above failed on nac_drive/envs/native; correct the C files, choose another "
                "compiler by CC=..., or report the message with the compiler's version."
            ) from None
        sys.stderr.write(warnings)
        built.replace(output)


def _run(command: Sequence[str], folder: str) -> str:
    """Run a compiler in a scratch folder and return its warnings. zig keeps its cache there, not in the user's home."""
    environment = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder, **os.environ}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stderr


def _main(arguments: Sequence[str]) -> None:
    """Compile in place or to the output that the arguments name."""
    if list(arguments) == ["--if-stale"]:
        if not is_current(LIBRARY):
            compile_library(LIBRARY)
    else:
        compile_library(Path(arguments[0]).absolute() if arguments else LIBRARY)


if __name__ == "__main__":
    try:
        _main(sys.argv[1:])
    except BuildError as error:
        sys.exit(f"nac-drive: {error}")
