"""Imports inside the library go downward only. The table below is the design; this file holds it."""

import ast
import functools
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
    {"columns", "display", "global_arrays", "ray", "saving"},
    {"base_dataset", "record_values"},
    {"iter_dataset"},
    {"map_dataset"},
    {"dataset"},
    {"operations"},
    {"files", "performance"},
    {"constants", "elastic_streams", "multiprocessing", "orbax", "samplers", "sharding", "transforms"},
    {"checkpoint", "data_loader", "device", "elastic"},
    {"experimental", "prometheus", "running"},
    {"python"},
    {"jit"},
    {"trajectory"},
    {"testing"},
    {"view"},
    {"inspection"},
    {"cli", "tools"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# The same inside the engine: programs, then what pools share, then the pools, then who delivers their rows.
ENGINE_LAYERS = [
    {"figures", "round_trips", "slabs", "stall", "tally"},
    {"dma", "program"},
    {"block_size", "stream_program"},
    {"tasks"},
    {"pool"},
    {"actors", "processes"},
    {"delivery", "host_memory", "pulling", "report", "thread_trials", "transfer"},
    {"where_to_run"},
    {"drawn_delivery", "position_delivery", "stream_delivery"},
    {"observe"},
    {"opener"},
]
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
    package = [root.name, *file.relative_to(root).parts[:-1]]
    for node in parse(file.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            for alias in node.names:
                yield node.lineno, ".".join([*above, *filter(None, [node.module]), alias.name])


def loaded_later(file: Path) -> Iterator[str]:
    """Names of modules that a file loads by a string: `Lazy("...")` and `import_module("...")`."""
    for node in parse(file.read_text(encoding="utf-8")):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("Lazy", "import_module") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def import_graph(root: Path) -> dict[str, set[str]]:
    """For each module of the library the modules that it imports: at the top, in functions, for types, by a string.

    The front door is left out: it lists what is public, and no module imports from it (see `complaint`).
    """
    files = {}
    for file in root.rglob("*.py"):
        parts = [root.name, *file.relative_to(root).with_suffix("").parts]
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    del files[root.name]

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
    return None if target == layer else _compare(layer, target, RANK)


def _compare(layer: str, target: str, ranks: dict[str, int]) -> str | None:
    if ranks[target] < ranks[layer]:
        return None
    where = "is in the same row as" if ranks[target] == ranks[layer] else "stands above"
    return f"{target} {where} {layer}. Import from lower layers only, or move the code down."


def complain_inside_engine(layer: str, name: str, root: Path) -> str | None:
    """The same for an import of `name` from part `layer` of the engine."""
    target = (name.removeprefix(f"{root.name}.engine.") + ".").partition(".")[0]
    if not name.startswith(f"{root.name}.engine.") or target == layer:
        return None
    if target not in ENGINE_RANK:
        return f"{target} is no part of the engine. Place it in the table of tests/test_layers.py."
    return _compare(layer, target, ENGINE_RANK)


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
        part = path.parts[1].removesuffix(".py") if layer == "engine" and path.name != "__init__.py" else None
        if part is not None and part not in ENGINE_RANK:
            found.append(f"{path}: {part} has no layer. Place it in the table of tests/test_layers.py.")
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
        ("engine/__init__.py", "from bushel.engine.opener import open_stream"),
        ("engine/opener.py", "from bushel.engine import delivery\nfrom bushel.engine.actors.executor import Actors"),
        ("engine/actors/worker.py", "from bushel.engine.actors import cluster\nfrom bushel.engine.pool import wire"),
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
        ("engine/pool/jobs.py", "from bushel.engine import delivery", "delivery stands above pool."),
        ("engine/program.py", "from bushel.engine.pool.jobs import Job", "pool stands above program."),
        (
            "engine/actors/worker.py",
            "from bushel.engine.processes.zygote import kill",
            "processes is in the same row as actors.",
        ),
        ("engine/novelty/part.py", "", "engine/novelty/part.py: novelty has no layer."),
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


CYCLIC = [
    "from bushel.graph import batch",
    "from bushel.graph.batch import Batch",
    "from . import batch",
    "from .batch import Batch",
    "import bushel.graph.batch",
    "def f():\n    from bushel.graph.batch import Batch",
    "if TYPE_CHECKING:\n    from bushel.graph.batch import Batch",
    'batch = Lazy("bushel.graph.batch")',
    'def f():\n    importlib.import_module("bushel.graph.batch")',
]


@pytest.mark.parametrize("text", CYCLIC)
def test_the_guard_of_cycles_can_fail(tmp_path, text):
    files = {
        "__init__.py": "from bushel.graph import node",
        "graph/__init__.py": "",
        "graph/node.py": text,
        "graph/apply.py": "from bushel.graph import node",
        "graph/batch.py": "import numpy\nfrom bushel.graph.apply import Map",
    }
    root = tree(tmp_path, files)
    assert find_cycles(import_graph(root)) == [{"bushel.graph.node", "bushel.graph.apply", "bushel.graph.batch"}]
    (root / "graph" / "node.py").write_text("import numpy\nfrom bushel.base import errors")
    assert find_cycles(import_graph(root)) == []


def test_a_package_that_imports_its_modules_is_a_cycle_if_they_import_from_it(tmp_path):
    files = {"__init__.py": "", "engine/__init__.py": "from bushel.engine.tasks import Executor"}
    inner = {"engine/tasks.py": "", "engine/room.py": "from bushel.engine import Executor"}
    assert find_cycles(import_graph(tree(tmp_path, files | inner))) == []
    root = tree(tmp_path, {"engine/tasks.py": "from bushel.engine import Executor"})
    assert find_cycles(import_graph(root)) == [{"bushel.engine", "bushel.engine.tasks"}]
