"""Imports inside the private code go downward only. docs/design/layers.md has the tables; this file holds them."""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.design_tables import ENGINE, ROOMS, read_layers

LIBRARY = Path(__file__).parent.parent / "src" / "bushel" / "_src"

# From low to high. A module imports from lower rows and from inside its own room, never from a neighbour.
LAYERS = read_layers(ROOMS)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

ENGINE_LAYERS = read_layers(ENGINE)
ENGINE_RANK = {name: rank for rank, names in enumerate(ENGINE_LAYERS) for name in names}

# Narrower than its row allows: jit runs inside jax.jit and must not reach for the host's pipeline. Sources: decoders.
JIT_LIBRARY = {"base", "index", "sources", "state"}
JIT_OUTSIDE = {"jax", "numpy"}


@functools.cache
def parse(text: str) -> list[ast.AST]:
    """The imports and calls of a module. Several guards read every file, and parsing takes the most time."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def imported(file: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a file imports, at any depth of nesting."""
    package = [*_names(root), *file.relative_to(root).parts[:-1]]
    for node in parse(file.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            for alias in node.names:
                yield node.lineno, ".".join([*above, *filter(None, [node.module]), alias.name])


def _names(root: Path) -> tuple[str, str]:
    """The dotted name of the folder of private code, in parts: `bushel` and `_src`."""
    return root.parent.name, root.name


def loaded_later(file: Path) -> Iterator[str]:
    """Names of modules that a file loads by a string: `Lazy("...")` and `import_module("...")`."""
    for node in parse(file.read_text(encoding="utf-8")):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("Lazy", "import_module") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def import_graph(root: Path) -> dict[str, set[str]]:
    """For each private module the modules that it imports: at the top, in functions, for types, by a string.

    The doors are left out: they list what is public, and no module imports from them (see `complaint`).
    """
    files = {}
    for file in root.rglob("*.py"):
        parts = [*_names(root), *file.relative_to(root).with_suffix("").parts]
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    del files[".".join(_names(root))]

    def module_of(name: str) -> str | None:
        """The module that `import name` or `from ... import name` loads: `name` may be something inside of it."""
        while name and name not in files:
            name = name.rpartition(".")[0]
        return name or None

    graph = {}
    for module, file in files.items():
        names = [*(name for _, name in imported(file, root)), *loaded_later(file)]
        graph[module] = {target for target in map(module_of, names) if target is not None and target != module}
    return graph


def find_cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import each other, directly or through others: Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    cycles = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            begin = stack.index(module)
            if len(stack) - begin > 1:
                cycles.append(set(stack[begin:]))
            del stack[begin:]

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return cycles


def complaint(layer: str, name: str, root: Path) -> str | None:
    """What is wrong with an import of `name` from `layer`; None if all is well."""
    head, *rest = name.split(".")
    library, private = _names(root)
    if head != library:
        if layer == "jit" and head not in JIT_OUTSIDE and head not in sys.stdlib_module_names:
            return f"jit may import only {', '.join(sorted(JIT_OUTSIDE))} from outside the library."
        return None
    if rest[:1] != [private]:
        return f"{library} is a door and stands above everything. Import from the module that defines the name."
    target = rest[1] if len(rest) > 1 else ""
    if target not in RANK:
        return f"{target or private} has no layer. Place it in the table of docs/design/layers.md."
    if layer == "jit" and target not in {"jit", *JIT_LIBRARY}:
        return f"jit may import only {', '.join(sorted(JIT_LIBRARY))} from {library}.{private}."
    return None if target == layer else _compare(layer, target, RANK)


def _compare(layer: str, target: str, ranks: dict[str, int]) -> str | None:
    if ranks[target] < ranks[layer]:
        return None
    where = "is in the same row as" if ranks[target] == ranks[layer] else "stands above"
    return f"{target} {where} {layer}. Import from lower layers only, or move the code down."


def complain_inside_engine(layer: str, name: str, root: Path) -> str | None:
    """The same for an import of `name` from part `layer` of the engine."""
    engine = ".".join([*_names(root), "engine", ""])
    target = (name.removeprefix(engine) + ".").partition(".")[0]
    if not name.startswith(engine) or target == layer:
        return None
    if target not in ENGINE_RANK:
        return f"{target} is no part of the engine. Place it in the table of docs/design/layers.md."
    return _compare(layer, target, ENGINE_RANK)


def violations(root: Path) -> list[str]:
    """One sentence for each import that does not go downward, and for each module without a layer."""
    found = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if path == Path("__init__.py"):
            continue  # it holds a docstring alone
        layer = path.parts[0].removesuffix(".py")
        if layer not in RANK:
            found.append(f"{path}: {layer} has no layer. Place it in the table of docs/design/layers.md.")
            continue
        part = path.parts[1].removesuffix(".py") if layer == "engine" and path.name != "__init__.py" else None
        if part is not None and part not in ENGINE_RANK:
            found.append(f"{path}: {part} has no layer. Place it in the table of docs/design/layers.md.")
            continue
        for line, name in imported(file, root):
            problem = complaint(layer, name, root)
            if problem is None and part is not None:
                problem = complain_inside_engine(part, name, root)
            if problem is not None:
                found.append(f"{path}:{line}: {problem}")
    return list(dict.fromkeys(found))  # one sentence, however many names a line imports


def test_imports_go_downward_only():
    assert any(LIBRARY.rglob("*.py"))
    found = violations(LIBRARY)
    assert not found, "\n" + "\n".join(found)


def test_no_module_imports_itself_through_others():
    found = find_cycles(import_graph(LIBRARY))
    assert not found, f"Import cycles: {[sorted(cycle) for cycle in found]}. Move what both modules need into a third."


# The guards themselves: what they let pass, and that they can fail.


def tree(folder: Path, files: dict[str, str]) -> Path:
    root = folder / "bushel" / "_src"
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("__init__.py", "from bushel._src.cli import parser\nfrom bushel._src import datasets"),
        ("graph/node.py", "import numpy, jax\nimport bushel._src.base.errors\nfrom bushel._src.index import shuffle"),
        ("graph/node.py", "from . import batch\nfrom .batch import Batch\nfrom ..base import errors"),
        ("graph/__init__.py", "from . import node\nfrom .. import base\nfrom ..index.shuffle import permute"),
        ("graph/deep/node.py", "from ..batch import Batch\nfrom ... import index"),
        ("loaders/samplers.py", "from bushel._src import datasets\nfrom .elastic import Elastic"),
        ("jit/loader.py", "import math\nimport jax.numpy as jnp\nfrom bushel._src import base, index, state"),
        ("cli/run.py", "from bushel._src import testing, trajectory, jit"),
        ("engine/__init__.py", "from bushel._src.engine.opener import open_stream"),
        (
            "engine/opener.py",
            "from bushel._src.engine import delivery\nfrom bushel._src.engine.actors.executor import Actors",
        ),
        (
            "engine/actors/worker.py",
            "from bushel._src.engine.actors import cluster\nfrom bushel._src.engine.pool import wire",
        ),
    ],
)
def test_downward_imports_pass(tmp_path, path, text):
    assert violations(tree(tmp_path, {path: text})) == []


NESTED = "def f():\n    from bushel._src.engine import run"
TYPES = (
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bushel._src.datasets.map_dataset import MapDataset"
)


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("base/trees.py", "import bushel._src.graph", "base/trees.py:1: graph stands above base."),
        ("base/trees.py", "import os\nfrom bushel._src.graph import node", "base/trees.py:2: graph stands above"),
        ("base/trees.py", "from bushel._src import base, graph", "graph stands above base."),
        ("base/trees.py", "from ..graph.node import Node", "graph stands above base."),
        ("base/trees.py", "from .. import graph", "graph stands above base."),
        ("base/trees.py", NESTED, "base/trees.py:2: engine stands above base."),
        ("base/trees.py", TYPES, "base/trees.py:3: datasets stands above base."),
        ("base/deep/er.py", "from ...index import shuffle", "index stands above base."),
        ("sources/__init__.py", "from ..graph import node", "graph stands above sources."),
        (
            "loaders/samplers.py",
            "from bushel._src.device.pmap import for_pmap",
            "device is in the same row as loaders.",
        ),
        ("loaders/elastic.py", "from .. import device", "device is in the same row as loaders."),
        (
            "jit/loader.py",
            "from bushel._src import datasets",
            "jit may import only base, index, sources, state from bushel._src.",
        ),
        ("jit/loader.py", "import flax", "jit may import only jax, numpy from outside the library."),
        ("engine/pool/jobs.py", "from bushel._src.engine import delivery", "delivery stands above pool."),
        ("engine/program.py", "from bushel._src.engine.pool.jobs import Job", "pool stands above program."),
        (
            "engine/actors/worker.py",
            "from bushel._src.engine.processes.zygote import kill",
            "processes is in the same row as actors.",
        ),
        ("engine/novelty/part.py", "", "engine/novelty/part.py: novelty has no layer."),
        ("datasets/map.py", "import bushel", "bushel is a door and stands above everything."),
        ("datasets/map.py", "from bushel import MapDataset", "Import from the module that defines the name."),
        ("datasets/map.py", "from bushel.sources import open", "Import from the module that defines the name."),
        ("datasets/map.py", "from .. import MapDataset", "MapDataset has no layer."),
    ],
)
def test_the_guard_can_fail(tmp_path, path, text, sentence):
    (found,) = violations(tree(tmp_path, {path: text}))
    assert sentence in found


@pytest.mark.parametrize("path", ["novelty.py", "novelty/part.py"])
def test_a_new_module_must_be_placed(tmp_path, path):
    user, module = violations(tree(tmp_path, {path: "", "datasets/map.py": "from bushel._src.novelty import New"}))
    assert user == "datasets/map.py:1: novelty has no layer. Place it in the table of docs/design/layers.md."
    assert module == f"{path}: novelty has no layer. Place it in the table of docs/design/layers.md."


CYCLIC = [
    "from bushel._src.graph import batch",
    "from bushel._src.graph.batch import Batch",
    "from . import batch",
    "from .batch import Batch",
    "import bushel._src.graph.batch",
    "def f():\n    from bushel._src.graph.batch import Batch",
    "if TYPE_CHECKING:\n    from bushel._src.graph.batch import Batch",
    'batch = Lazy("bushel._src.graph.batch")',
    'def f():\n    importlib.import_module("bushel._src.graph.batch")',
]


@pytest.mark.parametrize("text", CYCLIC)
def test_the_guard_of_cycles_can_fail(tmp_path, text):
    files = {
        "__init__.py": "from bushel._src.graph import node",
        "graph/__init__.py": "",
        "graph/node.py": text,
        "graph/apply.py": "from bushel._src.graph import node",
        "graph/batch.py": "import numpy\nfrom bushel._src.graph.apply import Map",
    }
    root = tree(tmp_path, files)
    circle = {"bushel._src.graph.node", "bushel._src.graph.apply", "bushel._src.graph.batch"}
    assert find_cycles(import_graph(root)) == [circle]
    (root / "graph" / "node.py").write_text("import numpy\nfrom bushel._src.base import errors")
    assert find_cycles(import_graph(root)) == []


def test_a_package_that_imports_its_modules_is_a_cycle_if_they_import_from_it(tmp_path):
    files = {"__init__.py": "", "engine/__init__.py": "from bushel._src.engine.tasks import Executor"}
    inner = {"engine/tasks.py": "", "engine/room.py": "from bushel._src.engine import Executor"}
    assert find_cycles(import_graph(tree(tmp_path, files | inner))) == []
    root = tree(tmp_path, {"engine/tasks.py": "from bushel._src.engine import Executor"})
    assert find_cycles(import_graph(root)) == [{"bushel._src.engine", "bushel._src.engine.tasks"}]
