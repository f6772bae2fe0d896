"""The JSON files of a prepared TFDS data set: values with their place, and the parts that several readers need.

These files come from elsewhere with the data. An error about them names the file and the place in it, and nothing in
them names a file outside of the data set's folder.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import string
from collections.abc import Iterator
from typing import Any

import numpy as np

from bushel.base.errors import DamagedFile
from bushel.sources import stores
from bushel.sources.limits import get_limits
from bushel.sources.stores import Options

_LARGEST_FILE = 64 << 20  # bytes; the largest that are known have a few MB
_LARGEST_NUMBER = 1 << 40
_DEEPEST = 50  # features inside of features
_MOST_AXES = 32
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_INTEGER = re.compile(r"-?\d{1,15}")
_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,30}")
_ENCODINGS = ("none", "zlib", "bytes")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A value of a JSON file. What it should be is said by the method that takes it: an error names file and place."""

    value: Any
    file: str
    place: str = ""
    depth: int = 0

    def wrong(self, what: str) -> DamagedFile:
        """The error for a value that is not what it should be."""
        return DamagedFile(
            f"{self.file}: {self.place or 'its content'} {what}. Was it copied in full, and is it TFDS's?"
        )

    def _kind(self, kind: type, name: str) -> Any:
        if not isinstance(self.value, kind) or isinstance(self.value, bool):
            raise self.wrong(f"must be {name}, and is {_shown(self.value)}")
        return self.value

    def _below(self, key: str | int) -> Entry:
        if self.depth >= _DEEPEST * 3:  # each feature is a few objects deep
            raise self.wrong("is nested too deeply")
        place = f"{self.place}[{key}]" if isinstance(key, int) else f"{self.place}.{key}" if self.place else key
        return Entry(self.value[key], self.file, place[:300], self.depth + 1)

    def __contains__(self, key: str) -> bool:
        """Whether an object has an entry of this name that is not null."""
        return self._kind(dict, "an object").get(key) is not None

    def __getitem__(self, key: str) -> Entry:
        """An entry that an object must have."""
        if key not in self:
            known = ", ".join(map(repr, list(self.value)[:10])) or "none"
            raise self.wrong(f"must have an entry {key!r}, and has {known[:300]}")
        return self._below(key)

    def get(self, key: str) -> Entry | None:
        """An entry that an object may have."""
        return self._below(key) if key in self else None

    def items(self) -> Iterator[tuple[str, Entry]]:
        """The entries of an object."""
        for key in self._kind(dict, "an object"):
            yield key, self._below(key)

    def list(self) -> list[Entry]:
        """The entries of a list."""
        return [self._below(number) for number in range(len(self._kind(list, "a list")))]

    def text(self) -> str:
        """A text."""
        return self._kind(str, "a text")

    def integer(self, low: int = 0) -> int:
        """A whole number, `low` or above; TFDS writes some of them as texts."""
        value = self.value
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if type(value) is not int or not low <= value <= _LARGEST_NUMBER:
            raise self.wrong(f"must be a whole number from {low} to {_LARGEST_NUMBER}, and is {_shown(self.value)}")
        return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


def read_json(path: str, options: Options | None) -> Entry:
    """The content of a JSON file, wherever it lies: an object."""
    file = stores.open_file(path, options)
    if file.size > _LARGEST_FILE:
        raise DamagedFile(f"{file.name} has {file.size} bytes, more than any description of a data set.")
    try:
        content = json.loads(file.read(0, file.size))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{file.name} cannot be read as JSON: {error}. Was it copied in full?") from error
    entry = Entry(content, file.name)
    for _ in entry.items():  # it is an object
        break
    return entry


def split_entries(info: Entry) -> dict[str, Entry]:
    """The splits that a `dataset_info.json` describes, by name."""
    splits = info.get("splits")
    found: dict[str, Entry] = {}
    for entry in splits.list() if splits else ():
        name = entry["name"].text()
        if name in found:
            raise entry.wrong(f"is a second split {name!r}")
        found[name] = entry
    return found


def shard_lengths(split: Entry) -> list[int]:
    """How many examples each file of a split has."""
    lengths = split.get("shardLengths")
    return [entry.integer() for entry in lengths.list()] if lengths else []


def shard_names(dataset: str, split: Entry, kind: str) -> list[str]:
    """The files of a split, below the folder of the data set."""
    count = len(shard_lengths(split))
    given = split.get("filepathTemplate")
    template = given.text() if given else ""
    parts = _parsed(template or _TEMPLATE, given or split)
    names = []
    for number in range(count):
        values = {
            "DATASET": dataset,
            "SPLIT": split["name"].text(),
            "FILEFORMAT": kind,
            "SHARD_X_OF_Y": f"{number:05d}-of-{count:05d}",
            "SHARD_INDEX": f"{number:05d}",
            "NUM_SHARDS": f"{count:05d}",
        }
        name = "".join(literal + values.get(field, "") for literal, field in parts)
        if not _is_inside(name):
            raise (given or split).wrong(f"names the file {_shown(name)}, which must lie in the folder of the data set")
        names.append(name)
    return names


def _parsed(template: str, entry: Entry) -> list[tuple[str, str]]:
    """The pieces of a template: a text, and the name of the field after it. A field is a name and nothing else."""
    known = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_X_OF_Y", "SHARD_INDEX", "NUM_SHARDS")
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise entry.wrong(f"is not a template of file names ({error})") from None
    for _, field, width, conversion in pieces:
        if (field is not None and field not in known) or width or conversion:
            raise entry.wrong(f"is not a template of file names: its fields are {', '.join(known)}, without a format")
    return [(literal, field or "") for literal, field, _, _ in pieces]


def _is_inside(name: str) -> bool:
    """Whether a name stands for one file below a folder: no way up, no absolute path, no pattern."""
    parts = name.split("/")
    return 0 < len(name) < 1000 and not re.search(r"[*?\[\]\\\0]", name) and not {"", ".", "..", "~"} & set(parts)


def tensor_shape(spec: Entry) -> tuple[int, ...]:
    """The shape that an entry of `features.json` states; -1 for an axis of unknown length."""
    shape = spec.get("shape")
    dimensions = shape.get("dimensions") if shape else None
    if dimensions is None:
        return ()
    found = tuple(entry.integer(-1) for entry in dimensions.list())
    dtype = tensor_dtype(spec)
    itemsize = np.dtype(object if dtype == "string" else dtype).itemsize
    known = math.prod(size for size in found if size > 0) * itemsize
    if len(found) > _MOST_AXES or known > get_limits().record_bytes:
        raise dimensions.wrong(f"stand for {known} bytes in {len(found)} axes, more than a record may have")
    return found


def tensor_dtype(spec: Entry) -> str:
    """The type of an entry of `features.json`: "string", "object", or the name of a type of numbers."""
    given = spec.get("dtype")
    name = given.text() if given else "float32"
    if name not in ("string", "object") and not _is_number_type(name):
        raise (given or spec).wrong(f"must be the name of a type of numbers that NumPy knows, and is {_shown(name)}")
    return name


def _is_number_type(name: str) -> bool:
    if not _DTYPE.fullmatch(name):
        return False
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        return False
    return dtype.kind in "biufcV" and 0 < dtype.itemsize <= 16 and dtype.names is None


def tensor_encoding(spec: Entry) -> str:
    """How an entry of `features.json` says that arrays are stored: "none", "zlib" or "bytes"."""
    given = spec.get("encoding")
    name = given.text().lower() if given else "none"
    if name not in _ENCODINGS:
        raise (given or spec).wrong(f"must be one of {', '.join(_ENCODINGS)}, and is {_shown(name)}")
    return name


def kind_of(spec: Entry) -> str:
    """What an entry of `features.json` calls its feature, for errors."""
    name = spec.get("pythonClassName")
    return name.text().rpartition(".")[2] if name else "?"
