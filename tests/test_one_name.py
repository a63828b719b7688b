"""One name, one thing: no public class or type alias is defined twice in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "nac_drive"


def defined(tree: ast.Module) -> set[str]:
    """The public classes and type aliases that a module defines; a type variable is none."""
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and "TypeVar" not in ast.unparse(node.value):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper():
                names.add(target.id)  # Count = Annotated[int, ...]
    return {name for name in names if not name.startswith("_")}


def test_no_public_class_or_alias_is_defined_twice():
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in defined(ast.parse(path.read_text())):
            places[name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 200
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert twice == {}


def test_classes_and_aliases_are_found():
    text = "class Car: ...\nclass _Bus: ...\nSize = tuple[int, int]\nRow: TypeAlias = int\nT = TypeVar()\nLIMIT = 3\n"
    assert defined(ast.parse(text)) == {"Car", "Size", "Row"}
