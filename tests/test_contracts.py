"""Abstract or final: a class is an interface or a leaf, and no method with a body is replaced in a subclass.

A method marked `@overridable` (`base/state_names.py`) has a documented default and may be replaced, once. No other
method with a body may be replaced.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

LIBRARY = Path(__file__).parent.parent / "src" / "bushel"


@dataclasses.dataclass
class Class:
    """A class as its file says it: names of its bases, and its methods."""

    place: str
    name: str
    bases: list[str]
    methods: dict[str, ast.FunctionDef]


def classes(root: Path) -> Iterator[Class]:
    for file in sorted(root.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = {
                    item.name: item
                    for item in node.body
                    if isinstance(item, ast.FunctionDef) and "setter" not in marks(item)
                }
                bases = [name for base in node.bases if (name := last_name(base)) is not None]
                yield Class(file.relative_to(root).with_suffix("").as_posix(), node.name, bases, methods)


def last_name(node: ast.expr) -> str | None:
    """`Node` for `Node`, `node.Node` and `Node[T]`."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def marks(method: ast.FunctionDef) -> set[str | None]:
    return {last_name(decorator) for decorator in method.decorator_list}


def has_body(method: ast.FunctionDef) -> bool:
    """Whether a method does anything: not where it is abstract, an overload, or a docstring and `...` alone."""
    if marks(method) & {"abstractmethod", "overload"}:
        return False
    return not all(isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) for line in method.body)


def overridden(root: Path) -> list[str]:
    """`place: Class.method replaces Base.method` for each method with a body that a subclass replaces."""
    by_name: dict[str, list[Class]] = {}
    for one in classes(root):
        by_name.setdefault(one.name, []).append(one)
    found = []
    for one in (one for some in by_name.values() for one in some):
        for name, method in one.methods.items():
            if name.startswith("__") or not has_body(method):
                continue  # constructors, and what the language asks for
            for above in ancestors(one, by_name):
                replaced = above.methods.get(name)
                if replaced is not None and has_body(replaced):
                    if "overridable" not in marks(replaced):
                        found.append(f"{one.place}: {one.name}.{name} replaces {above.name}.{name}")
                    break
    return sorted(found)


def ancestors(one: Class, by_name: dict[str, list[Class]]) -> Iterator[Class]:
    """The classes above one, the nearest first. Of several classes of one name, that of the same file is meant."""
    for name in one.bases:
        candidates = [other for other in by_name.get(name, []) if other is not one]
        near = [other for other in candidates if other.place == one.place] or candidates
        if len(near) == 1:
            yield near[0]
            yield from ancestors(near[0], by_name)


def test_no_method_with_a_body_is_replaced():
    found = overridden(LIBRARY)
    lines = "\n".join(found)
    assert not found, f"Make the method abstract, or mark its default as @overridable:\n{lines}"


def library(folder: Path, text: str) -> Path:
    (folder / "module.py").write_text(text)
    return folder


BASE = "class Base(abc.ABC):\n    def size(self):\n        return 1\n"


def test_the_guard_can_fail(tmp_path):
    text = BASE + "class Leaf(Base):\n    def size(self):\n        return 2\n"
    assert overridden(library(tmp_path, text)) == ["module: Leaf.size replaces Base.size"]


def test_the_guard_sees_through_a_class_between(tmp_path):
    text = BASE + "class Middle(Base): ...\nclass Leaf(Middle):\n    def size(self):\n        return 2\n"
    assert overridden(library(tmp_path, text)) == ["module: Leaf.size replaces Base.size"]


def test_abstract_and_overridable_methods_may_be_implemented(tmp_path):
    for mark in ("abc.abstractmethod", "overridable", "state_names.overridable"):
        marked = BASE.replace("    def", f"    @{mark}\n    def")
        text = marked + "class Leaf(Base):\n    def size(self):\n        return 2\n"
        assert overridden(library(tmp_path, text)) == []


def test_an_implemented_overridable_method_is_final(tmp_path):
    marked = BASE.replace("    def", "    @overridable\n    def")
    text = marked + "class Leaf(Base):\n    def size(self):\n        return 2\n"
    text += "class Below(Leaf):\n    def size(self):\n        return 3\n"
    assert overridden(library(tmp_path, text)) == ["module: Below.size replaces Leaf.size"]
