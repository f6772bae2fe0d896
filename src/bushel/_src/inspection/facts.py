"""What is known of a data set: plain data, which `text.py` prints and `--json` writes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_BINS = 10
_LOG_RATIO = 100
"""If the largest number is so many times the smallest, bins of equal width would hold nearly all of them in one."""


@dataclasses.dataclass
class FileFacts:
    """One file."""

    name: str
    size_bytes: int | None = None
    records: int | None = None
    error: str = ""
    """Why it cannot be read; "" if it can."""


@dataclasses.dataclass
class Column:
    """One entry of a record: its path, its type, and what else is known of it."""

    name: str
    type: str
    note: str = ""


@dataclasses.dataclass
class Histogram:
    """How often numbers fall between edges."""

    name: str
    edges: list[float]
    counts: list[int]

    @staticmethod
    def of(name: str, numbers: Sequence[float] | np.ndarray) -> Histogram | None:
        """The histogram of some numbers, with at most ten bins; None if there are no finite numbers."""
        values = np.asarray(numbers, np.float64).ravel()
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        low, high = float(values.min()), float(values.max())
        whole = bool((values == np.round(values)).all()) and max(abs(low), abs(high)) < 2**52
        if whole and high - low < _BINS:
            edges = np.arange(low, high + 2)  # a bin for each number
        elif low > 0 and high / low > _LOG_RATIO:
            edges = np.geomspace(low, high, _BINS + 1)
        else:
            edges = np.linspace(low, high, _BINS + 1)
        if whole:
            edges = np.round(edges)
        edges[0], edges[-1] = low, max(edges[-1], high)
        edges = np.unique(edges)  # of numbers that hardly differ, edges may fall together
        if len(edges) == 1:
            edges = np.array([low, math.nextafter(high, math.inf)])
        counts = np.histogram(values, edges)[0]
        return Histogram(name, edges.tolist(), counts.tolist())


@dataclasses.dataclass
class Facts:
    """What is known of a data set or a pipeline. Entries that do not apply are empty.

    Attributes:
      target: what was asked for.
      format: such as "ArrayRecord" or "RLDS".
      unit: what its parts are called: "records", "rows", "episodes", "elements".
      count: how many there are; None if that is not known without reading all of it.
      size_bytes: the bytes of all files.
      details: further facts by name, each a number or a text.
      splits: the number of parts of each split.
      files: the files; of very many, only some.
      schema: the entries of a part.
      steps: of a pipeline, each step with its length and the shapes of its elements.
      histograms: of sizes, lengths and values.
      damage: what cannot be read, with the names of the files.
      notes: what was left out, and how to see it.
    """

    target: str
    format: str
    unit: str = "records"
    count: int | None = None
    size_bytes: int | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    splits: dict[str, int] = dataclasses.field(default_factory=dict)
    files: list[FileFacts] = dataclasses.field(default_factory=list)
    schema: list[Column] = dataclasses.field(default_factory=list)
    steps: list[dict[str, str]] = dataclasses.field(default_factory=list)
    histograms: list[Histogram] = dataclasses.field(default_factory=list)
    damage: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def add_histogram(self, name: str, numbers: Sequence[float] | np.ndarray) -> None:
        """Adds the histogram of some numbers, if there are any."""
        found = Histogram.of(name, numbers)
        if found is not None:
            self.histograms.append(found)

    def as_json(self) -> dict[str, Any]:
        """The facts as JSON data, without empty entries."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, [], {}, "")}


def list_columns(element: Any, path: str = "") -> Iterator[Column]:
    """The leaves of an element as columns: their paths, joined by "/", and their types.

    >>> [(column.name, column.type) for column in list_columns({"a": {"b": np.zeros(3)}, "c": "text"})]
    [('a/b', 'float64[3]'), ('c', 'str')]
    """
    if isinstance(element, Mapping) and element:
        for key, value in element.items():
            yield from list_columns(value, f"{path}/{key}" if path else str(key))
    elif isinstance(element, tuple) and element:
        for number, value in enumerate(element):
            yield from list_columns(value, f"{path}/{number}" if path else str(number))
    elif isinstance(element, list) and element and all(isinstance(value, bytes) for value in element):
        kind = name_bytes(element[0])
        yield Column(path, "bytes" if len(element) == 1 else f"bytes[{len(element)}]", "" if kind == "bytes" else kind)
    elif isinstance(element, bytes):
        kind = name_bytes(element)
        yield Column(path, "bytes", "" if kind == "bytes" else kind)
    elif isinstance(element, (np.str_, np.bytes_)):
        yield Column(path, "str" if isinstance(element, np.str_) else "bytes")
    elif (dtype := getattr(element, "dtype", None)) is not None:
        yield Column(path, f"{dtype}{list(getattr(element, 'shape', ())) or ''}")
    else:
        yield Column(path, "null" if element is None else type(element).__name__)


_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"RIFF", "RIFF file (WAV or WebP)"),
    (b"fLaC", "FLAC audio"),
    (b"OggS", "Ogg audio"),
    (b"ID3", "MP3 audio"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"\x93NUMPY", "NumPy array"),
    (b"\x80\x04\x95", "Python pickle"),
    (b"\x80\x05\x95", "Python pickle"),
)


def name_bytes(data: bytes) -> str:
    """What some bytes seem to be, by how they begin: "JPEG image", "text" or "bytes".

    >>> name_bytes(b"hello"), name_bytes(bytes([255, 216, 255, 224])), name_bytes(bytes([0, 255]))
    ('text', 'JPEG image', 'bytes')
    """
    for beginning, name in _BEGINNINGS:
        if data.startswith(beginning):
            return name
    if data[4:8] == b"ftyp":
        return "MP4 video"
    try:
        text = data[:1000].decode()
    except UnicodeDecodeError as error:
        # The cut may be in the middle of a character.
        if error.start < 996 or len(data) <= 1000:
            return "bytes"
        text = data[: error.start].decode()
    return "text" if text and all(sign.isprintable() or sign in "\r\n\t" for sign in text) else "bytes"
