"""A program that saves states, caches, columns and folders of many pipelines, or restores them under other names.

Before it restores them, it renames and moves all private classes of Bushel. `tests/state/test_state_names.py` runs it.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import bushel
from bushel import experimental as bx
from bushel._src.base.public import find_module

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS), str(TESTS / "state")]

TAKEN = 3  # elements before a state is saved, and after it is restored
_ELSEWHERE = ("view", "cli", "inspection", "__main__", "ray", "actors")
"""Parts of module names that no pipeline uses."""


def load_all() -> list[types.ModuleType]:
    """All modules of pipelines that can be imported here."""
    modules = [bushel]
    for found in pkgutil.walk_packages(bushel.__path__, "bushel."):
        if not set(found.name.split(".")) & set(_ELSEWHERE):
            try:
                modules.append(importlib.import_module(found.name))
            except ImportError:  # an extra that is not installed
                continue
    return modules


def list_classes(modules: list[types.ModuleType]) -> Iterator[type]:
    """The classes that these modules define."""
    for module in modules:
        for value in list(vars(module).values()):
            if isinstance(value, type) and find_module(value) == module.__name__:
                yield value


def rename_private_classes() -> int:
    """Gives all classes of ours that are not exported under their own name another name, in another module."""
    modules = load_all()
    exported = {
        id(getattr(module, name))
        for module in modules
        for name in getattr(module, "__all__", ())
        if getattr(getattr(module, name), "__name__", "") == name and not module.__name__.startswith("bushel._src.")
    }
    elsewhere = types.ModuleType("bushel.moved")
    elsewhere.__file__ = os.path.join(os.path.dirname(bushel.__file__), "moved.py")
    sys.modules["bushel.moved"] = elsewhere
    private = [kind for kind in list_classes(modules) if id(kind) not in exported]
    for number, kind in enumerate(private):
        kind.__name__ = kind.__qualname__ = f"Renamed{number}"
        kind.__module__ = "bushel.moved"
    return len(private)


def pipelines() -> dict[str, Any]:
    """Functions that make iterators, by name."""
    golden_streams = importlib.import_module("helpers.golden_streams")
    test_damaged_states = importlib.import_module("test_damaged_states")

    golden: dict[str, Any] = {
        name: (lambda build=build: iter(build()))
        for name, build in golden_streams.STREAMS.items()
        if name not in golden_streams.NEEDS
    }
    return golden | test_damaged_states.ITERATORS


def files(folder: Path) -> dict[str, Any]:
    """Pipelines over files, by name."""
    lines = str(folder / "lines.txt")
    rows = bushel.sources.RaggedDataSource(np.arange(30), np.arange(0, 31, 3))
    records = str(folder / "records")
    return {
        "lines": lambda: iter(bushel.MapDataset.source(bushel.sources.LineDataSource(lines)).map(len)),
        "records": lambda: iter(bx.TFRecordIterDataset(records).map(len)),
        "ragged": lambda: iter(bushel.MapDataset.source(rows)),
        "arrays": lambda: iter(bushel.MapDataset.source(bushel.sources.ArrayDataSource({"x": np.arange(30)})).batch(4)),
        "a source in a function": lambda: iter(bushel.MapDataset.range(9).map(look_up)),
    }


_TABLE = bushel.sources.ArrayDataSource(np.arange(100))


def look_up(number: int) -> Any:
    """Reads a source that the function holds."""
    return _TABLE[number]


def plain(element: Any) -> Any:
    """An element as JSON."""
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, (list, tuple)):
        return [plain(value) for value in element]
    if isinstance(element, (np.ndarray, np.generic)):
        return element.tolist()
    return repr(element)


def keep(folder: Path) -> list[str]:
    """Fills a cache, computes a column and saves elements; gives the names of all files that are there then."""
    ds = bushel.MapDataset.range(20).seed(1).shuffle().map(lambda x: x + 1)
    list(ds.to_iter_dataset().cache(folder / "cache"))
    ds.column(lambda x: x % 3, cache_dir=folder / "columns")
    ds.map(lambda x: {"x": x}).save(
        folder / "saved", format="parquet"
    )  # raises if another pipeline has saved the folder
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def first_states(folder: Path) -> None:
    """Saves states, and what comes after them."""
    from bushel._src.sources import record_writers

    writer = record_writers.TFRecordWriter(str(folder / "records"), compress=False)
    for number in range(12):
        writer.write(b"x" * number)
    writer.close()
    (folder / "lines.txt").write_text("\n".join("x" * number for number in range(1, 12)))
    found = {}
    for name, build in (pipelines() | files(folder)).items():
        it = build()
        before = [plain(next(it)) for _ in range(TAKEN)]
        state = it.get_state()
        after = [plain(element) for element, _ in zip(it, range(TAKEN), strict=False)]
        text = state.decode() if isinstance(state, bytes) else json.dumps(state)
        found[name] = {"bytes": isinstance(state, bytes), "state": text, "before": before, "after": after}
    (folder / "states.json").write_text(json.dumps({"states": found}))
    (folder / "kept").mkdir()
    names = keep(folder / "kept")
    (folder / "kept.json").write_text(json.dumps(names))


def later_states(folder: Path) -> None:
    """Restores these states, and prints the names of pipelines that refuse them or go on in another way."""
    renamed = rename_private_classes()
    saved = json.loads((folder / "states.json").read_text())["states"]
    wrong = {}
    for name, build in (pipelines() | files(folder)).items():
        it, entry = build(), saved[name]
        try:
            it.set_state(entry["state"].encode() if entry["bytes"] else json.loads(entry["state"]))
            after = [plain(element) for element, _ in zip(it, range(TAKEN), strict=False)]
            if after != entry["after"]:
                wrong[name] = f"gives {after} instead of {entry['after']}"
        except ValueError as error:
            wrong[name] = str(error)
    before, now = json.loads((folder / "kept.json").read_text()), keep(folder / "kept")
    if before != now:
        wrong["kept on disk"] = f"{sorted(set(before) ^ set(now))}"
    print(json.dumps({"renamed": renamed, "restored": len(saved), "wrong": wrong}))


if __name__ == "__main__":
    (first_states if sys.argv[1] == "first" else later_states)(Path(sys.argv[2]))
