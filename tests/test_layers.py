"""Imports inside the library go downward only. The table below is the design; this file holds it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parent.parent / "src" / "bushel"

# From low to high. A module imports from lower rows and from inside its own package, never from a neighbour.
LAYERS = [
    {"base"},
    {"index"},
    {"sources"},
    {"graph"},
    {"state"},
    {"engine"},
    {"iterator"},
    {"choosing", "columns", "saving"},
    {"dataset"},
    {"operations"},
    {"files", "performance"},
    {"constants", "elastic_streams", "multiprocessing", "orbax", "samplers", "sharding", "transforms"},
    {"checkpoint", "data_loader", "device", "elastic"},
    {"experimental", "prometheus"},
    {"python"},
    {"jit"},
    {"trajectory"},
    {"testing"},
    {"cli", "tools"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# Narrower than its row allows: jit runs inside jax.jit and must not reach for the host's pipeline. Sources: decoders.
JIT_LIBRARY = {"base", "index", "sources", "state"}
JIT_OUTSIDE = {"jax", "numpy"}


def imported(file: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a file imports, at any depth of nesting."""
    package = [root.name, *file.relative_to(root).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            for alias in node.names:
                yield node.lineno, ".".join([*above, *filter(None, [node.module]), alias.name])


def complaint(layer: str, name: str, root: Path) -> str | None:
    """What is wrong with an import of `name` from `layer`; None if all is well."""
    head, *rest = name.split(".")
    if head != root.name:
        if layer == "jit" and head not in JIT_OUTSIDE and head not in sys.stdlib_module_names:
            return f"jit may import only {', '.join(sorted(JIT_OUTSIDE))} from outside the library."
        return None
    target = rest[0] if rest else ""
    if target not in RANK:
        if target and ((root / target).is_dir() or (root / f"{target}.py").is_file()):
            return f"{target} has no layer. Place it in the table of tests/test_layers.py."
        return f"{root.name} itself stands above everything. Import from the module that defines the name."
    if layer == "jit" and target not in {"jit", *JIT_LIBRARY}:
        return f"jit may import only {', '.join(sorted(JIT_LIBRARY))} from {root.name}."
    if target == layer or RANK[target] < RANK[layer]:
        return None
    where = "is in the same row as" if RANK[target] == RANK[layer] else "stands above"
    return f"{target} {where} {layer}. Import from lower layers only, or move the code down."


def violations(root: Path) -> list[str]:
    """One sentence for each import that does not go downward, and for each module without a layer."""
    found = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if path == Path("__init__.py"):
            continue  # the front door lists what is public, from any layer
        layer = path.parts[0].removesuffix(".py")
        if layer not in RANK:
            found.append(f"{path}: {layer} has no layer. Place it in the table of tests/test_layers.py.")
            continue
        for line, name in imported(file, root):
            if problem := complaint(layer, name, root):
                found.append(f"{path}:{line}: {problem}")
    return list(dict.fromkeys(found))  # one sentence, however many names a line imports


def test_imports_go_downward_only():
    assert any(LIBRARY.rglob("*.py"))
    found = violations(LIBRARY)
    assert not found, "\n" + "\n".join(found)


# The guard itself: what it lets pass, and that it can fail.


def tree(folder: Path, files: dict[str, str]) -> Path:
    root = folder / "bushel"
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("__init__.py", "from bushel.tools import cli\nfrom bushel import dataset"),
        ("graph/node.py", "import numpy, jax\nimport bushel.base.errors\nfrom bushel.index import shuffle"),
        ("graph/node.py", "from . import batch\nfrom .batch import Batch\nfrom ..base import errors"),
        ("graph/__init__.py", "from . import node\nfrom .. import base\nfrom ..index.shuffle import permute"),
        ("graph/deep/node.py", "from ..batch import Batch\nfrom ... import index"),
        ("samplers.py", "from bushel import dataset\nfrom .columns import Column"),
        ("jit/loader.py", "import math\nimport jax.numpy as jnp\nfrom bushel import base, index, state"),
        ("tools/cli.py", "from bushel import testing, trajectory, jit"),
    ],
)
def test_downward_imports_pass(tmp_path, path, text):
    assert violations(tree(tmp_path, {path: text})) == []


NESTED = "def f():\n    from bushel.engine import run"
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bushel.dataset import MapDataset"


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("base/trees.py", "import bushel.graph", "base/trees.py:1: graph stands above base."),
        ("base/trees.py", "import os\nfrom bushel.graph import node", "base/trees.py:2: graph stands above"),
        ("base/trees.py", "from bushel import base, graph", "graph stands above base."),
        ("base/trees.py", "from ..graph.node import Node", "graph stands above base."),
        ("base/trees.py", "from .. import graph", "graph stands above base."),
        ("base/trees.py", NESTED, "base/trees.py:2: engine stands above base."),
        ("base/trees.py", TYPES, "base/trees.py:3: dataset stands above base."),
        ("base/deep/er.py", "from ...index import shuffle", "index stands above base."),
        ("sources/__init__.py", "from ..graph import node", "graph stands above sources."),
        (
            "samplers.py",
            "from bushel.sharding import ShardOptions",
            "sharding is in the same row as samplers.",
        ),
        ("elastic.py", "from . import device", "device is in the same row as elastic."),
        (
            "jit/loader.py",
            "from bushel import dataset",
            "jit may import only base, index, sources, state from bushel.",
        ),
        ("jit/loader.py", "import flax", "jit may import only jax, numpy from outside the library."),
        ("dataset.py", "import bushel", "bushel itself stands above everything."),
        ("dataset.py", "from bushel import MapDataset", "Import from the module that defines the name."),
        ("dataset.py", "from . import MapDataset", "Import from the module that defines the name."),
    ],
)
def test_the_guard_can_fail(tmp_path, path, text, sentence):
    (found,) = violations(tree(tmp_path, {path: text}))
    assert sentence in found


@pytest.mark.parametrize("path", ["novelty.py", "novelty/part.py"])
def test_a_new_module_must_be_placed(tmp_path, path):
    user, module = violations(tree(tmp_path, {path: "", "dataset.py": "from bushel.novelty import New"}))
    assert user == "dataset.py:1: novelty has no layer. Place it in the table of tests/test_layers.py."
    assert module == f"{path}: novelty has no layer. Place it in the table of tests/test_layers.py."
