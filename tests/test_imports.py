"""The direction of imports, and the front door: `python tests/test_imports.py [FOLDER]` prints levels and circles."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import nac_drive
from tests.slow import slow_but

REPOSITORY = Path(__file__).parents[1]
LINKS = ("envs", "policies", "data_collection")
"""Links at the top of the repository to folders of the package."""
SIMULATION = {"gymnasium", "stable_baselines3", "cv2", "Box2D"}

_BASE = {"suggest", "plain", "arguments", "storage", "plugins", "registry"}
_DATA = _BASE | {"events", "notebook", "markdown", "parallel", "envs", "policies", "data_collection"}
_RESULTS = _DATA | {"evaluation", "analysis"}

MAY_IMPORT = {
    "suggest": set(),
    "plain": set(),
    "arguments": {"plain"},
    "callable_modules": set(),
    "light_install": set(),
    "events": set(),
    "markdown": set(),
    "memory": set(),
    "storage": set(),
    "notebook": {"events", "storage"},
    "plugins": {"suggest"},
    "registry": {"plugins", "suggest"},
    "parallel": {"plain", "plugins", "registry"},
    "envs": {"suggest", "plain", "arguments", "plugins", "registry", "markdown", "notebook", "callable_modules"}
    | {"parallel"},
    "policies": _BASE | {"markdown", "registry"},
    "data_collection": (_DATA | {"callable_modules"}) - {"data_collection"},
    "evaluation": _DATA | {"markdown"},
    "analysis": _DATA | {"evaluation"},
    "live": _DATA | {"analysis"},
    "training": _DATA | {"evaluation"},
    "experiments": _RESULTS | {"training", "markdown"},
}
"""Part of nac_drive -> other parts that it may import. cli, `__init__` and `__main__` may import everything."""

FOREIGN = {"envs": {"torch", "stable_baselines3"}, "policies": SIMULATION}
"""Part of nac_drive -> packages of others that it may not import."""


def files(root: Path) -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module and stub."""
    for path in sorted((root / "nac_drive").rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def at_module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Import statements that run when the module is imported, those under `if` and `try` included."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)


def everywhere(tree: ast.Module) -> Iterator[ast.stmt]:
    """All import statements, those in functions included."""
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def imported(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """(module, name) of absolute imports; the name is empty for `import module`."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> list[tuple[str, str]]:
    """`imported` of all statements of a file."""
    return list(imported(everywhere(parsed(path))))


@cache
def graph(root: Path, statements=at_module_level) -> dict[str, set[str]]:
    """Module -> modules of ours that it imports. A name of a lazy package counts as the module that defines it."""
    modules = {name: path for name, path in files(root) if path.suffix == ".py"}
    lazy = {}
    for package, path in files(root):
        if path.suffix == ".pyi":
            for node in parsed(path).body:
                if isinstance(node, ast.ImportFrom):
                    lazy.update({(package, alias.name): f"{package}.{node.module}" for alias in node.names})
    edges: dict[str, set[str]] = {}
    for module, path in modules.items():
        edges[module] = set()
        for source, name in imports(path) if statements is everywhere else imported(statements(parsed(path))):
            target = lazy.get((source, name), f"{source}.{name}" if f"{source}.{name}" in modules else source)
            if target in modules and target != module:
                edges[module].add(target)
    return edges


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other (strongly connected components of more than one module)."""
    reach = {start: _reachable(edges, start) for start in edges}
    groups = {frozenset({b for b in reach[a] if a in reach[b]} | {a}) for a in edges if a in reach[a]}
    return sorted((set(group) for group in groups), key=sorted)


def _reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += edges[module]
    return seen


def levels(edges: dict[str, set[str]]) -> list[list[str]]:
    """Modules by level: those on level 0 import none of ours, those on level n import level n - 1 and below."""
    rows: list[list[str]] = []
    left = dict(edges)
    while left:
        row = sorted(module for module, targets in left.items() if not targets & left.keys())
        if not row:  # only circles and what imports them are left
            return rows
        rows.append(row)
        left = {module: targets for module, targets in left.items() if module not in row}
    return rows


def part(module: str) -> str:
    """The part of nac_drive that a module belongs to; empty for nac_drive itself and for packages of others."""
    names = module.split(".")
    return names[1] if names[0] == "nac_drive" and len(names) > 1 else ""


# Direction


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_part_imports_only_the_parts_below_it(name):
    edges = graph(REPOSITORY, everywhere)
    found = {module: targets for module, targets in edges.items() if part(module) == name}
    assert found
    for module, targets in found.items():
        assert {part(target) for target in targets} <= MAY_IMPORT[name] | {name}, module
        assert "nac_drive" not in targets, f"{module} imports nac_drive itself, which hides a direction"


def test_the_direction_covers_every_part():
    parts = {part(module) for module in graph(REPOSITORY)} - {""}
    assert parts == {*MAY_IMPORT, "cli", "__main__"}
    for name, below in MAY_IMPORT.items():
        assert all(name not in MAY_IMPORT[other] for other in below), name


@pytest.mark.parametrize("name", FOREIGN)
def test_a_part_stays_free_of_packages_that_are_not_its_business(name):
    for path in (REPOSITORY / "nac_drive" / name).rglob("*.py"):
        roots = {module.split(".")[0] for module, _ in imports(path)}
        assert not roots & FOREIGN[name], path


def test_scripts_import_the_package_alone():
    for path in (REPOSITORY / "scripts").glob("*.py"):
        roots = {module.split(".")[0] for module, _ in imports(path)}
        assert roots <= {"nac_drive", "numpy", *sys.stdlib_module_names}, path


def test_every_import_has_the_one_name_of_a_module():
    """`import envs` would make a second copy of `nac_drive.envs`, and break beside somebody else's `envs`."""
    for folder in ("nac_drive", "scripts", "tests", "benchmarks"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            named = re.search(  # saves parsing
                rf"(?m)^\s*(?:import|from)\b.*(?<![.\w])(?:{'|'.join(LINKS)})\b", path.read_text()
            )
            for module, _ in imports(path) if named else ():
                assert module.split(".")[0] not in LINKS, f"{path} imports {module}, not nac_drive.{module}"


def test_no_module_is_long():
    """One idea takes no more than 400 lines."""
    lengths = {path: len(path.read_text().splitlines()) for path in (REPOSITORY / "nac_drive").rglob("*.py")}
    assert {path.name: length for path, length in lengths.items() if length > 400} == {}


def test_there_is_no_circle():
    edges = graph(REPOSITORY)
    print()
    report(REPOSITORY)
    assert circles(edges) == []
    assert circles(graph(REPOSITORY, everywhere)) == []  # with imports in functions and for types alone
    assert sum(map(len, levels(edges))) == len(edges)


def test_circles_and_levels_of_small_graphs():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [{"b", "c"}]
    assert levels({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == [["c"], ["b"], ["a"]]
    assert levels({"a": {"b"}, "b": {"a"}, "c": set()}) == [["c"]]


def test_the_walk_sees_imports_wherever_they_stand():
    source = "import torch.nn as nn\nif TYPE_CHECKING:\n    import a\ndef f():\n    from nac_drive.envs import Step\n"
    tree = ast.parse(source)
    assert set(imported(everywhere(tree))) == {("torch.nn", ""), ("a", ""), ("nac_drive.envs", "Step")}
    assert set(imported(at_module_level(tree))) == {("torch.nn", "")}


# The front door


_SLOW = ("torch", "matplotlib", "scipy", "stable_baselines3", "lightning_fabric")
_FILES = ("hub", "checkpoint", "export")
_WORDS = (["--help"], ["train", "--help"], ["watch", "--driver"], ["--version"])
PROCESSES: dict[str, list[tuple[str, set[str], tuple[str, ...]]]] = {
    "a command": [
        ("import nac_drive", set(), (*_SLOW, "cv2", "pygame", "h5py", "av")),
        ("from nac_drive.cli import main", set(), _SLOW),
        *((f"with suppress(SystemExit): main({words})", set(), _SLOW) for words in _WORDS),
    ],
    "an environment": [
        ("import nac_drive.envs", set(), ("torch", "nac_drive.policies", "nac_drive.data_collection")),
        ("nac_drive.make_env; gymnasium.make('nac_drive/CarRacing-v0').close()", set(), _SLOW),
        ("import nac_drive.training.config, nac_drive.training.ppo.env", set(), _SLOW),
    ],
    # hub -> checkpoint -> driver, and no way back
    "a worker that drives, then trains": [
        ("import nac_drive.policies.driver", set(), tuple(f"nac_drive.policies.{name}" for name in _FILES)),
        (
            "from nac_drive.policies import Driver",
            {"torch"},
            ("torch", "nac_drive.envs", "nac_drive.data_collection", "cv2", "Box2D"),
        ),
        *(
            (f"import nac_drive.{module}", set(), ("scipy", "scipy.stats", "matplotlib", "pandas"))
            for module in ("evaluation.evaluate", "data_collection.drivers", "training.trainer")
        ),
        *(  # lightning-fabric is imported when a run starts
            (f"import nac_drive.training.{module}", {"torch"}, ("torch", "lightning_fabric"))
            for module in ("train", "dagger", "ppo.run")
        ),
    ],
}
"""Process -> its steps, each with the modules that are loaded after it, among these that may not be or must be."""


@pytest.mark.parametrize("process", slow_but(PROCESSES.keys() - {"a worker that drives, then trains"}, PROCESSES))
def test_a_process_loads_no_more_than_it_needs(process):
    """Workers start as fast as their imports; help needs no torch."""
    script = ["import gymnasium, json, sys", "from contextlib import suppress", "seen = []"]
    for code, _, candidates in PROCESSES[process]:
        script += [code, f"seen.append([name for name in {candidates} if name in sys.modules])"]
    script.append("print(json.dumps(seen))")
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(script)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    seen = json.loads(result.stdout.splitlines()[-1])
    after = {code: set(names) for (code, *_), names in zip(PROCESSES[process], seen, strict=True)}
    assert after == {code: expected for code, expected, _ in PROCESSES[process]}


def test_a_driver_does_not_know_the_files_that_hold_it():
    """Not even a method imports them when it is called."""
    text = (REPOSITORY / "nac_drive" / "policies" / "driver.py").read_text()
    names = {
        name for module, name in imported(everywhere(ast.parse(text))) if module in ("nac_drive", "nac_drive.policies")
    }
    assert names == set()


@pytest.mark.parametrize("package", ["data_collection", "policies"])
def test_every_name_of_a_lazy_package_is_there(package):
    module = import_module(f"nac_drive.{package}")
    assert module.__all__
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_every_public_name_is_there_once():
    assert [name for name in nac_drive.__all__ if not hasattr(nac_drive, name)] == []
    assert len(set(nac_drive.__all__)) == len(nac_drive.__all__)
    assert {"NAC", "Driver", "make_env", "Demonstrations", "train", "evaluate"} <= set(nac_drive.__all__)
    assert set(nac_drive.__all__) <= set(dir(nac_drive))


# Report


def report(root: Path) -> None:
    """Print levels, circles and lines per package of the repository in `root`."""
    edges = graph(root)
    for number, row in enumerate(levels(edges)):
        print(f"level {number:2d}  {len(row):3d} modules  {' '.join(name.removeprefix('nac_drive.') for name in row)}")
    kinds = {"at module level": circles(edges)}
    kinds["with imports in functions and for types"] = circles(graph(root, everywhere))
    for kind, groups in kinds.items():
        print(f"circles {kind}: {len(groups)}")
        for group in groups:
            print(f"  {len(group)} modules: {' '.join(sorted(group))}")
    lines: dict[str, list[int]] = {}
    for name, path in files(root):
        if path.suffix == ".py":
            package = name.removeprefix("nac_drive.").split(".")[0]
            lines.setdefault(package, []).append(len(path.read_text().splitlines()))
    for package, counts in sorted(lines.items()):
        print(f"{package:16} {len(counts):3d} files {sum(counts):6d} lines, the longest {max(counts)}")


if __name__ == "__main__":
    report(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY)
