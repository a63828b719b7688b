"""One name, one thing: no public class or type alias is defined twice in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "nac_drive"


def defined(tree: ast.Module) -> set[str]:
    """The public classes and type aliases that a module defines."""
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and _is_of_a_class(target.id):  # Count = Annotated[...]
            names.add(target.id)
    return {name for name in names if not name.startswith("_")}


def _is_of_a_class(name: str) -> bool:
    return name[0].isupper() and not (len(name) > 1 and name.isupper())


IN_EXPERIMENTS = {"Column", "Conditions", "Entry", "Progress", "Report", "Size", "Stress", "Task"}
"""Names of the several machines for experiments, which become one."""


def test_no_public_class_or_alias_is_defined_twice():
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in defined(ast.parse(path.read_text())):
            places[name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 200
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert twice.keys() <= IN_EXPERIMENTS, twice


def test_classes_and_aliases_are_found():
    text = "class A: ...\nclass _B: ...\nC = tuple[int, ...]\nD: TypeAlias = int\nE = TypeVar('E')\nLIMIT = 3\nf = 1\n"
    assert defined(ast.parse(text)) == {"A", "C", "D", "E"}
