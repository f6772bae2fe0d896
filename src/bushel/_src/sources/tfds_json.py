"""The JSON files of a prepared TFDS data set, read entry by entry and checked.

These files are not trusted: they come with the data. An error names the file and the place in it. A name of a file in
them never leads outside the data set's folder.
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

from bushel._src.base.errors import DamagedFile
from bushel._src.sources import file_access
from bushel._src.sources.paths import Options
from bushel._src.sources.size_limits import get_limits

_LARGEST_FILE = 64 << 20  # bytes; known data sets have a few MB at most
_LARGEST_NUMBER = 1 << 40
_DEEPEST = 50  # features inside features
_MOST_AXES = 32
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_INTEGER = re.compile(r"-?\d{1,15}")
_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,30}")
_ENCODINGS = ("none", "zlib", "bytes")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A value of a JSON file. Its methods check the type; an error names the file and the place in it."""

    value: Any
    file: str
    place: str = ""
    depth: int = 0

    def wrong(self, what: str) -> DamagedFile:
        """The error to raise for a wrong value."""
        return DamagedFile(
            f"{self.file}: {self.place or 'its content'} {what}. Was the file copied in full, and did TFDS write it?"
        )

    def _check_type(self, kind: type, name: str) -> Any:
        if not isinstance(self.value, kind) or isinstance(self.value, bool):
            raise self.wrong(f"must be {name}, but is {_shorten(self.value)}")
        return self.value

    def _get_entry(self, key: str | int) -> Entry:
        if self.depth >= _DEEPEST * 3:  # each feature is a few objects deep
            raise self.wrong("is nested too deeply")
        place = f"{self.place}[{key}]" if isinstance(key, int) else f"{self.place}.{key}" if self.place else key
        return Entry(self.value[key], self.file, place[:300], self.depth + 1)

    def __contains__(self, key: str) -> bool:
        """Whether a JSON object has an entry of this name that is not null."""
        return self._check_type(dict, "an object").get(key) is not None

    def __getitem__(self, key: str) -> Entry:
        """An entry that a JSON object must have."""
        if key not in self:
            known = ", ".join(map(repr, list(self.value)[:10])) or "none"
            raise self.wrong(f"must have an entry {key!r}, but has {known[:300]}")
        return self._get_entry(key)

    def get(self, key: str) -> Entry | None:
        """An entry that a JSON object may have; None without it."""
        return self._get_entry(key) if key in self else None

    def items(self) -> Iterator[tuple[str, Entry]]:
        """The entries of a JSON object."""
        for key in self._check_type(dict, "an object"):
            yield key, self._get_entry(key)

    def list(self) -> list[Entry]:
        """The entries of a list."""
        return [self._get_entry(number) for number in range(len(self._check_type(list, "a list")))]

    def text(self) -> str:
        """The value as a text."""
        return self._check_type(str, "a text")

    def integer(self, low: int = 0) -> int:
        """The value as an integer, `low` or above. TFDS writes some integers as texts."""
        value = self.value
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if type(value) is not int or not low <= value <= _LARGEST_NUMBER:
            raise self.wrong(f"must be an integer from {low} to {_LARGEST_NUMBER}, but is {_shorten(self.value)}")
        return value


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


def read_json(path: str, options: Options | None) -> Entry:
    """Reads a JSON file, local or remote, whose content must be an object."""
    file = file_access.open_file(path, options)
    if file.size > _LARGEST_FILE:
        raise DamagedFile(f"{file.name} has {file.size} bytes, which is too much for a description of a data set.")
    try:
        content = json.loads(file.read(0, file.size))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{file.name} cannot be read as JSON: {error}. Was it copied in full?") from error
    entry = Entry(content, file.name)
    for _ in entry.items():  # raises an error unless it is an object
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
    """The number of examples in each file of a split."""
    lengths = split.get("shardLengths")
    return [entry.integer() for entry in lengths.list()] if lengths else []


def shard_names(dataset: str, split: Entry, kind: str) -> list[str]:
    """The names of the files of a split, relative to the folder of the data set."""
    count = len(shard_lengths(split))
    given = split.get("filepathTemplate")
    template = given.text() if given else ""
    parts = _parse_template(template or _TEMPLATE, given or split)
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
            raise (given or split).wrong(f"names the file {_shorten(name)}, which is not in the folder of the data set")
        names.append(name)
    return names


def _parse_template(template: str, entry: Entry) -> list[tuple[str, str]]:
    """Parses a template into pairs: a text, and the name of the field after it. Fields may have no format."""
    known = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_X_OF_Y", "SHARD_INDEX", "NUM_SHARDS")
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise entry.wrong(f"is not a template of file names ({error})") from None
    for _, field, width, conversion in pieces:
        if (field is not None and field not in known) or width or conversion:
            raise entry.wrong(
                f"is not a template of file names: its fields may be {', '.join(known)}, without a format"
            )
    return [(literal, field or "") for literal, field, _, _ in pieces]


def _is_inside(name: str) -> bool:
    """Whether a name is a relative path inside a folder: without "..", not absolute, and not a pattern."""
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
        raise dimensions.wrong(f"mean {known} bytes in {len(found)} axes, more than a record may have")
    return found


def tensor_dtype(spec: Entry) -> str:
    """The dtype of an entry of `features.json`: "string", "object", or a numeric type."""
    given = spec.get("dtype")
    name = given.text() if given else "float32"
    if name not in ("string", "object") and not _is_number_type(name):
        raise (given or spec).wrong(f"must be the name of a numeric NumPy dtype, but is {_shorten(name)}")
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
    """How the arrays of an entry of `features.json` are stored: "none", "zlib" or "bytes"."""
    given = spec.get("encoding")
    name = given.text().lower() if given else "none"
    if name not in _ENCODINGS:
        raise (given or spec).wrong(f"must be one of {', '.join(_ENCODINGS)}, but is {_shorten(name)}")
    return name


def get_feature_class(spec: Entry) -> str:
    """The name of the feature class in an entry of `features.json`, for error messages."""
    name = spec.get("pythonClassName")
    return name.text().rpartition(".")[2] if name else "?"
