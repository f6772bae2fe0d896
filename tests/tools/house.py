"""Prints the figures of docs/design/figures.md: how large the code is, and how many files a reader must know.

    python tests/tools/house.py                   # all figures, as a table; takes about half a minute
    python tests/tools/house.py --only static     # only those that are read from files
    python tests/tools/house.py --files           # the names of the modules that the counted calls went through
    python tests/tools/house.py --save after      # writes the figures into that column of docs/design/figures.md

It works on the layout with `src/bushel/_src/` and on the one before it. The lists of modules and of tests are in
`list_modules.py`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import io
import re
import sys
import tempfile
import threading
import tokenize
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "src" / "bushel"
PAGE = ROOT / "docs" / "design" / "figures.md"
COLUMNS = ("before", "after")

WARM = 200
"""How many batches are read before calls are counted."""
COUNTED = 200
"""How many batches are read while calls are counted. A module counts if one of them went through it."""
WARM_ELEMENTS, ALL_ELEMENTS = 200_000, 600_000
"""With workers: the element from which calls are counted, and the number of elements."""


# Sizes.


def find_modules(library: Path = LIBRARY) -> dict[str, Path]:
    """The file of each module of the library, by its dotted name."""
    files = {}
    for file in sorted(library.rglob("*.py")):
        parts = (library.name, *file.relative_to(library).with_suffix("").parts)
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return files


def room_of(name: str) -> str:
    """The room of a module: `graph` for `bushel._src.graph.node` and for `bushel._src.graph.node`."""
    parts = [part for part in name.split(".")[1:] if part != "_src"]
    return parts[0] if parts else ""


def count_code_lines(text: str) -> int:
    """The number of lines with code: not those of comments, or of docstrings of modules, classes and functions."""
    lines: set[int] = set()
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in nothing:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def describe_sizes(library: Path = LIBRARY) -> dict[str, str]:
    """Lines, modules, and names that occur more than once."""
    modules = find_modules(library)
    lines = {name: count_code_lines(file.read_text(encoding="utf-8")) for name, file in modules.items()}
    core = sum(count for name, count in lines.items() if room_of(name) in ("engine", "graph"))
    importers = count_importers(modules)
    single = [name for name, file in modules.items() if importers[name] == 1 and file.name != "__init__.py"]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in modules.values()]
    classes = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    stems = Counter(file.stem for file in modules.values() if not file.stem.startswith("__"))
    kinds = count_docstrings(trees)
    public, documented = count_top_level(library)
    return {
        "code lines of src; modules": f"{sum(lines.values()):,}; {len(modules)}",
        "code lines of `engine` and `graph`": f"{core:,}",
        "modules over 500 code lines": str(sum(count > 500 for count in lines.values())),
        "modules with one importer; of these with 60 code lines at most": (
            f"{len(single)}; {sum(lines[name] <= 60 for name in single)}"
        ),
        "modules and packages at the top of `bushel` without an underscore; of these in the reference": (
            f"{public}; {documented}"
        ),
        "class names that occur more than once": str(sum(count > 1 for count in classes.values())),
        "module names that occur more than once": str(sum(count > 1 for count in stems.values())),
        "docstrings of functions: noun phrases; `Returns`, `Reads`; `Return`, `Read`": "; ".join(
            f"{kinds[kind]:,}" for kind in ("noun", "third person", "command")
        ),
    }


def count_importers(modules: dict[str, Path]) -> Counter[str]:
    """How many modules import each module: at the top, in functions, for types, or by its name as a string."""
    importers: Counter[str] = Counter()
    for name, file in modules.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        found = {_find_module(target, modules) for target in _imported_names(file, package)}
        importers.update(target for target in found if target is not None and target != name)
    return importers


def _imported_names(file: Path, package: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            for alias in node.names:
                yield ".".join([*above, *filter(None, [node.module]), alias.name])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("Lazy", "import_module") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def _find_module(name: str, modules: Iterable[str]) -> str | None:
    """The module that an import of `name` loads. `name` may be a class or a function inside of it."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def count_top_level(library: Path = LIBRARY) -> tuple[int, int]:
    """Modules and packages at the top whose name has no underscore; how many of these the reference describes."""
    names = [path.name.removesuffix(".py") for path in library.iterdir() if path.suffix == ".py" or path.is_dir()]
    names = [name for name in names if not name.startswith((".", "_"))]
    spec = importlib.util.spec_from_file_location("public_names", ROOT / "docs" / "_ext" / "public_names.py")
    assert spec is not None and spec.loader is not None
    listing = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = listing
    spec.loader.exec_module(listing)
    return len(names), sum(f"{library.name}.{name}" in listing.MODULES for name in names)


# Docstrings.

_VERBS = """
add announce answer append apply ask assert begin build call change check choose clear close collect come compare
complete compute convert copy count create cut decide declare decode decompress define delete describe divide do
download draw drop encode end enter exchange expand explain export fetch fill find finish flush follow forget free
give go halve handle have hash hold ignore import install iterate join keep kill learn leave let list load log look
make map mark mean measure merge mix move name normalise normalize note notice open pack parse pass permute pick
pickle place plan prepare print publish pull put raise read rebuild receive record refuse release remember remove
rename render repeat replace reserve resize restore return rotate run save say search see send serve set show shuffle
skip sleep split stack start step stop store submit swallow take tell throw time translate try turn undo unmap unpack
update use verify visit wait wake warn watch wrap write yield
"""
VERBS = frozenset(_VERBS.split())
NOUNS_TOO = {
    "batch",
    "count",
    "draw",
    "end",
    "hash",
    "list",
    "map",
    "mark",
    "name",
    "note",
    "pickle",
    "place",
    "plan",
} | {*("record", "set", "shuffle", "split", "stack", "start", "step", "time")}
"""Verbs that may also be nouns: what follows decides."""
OBJECTS = re.compile(
    r"(?:an?|the|this|these|all|each|every|what|how|which|whether|its|their|one|up|with|again)\b|[`\d]"
)


def kind_of_docstring(text: str) -> str:
    """How a docstring begins: "noun" ("The rows"), "third person" ("Returns rows") or "command" ("Return rows")."""
    first, _, rest = text.strip().partition(" ")
    word = first.strip("`.,:;").lower()
    stems = [word.removesuffix("s"), word.removesuffix("es"), re.sub(r"ies$", "y", word)]
    stem = next((stem for stem in stems if stem in VERBS), None) if word.endswith("s") else None
    kind = "third person" if stem else "command" if word in VERBS else "noun"
    if (stem or word) in NOUNS_TOO and not OBJECTS.match(rest):
        return "noun"
    return kind


def count_docstrings(trees: Iterable[ast.Module]) -> Counter[str]:
    """How many docstrings of functions and methods begin in each of the three ways."""
    kinds: Counter[str] = Counter()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                kinds[kind_of_docstring(text)] += 1
    return kinds


# Words.


def count_words(root: Path = ROOT) -> tuple[int, int]:
    """Words of the documents, and of the benchmarks' documents. Golden data of tests have documents of their own."""
    documents = benchmarks = 0
    for file in root.rglob("*.md"):
        path = file.relative_to(root)
        if any(part.startswith((".", "_")) and part != ".github" for part in path.parts):
            continue
        if path.parts[:2] in (("docs", "reference"), ("tests", "trajectory")):
            continue
        words = len(file.read_text(encoding="utf-8").split())
        if path.parts[0] == "benchmarks":
            benchmarks += words
        else:
            documents += words
    return documents, benchmarks


# Calls: through which modules of the library a batch goes.


class Recorder:
    """Notes the modules of the library that are called, as a function for `sys.setprofile`."""

    def __init__(self) -> None:
        import bushel

        self._above = str(Path(bushel.__file__).parent) + "/"
        self.files: set[str] = set()

    def __call__(self, frame: Any, event: str, _: object) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            if name.startswith(self._above):
                self.files.add(name.removeprefix(self._above).removeprefix("_src/"))


def record_next(batches: Iterator[Any], warm: int = WARM, counted: int = COUNTED) -> set[str]:
    """The modules that `next` calls in this thread, after `warm` batches."""
    for _ in range(warm):
        next(batches)
    recorder = Recorder()
    sys.setprofile(recorder)
    try:
        for _ in range(counted):
            next(batches)
    finally:
        sys.setprofile(None)
    return recorder.files


def add_one(x: int) -> int:
    """The user's function in the pipelines of `record_here`."""
    return x + 1


def record_here() -> set[str]:
    """The modules of a warm `next` in the consumer: a source in memory, `map`, `batch`."""
    import bushel

    ds = bushel.MapDataset.source(list(range(32 * (WARM + COUNTED)))).map(add_one).batch(32)
    return record_next(iter(ds.to_iter_dataset()))


def record_with_workers() -> tuple[set[str], set[str], set[str]]:
    """The modules of the same pipeline with two workers: in the consumer, in the pool's thread, and in the workers."""
    import bushel

    with tempfile.TemporaryDirectory() as folder:
        begin, names = Path(folder, "begin"), Path(folder, "names")
        names.touch()
        ds = bushel.MapDataset.source(list(range(ALL_ELEMENTS))).map(add_one).batch(32).to_iter_dataset()
        options = bushel.MultiprocessingOptions(num_workers=2)
        ds = ds.mp_prefetch(options, worker_init_fn=lambda *_: sys.setprofile(WorkerRecorder(begin, names)))
        pool = Recorder()
        threading.setprofile(pool)
        with iter(ds) as batches:
            threading.setprofile(None)
            for _ in range(WARM_ELEMENTS // 32):
                next(batches)
            begin.touch()
            pool.files.clear()
            here = record_next(batches, warm=0, counted=(ALL_ELEMENTS - WARM_ELEMENTS) // 32)
            thread = set(pool.files)
        return here, thread, set(names.read_text().split())


class WorkerRecorder(Recorder):
    """The recorder of a worker. It begins when the file `begin` exists, and writes each new name into a file at once.

    A worker may end at any time, so it cannot write the names at its end.
    """

    def __init__(self, begin: Path, names: Path) -> None:
        super().__init__()
        self._begin, self._names = begin, names
        self._calls, self._is_warm = 0, False

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        self._calls += 1
        if not self._is_warm and self._calls % 1000 == 0:  # to look for a file takes longer than most calls
            self._is_warm = self._begin.exists()
        if self._is_warm:
            before = set(self.files)
            super().__call__(frame, event, argument)
            if new := self.files - before:
                with self._names.open("a") as file:
                    file.write("".join(f"{name}\n" for name in new))


def write_robot_data(folder: str) -> None:
    """A data set of robot episodes with one camera."""
    from bushel.trajectory import write_rlds

    rng = np.random.default_rng(0)

    def make_episode(length: int) -> dict[str, Any]:
        image = rng.integers(0, 256, (length, 32, 32, 3), np.uint8)
        state = rng.normal(size=(length, 7)).astype(np.float32)
        return {"steps": {"observation": {"image": image, "state": state}, "action": state}}

    write_rlds({"train": [make_episode(30 + i) for i in range(10)]}, name="arm", data_dir=folder)


def record_robots(images: bool) -> set[str]:
    """The modules of a warm batch of robot samples: windows of numbers, and images that are decoded and resized."""
    from bushel.trajectory import MixtureConfig, get_dataloader

    with tempfile.TemporaryDirectory() as folder:
        write_robot_data(folder)
        arm = {
            "name": "arm",
            "data_dir": folder,
            "image_obs_keys": {"primary": "image"} if images else {},
            "proprio_obs_keys": {"arm": "state"},
            "train_split": "train",
            "cache_dir": f"{folder}/cache",
        }
        config = {
            "datasets": [arm],
            "traj_transform_kwargs": {"window_size": 2, "action_horizon": 4},
            "frame_transform_kwargs": {"resize_size": [16, 16]} if images else {},
            "batch_size": 8,
            "seed": 5,
        }
        with iter(get_dataloader(MixtureConfig.from_dict(config))) as batches:
            return record_next(batches, warm=20, counted=20)


def record_viewer() -> set[str]:
    """The modules through which the viewer answers a request for one element, when it has answered the same before."""
    import bushel

    images = np.zeros((100, 8, 8, 3), np.uint8)
    ds = bushel.MapDataset.source([{"image": image, "label": 1} for image in images]).shuffle(seed=0)
    recorder = Recorder()
    threading.setprofile(recorder)
    try:
        with bushel.view(ds) as page:
            address = page.url.split("/#")[0]
            for index in range(4):
                if index == 3:
                    recorder.files.clear()
                request = urllib.request.Request(f"{address}/api/elements/read?index={index}")
                request.add_header("X-Bushel-Token", page.token)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
            return set(recorder.files)
    finally:
        threading.setprofile(None)


def describe_calls(show: Callable[[str, set[str]], None]) -> dict[str, str]:
    """How many modules a batch goes through, in the forms that users meet."""
    here = record_here()
    consumer, thread, worker = record_with_workers()
    numbers, images, viewer = record_robots(images=False), record_robots(images=True), record_viewer()
    for name, files in (
        *(("in-process", here), ("consumer of 2 workers", consumer), ("pool's thread", thread), ("worker", worker)),
        *(("robots", numbers), ("robots with images", images), ("viewer", viewer)),
    ):
        show(name, files)
    return {
        "modules of a warm `next()`, in-process": str(len(here)),
        "modules of a warm `next()`, 2 workers: consumer; pool's thread; worker": (
            f"{len(consumer)}; {len(thread)}; {len(worker)}"
        ),
        "modules of a warm robot batch: numbers; with images": f"{len(numbers)}; {len(images)}",
        "modules of one element on the viewer's page": str(len(viewer)),
    }


# The page.


def replace_column(text: str, column: str, figures: dict[str, str]) -> str:
    """The page with these figures in one of its columns. A figure without a row on the page is an error."""
    lines, found = text.split("\n"), set()
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] in figures:
            found.add(cells[0])
            cells[1 + COLUMNS.index(column)] = figures[cells[0]]
            lines[number] = f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")
    if missing := sorted(figures.keys() - found):
        raise ValueError(f"The table has no row for {missing[0]!r}. Add one to {PAGE.relative_to(ROOT)}.")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="python tests/tools/house.py", description="Figures of docs/design/figures.md."
    )
    parser.add_argument("--only", choices=["static", "calls"], help="figures from files, or figures from calls")
    parser.add_argument("--files", action="store_true", help="print the modules that the counted calls went through")
    parser.add_argument("--save", choices=COLUMNS, help="write the figures into this column of docs/design/figures.md")
    options = parser.parse_args(arguments)

    def show(name: str, files: set[str]) -> None:
        if options.files:
            sys.stdout.write(f"{name}: {len(files)}\n" + "".join(f"  {file}\n" for file in sorted(files)))

    figures: dict[str, str] = {}
    if options.only != "calls":
        documents, benchmarks = count_words()
        figures |= describe_sizes() | {"words of documents; of benchmarks": f"{documents:,}; {benchmarks:,}"}
    if options.only != "static":
        figures |= describe_calls(show)
    if options.save:
        PAGE.write_text(replace_column(PAGE.read_text(encoding="utf-8"), options.save, figures), encoding="utf-8")
    rows = [f"| {name} | {value} |\n" for name, value in figures.items()]
    sys.stdout.write("| figure | value |\n| --- | --- |\n" + "".join(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
