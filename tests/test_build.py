"""The simulator is compiled by the compiler there is, and wheels hold it. Nothing here uses the network."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.tags import platform_tags

from nac_drive.envs.native import build

ROOT = Path(__file__).parents[1]
SMALL = """#include "small.h"
#define API __attribute__((visibility("default")))
API int32_t doubled(int32_t x) { return 2 * x; }
API const char *digest(void) { return SOURCE_DIGEST; }
"""
COMPILED = f"nac_drive/envs/native/{build.library_name()}"

needs_compiler = pytest.mark.skipif(not build.system_compiler(), reason="there is no C compiler")


@pytest.fixture
def sources(tmp_path) -> Path:
    """A folder with one small C file and its header."""
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "small.c").write_text(SMALL)
    (folder / "small.h").write_text("#include <stdint.h>\n")
    return folder


@pytest.fixture
def project(tmp_path, sources) -> Path:
    """The project as it is, with a small package and the small C file."""
    folder = tmp_path / "project"
    shutil.copytree(sources, folder / "nac_drive/envs/native")
    shutil.copy(build.__file__, folder / "nac_drive/envs/native")
    (folder / "nac_drive/__init__.py").write_text('__version__ = "1.2.3"\n')
    for name in ("pyproject.toml", "hatch_build.py", ".gitignore", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def no_compiler(tmp_path, monkeypatch):
    """A PATH without a compiler."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CC", raising=False)
    build.system_compiler.cache_clear()
    yield
    build.system_compiler.cache_clear()


@pytest.fixture
def ziglang(tmp_path, monkeypatch) -> None:
    """A package `ziglang` that compiles nothing: it writes its arguments and its cache folder to the output."""
    package = tmp_path / "stub/ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, sys\n"
        "with open(sys.argv[sys.argv.index('-o') + 1], 'w') as file:\n"
        "    print(*sys.argv[1:], os.environ['ZIG_GLOBAL_CACHE_DIR'], sep='\\n', file=file)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.syspath_prepend(package.parent)


def backend(project: Path, call: str) -> str:
    """Call the build backend in a process, as pip does, and return the last line of its output."""
    code = f"from hatchling.build import *; print({call})"
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True)
    if done.returncode:
        assert "Traceback" not in done.stderr
        raise RuntimeError(done.stderr)
    return done.stdout.splitlines()[-1]


def contents(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        assert len(names) == len(set(names))
        return {name: archive.read(name) for name in names}


@needs_compiler
def test_a_library_knows_the_sources_that_it_was_built_from(sources, tmp_path):
    library = tmp_path / build.library_name()
    build.compile_library(library, folder=sources)
    loaded = ctypes.CDLL(str(library))
    loaded.digest.restype = ctypes.c_char_p
    assert loaded.doubled(21) == 42
    assert loaded.digest().decode() == build.source_digest(sources)
    assert build.is_current(library, sources)
    (sources / "small.h").write_text("#include <stdint.h>\n\n")
    assert loaded.digest().decode() != build.source_digest(sources)
    assert not build.is_current(library, sources)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [library.name]


def test_the_digest_changes_with_every_name_and_content(sources):
    digests = [build.source_digest(sources)]
    for name, text in (("small.h", ""), ("other.h", ""), ("other.c", "int x;\n"), ("other.c", "int y;\n")):
        (sources / name).write_text(text)
        digests.append(build.source_digest(sources))
    assert len(set(digests)) == 5
    (sources / "notes.txt").touch()
    assert build.source_digest(sources) == digests[-1]


@needs_compiler
def test_a_faulty_c_file_is_reported_and_leaves_the_old_library(sources, tmp_path):
    (sources / "small.c").write_text("int f(void) { return 1 }\n")
    library = tmp_path / build.library_name()
    library.write_text("old")
    with pytest.raises(
        build.BuildError, match=r"(?s)small\.c:1:.*error.*\nThe C compiler above failed .* CC="
    ) as caught:
        build.compile_library(library, folder=sources)
    assert "another compiler" in str(caught.value).splitlines()[-1]
    assert library.read_text() == "old"


def test_a_wrong_cc_is_refused(no_compiler, monkeypatch):
    monkeypatch.setenv("CC", "no-such-cc -O1")
    with pytest.raises(build.BuildError, match="CC must be a C compiler, got 'no-such-cc -O1'; unset CC or correct it"):
        build.system_compiler()


@needs_compiler
def test_a_compiler_that_cannot_link_counts_as_none(no_compiler, tmp_path, monkeypatch):
    folder = tmp_path / "nothing"
    folder.mkdir()
    (folder / "cc").write_text("#!/bin/sh\necho 'math.h: No such file' >&2\nexit 1\n")
    (folder / "cc").chmod(0o755)
    assert build.system_compiler() is None


def test_without_a_compiler_and_ziglang_the_message_names_both(no_compiler, monkeypatch):
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(build.BuildError, match=r"no C compiler was found .*`pip install 'ziglang.*no-build-isolation"):
        build.compiler_command()


def test_without_sources_the_message_says_where_they_are(tmp_path):
    with pytest.raises(build.BuildError, match="must hold the C files of the simulator; use a checkout"):
        build.compile_library(tmp_path / "library.so", folder=tmp_path)
    assert build.source_digest(tmp_path) == ""


def test_the_simulator_needs_no_runtime_library_of_the_compiler():
    """zig's library brings its own sine and cosine along, which round unlike the platform's."""
    files = [path.name for path in build.FOLDER.glob("*.[ch]") if re.search(r"\b__builtin_cpu_\w+\(", path.read_text())]
    assert files == []


@pytest.mark.parametrize("platform", [None, *build.PLATFORMS])
def test_zig_compiles_for_any_processor_of_the_platform(platform, no_compiler, ziglang, sources, tmp_path):
    build.compile_library(tmp_path / "library", platform, sources)
    arguments = (tmp_path / "library").read_text().splitlines()
    assert arguments[0] == "cc"
    assert {"-mcpu=baseline", "-ffp-contract=off", "-fno-sanitize=undefined", "-rtlib=none"} <= set(arguments)
    assert not [argument for argument in arguments if "native" in argument and "/" not in argument]
    assert ("-target" in arguments) == (platform is not None)
    assert platform is None or build.PLATFORMS[platform] in arguments
    assert not Path(arguments[-1]).exists()  # the cache of zig is gone


def test_ziglang_is_required_only_where_it_is_needed(project, monkeypatch, tmp_path):
    kinds = ", ".join(f"'ziglang' in str(get_requires_for_build_{kind}())" for kind in ("wheel", "editable", "sdist"))
    if build.system_compiler():
        assert backend(project, f"({kinds})") == "(False, False, False)"
        monkeypatch.setenv("NAC_DRIVE_PLATFORM", "macosx_11_0_arm64")
        assert backend(project, f"({kinds})") == "(True, True, False)"
        monkeypatch.delenv("NAC_DRIVE_PLATFORM")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CC", raising=False)
    assert backend(project, f"({kinds})") == "(True, True, False)"


@needs_compiler
def test_a_wheel_is_for_this_platform_and_every_python(project):
    wheel = project / backend(project, "build_wheel('.')")
    assert wheel.name.removesuffix(".whl").split("-")[1:4] == ["1.2.3", "py3", "none"]
    assert wheel.name.removesuffix(".whl").split("-")[4] in set(platform_tags())
    assert "many" not in wheel.name  # the tag promises no old glibc
    files = contents(wheel)
    assert {name for name in files if "native" in name} == {COMPILED, "nac_drive/envs/native/build.py"}
    assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in files if "licenses" in name}
    assert b"Root-Is-Purelib: false" in files["nac_drive-1.2.3.dist-info/WHEEL"]
    assert build.source_digest(project / "nac_drive/envs/native") != ""
    assert files[COMPILED] == (project / COMPILED).read_bytes()


def test_a_wheel_for_another_platform_leaves_the_checkout_as_it_is(project, ziglang, monkeypatch):
    monkeypatch.setenv("NAC_DRIVE_PLATFORM", "macosx_11_0_arm64")
    (project / COMPILED).write_text("of this machine")
    wheel = project / backend(project, "build_wheel('.')")
    assert wheel.name == "nac_drive-1.2.3-py3-none-macosx_11_0_arm64.whl"
    libraries = {name: text for name, text in contents(wheel).items() if "libcarracing" in name}
    assert list(libraries) == ["nac_drive/envs/native/libcarracing.dylib"]
    assert b"aarch64-macos.11.0" in libraries["nac_drive/envs/native/libcarracing.dylib"]
    assert (project / COMPILED).read_text() == "of this machine"


def test_an_unknown_platform_is_refused(project, monkeypatch):
    monkeypatch.setenv("NAC_DRIVE_PLATFORM", "win32")
    with pytest.raises(RuntimeError, match=r"nac-drive: NAC_DRIVE_PLATFORM must be one of \[.*\], got 'win32'"):
        backend(project, "get_requires_for_build_wheel()")


@needs_compiler
def test_the_source_distribution_builds_the_same_wheel(project, tmp_path):
    wheel = project / backend(project, "build_wheel('.')")
    source = project / backend(project, "build_sdist('.')")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {"hatch_build.py", "NOTICE", "nac_drive/envs/native/small.c", "nac_drive/envs/native/small.h"} <= names
    assert COMPILED not in names
    again = tmp_path / "nac_drive-1.2.3" / backend(tmp_path / "nac_drive-1.2.3", "build_wheel('.')")
    assert contents(again) == contents(wheel)


@pytest.mark.slow
def test_a_checkout_without_links_builds_a_whole_wheel(tmp_path, ziglang, monkeypatch):
    """As archive tools and Windows leave it: the links at the top are text files, or not there. No script is in it."""
    checkout, installed, modules = tmp_path / "checkout", tmp_path / "installed", set()
    for path in (ROOT / "nac_drive").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and "libcarracing" not in path.name:
            copy = checkout / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
            if path.suffix == ".py":
                modules.add(str(path.relative_to(ROOT)))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, checkout)
    (checkout / "envs").write_text("nac_drive/envs")
    shutil.copytree(ROOT / "benchmarks/papers", checkout / "benchmarks/papers")
    monkeypatch.setenv("NAC_DRIVE_PLATFORM", "manylinux_2_17_x86_64")
    with ZipFile(checkout / backend(checkout, "build_wheel('.')")) as wheel:
        wheel.extractall(installed)
    assert {str(path.relative_to(installed)) for path in installed.rglob("*.py")} == modules
    assert {name.split("/")[1] for name in modules} > {"envs", "policies", "data_collection"}
    code = "import nac_drive as nd; print(nd.__file__, nd.EnvConfig().control, nd.load_driver('expert').config.core)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(installed)}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(installed / "nac_drive/__init__.py"), "discrete", "cnn"]


def test_the_page_of_a_package_links_to_the_repository_that_built_it(project, monkeypatch):
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/nac-drive")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.com")
    monkeypatch.setenv("GITHUB_REF_NAME", "v1.2.3")
    text = metadata(project / backend(project, "build_sdist('.')"))
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    assert "](https://github.com/someone/nac-drive/raw/v1.2.3/docs/champion.gif)" in text
    assert "](https://github.com/someone/nac-drive/blob/v1.2.3/docs/tutorial.md)" in text
    assert "Project-URL: Source, https://github.com/someone/nac-drive\n" in text


def test_without_a_repository_the_page_is_the_readme(project, monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    text = metadata(project / backend(project, "build_sdist('.')"))
    assert text.endswith((ROOT / "README.md").read_text())
    assert "Project-URL:" not in text


def metadata(source: Path) -> str:
    """The metadata of a source distribution, with the README at their end."""
    with tarfile.open(source) as archive:
        file = archive.extractfile("nac_drive-1.2.3/PKG-INFO")
        assert file is not None
        return file.read().decode()


@needs_compiler
def test_the_checkout_is_compiled_again_only_if_it_changed(project):
    native = project / "nac_drive/envs/native"
    command = [sys.executable, native / "build.py", "--if-stale"]
    subprocess.run(command, check=True)
    first = (project / COMPILED).stat()
    subprocess.run(command, check=True)
    assert (project / COMPILED).stat().st_ino == first.st_ino
    (native / "small.h").write_text("#include <stdint.h>\n\n")
    subprocess.run(command, check=True)
    assert build.is_current(project / COMPILED, native)
    assert sorted(os.listdir(native)) == sorted(["build.py", build.library_name(), "small.c", "small.h"])
