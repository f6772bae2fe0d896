"""The panel "Elements": any element after any step, whole or one row of a batch, with the names of its classes.

The names come from the features of a data set. A function of the user's may number the classes anew. So the labels
behind a function get names only if they equal those of the records that the element is made of.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import trees
from bushel._src.display.describe import describe_element
from bushel._src.display.kinds import find_batch_size, find_entry, find_image_axes, take_row
from bushel._src.graph.node import Node
from bushel._src.graph.source_nodes import SourceNode
from bushel._src.sources import file_access
from bushel._src.sources.parquet import ParquetDataSource, open_parquet
from bushel._src.sources.plain_files import FileDataSource
from bushel._src.sources.tfds import TFDSDataSource
from bushel._src.trajectory.pixels import decode_image
from bushel._src.view.session import BadQuery, ElementReading, Query, Routes, Session

Names = dict[str, list[str]]
"""The names of classes by the path of the entry that holds their numbers."""

COMPARED = 16
"""How many labels of a batch are compared with their records."""


def list_names(source: Any) -> Names:
    """Return the names that a source knows: of `ClassLabel` features, of TFDS's files, of `classes` of an image folder.

    >>> class Pets:
    ...     classes = ["cat", "dog"]
    >>> list_names(Pets())
    {'label': ['cat', 'dog'], '1': ['cat', 'dog']}
    """
    if isinstance(source, TFDSDataSource):
        return source.class_names()
    if isinstance(source, ParquetDataSource):
        return _read_parquet(source)
    found = {}
    features = getattr(source, "features", None)
    for path, feature in _walk(features, "") if isinstance(features, Mapping) else ():
        names: Any = getattr(feature, "names", None)
        if type(feature).__name__ == "ClassLabel" and _is_names(names):
            found[path] = list(names)
    classes: Any = getattr(source, "classes", None)  # torchvision's data sets
    if not found and _is_names(classes):
        found = {"label": list(classes), "1": list(classes)}
    return found


def _is_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(name, str) for name in value)


def _walk(features: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the features of a `datasets.Features` that hold no others, by path.

    A list of a feature counts as the feature.
    """
    if isinstance(features, Mapping):
        for name, feature in features.items():
            yield from _walk(feature, f"{path}/{name}" if path else str(name))
    elif isinstance(features, list) and len(features) == 1:
        yield from _walk(features[0], path)
    elif (inner := getattr(features, "feature", None)) is not None:
        yield from _walk(inner, path)
    else:
        yield path, features


def _read_parquet(source: ParquetDataSource) -> Names:
    """Return the names in the metadata that the package `datasets` writes into Parquet files."""
    file = open_parquet(file_access.open_file(source._paths[0], source._options), {})
    text = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(text).get("info", {}).get("features", {})
    found = {}
    for name, feature in features.items():
        if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and _is_names(feature.get("names")):
            found[name] = list(feature["names"])
    return found


class ClassNames:
    """The names of the classes of a session. Nothing is read before an element is shown."""

    def __init__(self, session: Session):
        self._session = session
        self._lock = threading.Lock()
        self._known: dict[int, Names] = {}

    def find(self, number: int, index: int, element: Any) -> Names:
        """Return the names for the labels of the element at `index` after a step, by the path of the label."""
        node = self._session.step(number).node
        leaves = [one for one in _ancestors(node) if isinstance(one, SourceNode)]
        if len(leaves) != 1:  # sources that are mixed may number their classes differently
            tables = [self._list(leaf) for leaf in leaves]
            if not tables or any(table != tables[0] for table in tables):
                return {}
        names = self._list(leaves[0]) if leaves else {}
        there = {path: values for path in names if (values := _find_labels(element, path)) is not None}
        if there and any(_calls_user(one) for one in _ancestors(node)):
            there = {path: there[path] for path in self._list_unchanged(number, index, there, leaves)}
        return {path: names[path] for path in there if there[path].max(initial=0) < len(names[path])}

    def _list(self, leaf: SourceNode) -> Names:
        with self._lock:
            if id(leaf) not in self._known:
                self._known[id(leaf)] = {}
                with contextlib.suppress(Exception):  # a user's source may raise anything, and names are no must
                    self._known[id(leaf)] = list_names(leaf.source)
            return self._known[id(leaf)]

    def _list_unchanged(
        self, number: int, index: int, there: Mapping[str, np.ndarray], leaves: Sequence[SourceNode]
    ) -> list[str]:
        """Return the paths whose labels equal those of the records of the element."""
        try:
            records = self._session.origin(number, index).records[:COMPARED]
            by_name = {leaf.origin(0).source: leaf.source for leaf in leaves if leaf.length}
            read = [by_name[record.source][record.record] for record in records]
        except Exception:  # it is not known which records they are, or a record cannot be read
            return []
        unchanged = []
        for path, labels in there.items():
            stored = [_find_labels(record, path) for record in read]
            wanted = [values for values in stored if values is not None]
            if len(wanted) == len(read) and wanted:
                joined = np.concatenate([values.reshape(-1) for values in wanted])
                if len(joined) <= labels.size and np.array_equal(labels.reshape(-1)[: len(joined)], joined):
                    unchanged.append(path)
        return unchanged


def _ancestors(node: Node) -> Iterator[Node]:
    seen: set[int] = set()
    todo = [node]
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += one.parents


def _calls_user(node: Node) -> bool:
    """Return whether a step calls a function of the user's, which may change a label."""
    fields = vars(node)
    return any(fields.get(name) is not None for name in ("transform", "operation", "batch_fn", "function", "dataset"))


def _find_labels(element: Any, path: str) -> np.ndarray | None:
    """Return the whole numbers at a path of an element; None if there are none."""
    value = element
    for name in path.split("/"):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, (tuple, list)) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    if isinstance(value, (str, bytes)) or not (np.isscalar(value) or hasattr(value, "dtype")):
        return None
    array = np.asarray(value)
    return array if array.dtype.kind in "iu" and array.size and array.min() >= 0 else None


def name_folder(session: Session, number: int, element: Any) -> str | None:
    """Return the folder of the file that an element is, if the folders of a `FileDataSource` are classes; None
    otherwise.
    """
    leaves = [one for one in _ancestors(session.step(number).node) if isinstance(one, SourceNode)]
    if not leaves or not all(isinstance(leaf.source, FileDataSource) for leaf in leaves):
        return None
    path = element.get("path") if isinstance(element, Mapping) else None
    folders = {
        os.path.dirname(one) for leaf in leaves for one in leaf.source.paths[:: max(1, len(leaf.source) // 1000)]
    }
    is_class = len(folders) > 1 and len({os.path.dirname(folder) for folder in folders}) == 1
    return os.path.basename(os.path.dirname(path)) if isinstance(path, str) and is_class else None


def routes(session: Session) -> Routes:
    """`read`: one element, described for the page. `part`: a part of it, such as one image of a stack in full size."""

    classes = ClassNames(session)

    def read(query: Query) -> dict[str, Any]:
        number, row = query.integer("step", -1), query.integer("row", -1, low=-1)
        reading = session.read(number, query.integer("index", 0, low=0), skips=query.integer("skips", 0) == 1)
        answer = describe_reading(reading) | describe_step(session, number)
        if reading.has_element:
            element = reading.element
            index = query.integer("index", 0, low=0)
            names = {} if query.integer("skips", 0) == 1 else classes.find(number, index, element)
            answer["rows"] = count_rows(session, number, element)
            if row >= 0 and answer["rows"] is not None:
                element = take_row(element, min(row, answer["rows"] - 1))
            answer["element"] = describe_element(
                element,
                tokenizer=session.tokenizer,
                decoder=decode_image,
                classes=names,
                caption=name_folder(session, number, element),
            )
        return answer

    def part(query: Query) -> dict[str, Any]:
        index, skips = query.integer("index", 0, low=0), query.integer("skips", 0) == 1
        reading = session.read(query.integer("step", -1), index, skips=skips)
        if not reading.has_element:
            raise BadQuery("This element cannot be read.")
        element, row = reading.element, query.integer("row", -1, low=-1)
        rows = find_batch_size(element)
        if row >= 0 and rows is not None:
            element = take_row(element, min(row, rows - 1))
        try:
            path = [str(name) for name in json.loads(query.text("path"))]
            found = find_entry(element, path)
        except (ValueError, TypeError, KeyError, IndexError):
            raise BadQuery("The element has no such part.") from None
        name = next((name for name in reversed(path) if not name.isdigit()), "")
        (item,) = describe_element({name: found}, tokenizer=session.tokenizer, decoder=decode_image)["items"]
        return item["value"]

    return {"read": read, "part": part}


def count_rows(session: Session, number: int, element: Any) -> int | None:
    """Return how many rows the element has that can be shown one by one; None if it is not a batch."""
    rows = find_batch_size(element)
    if rows is None or session.step(number).is_batched:
        return rows
    # One row of tokens is not a batch, and neither is one image.
    leaves = list(trees.leaves(element))
    return None if all(getattr(leaf, "ndim", 0) < 2 for leaf in leaves) or any(map(_is_image, leaves)) else rows


def _is_image(leaf: Any) -> bool:
    axes = find_image_axes("", leaf) if isinstance(leaf, np.ndarray) else None
    return axes is not None and len(axes) == leaf.ndim


def describe_reading(reading: ElementReading) -> dict[str, Any]:
    """Return what the page knows of a reading beside the element."""
    progress = reading.progress
    return {
        "index": reading.index,
        "failure": {"message": reading.error, "trace": reading.trace} if reading.error else None,
        "missing": reading.missing,
        "ended": reading.ended,
        "progress": None if progress is None else {"at": progress.at, "wanted": progress.wanted},
    }


def describe_step(session: Session, number: int) -> dict[str, Any]:
    """Return how many elements a step has, and whether each is reached at once."""
    step = session.step(number)
    length = {"length": step.length, "endless": step.is_endless}
    return {"step": step.number, **length, "stream": step.is_stream, "seekable": session.is_seekable(number)}
