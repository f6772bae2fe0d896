"""What is known of a data set: as plain data, which `--json` writes, and as text for a terminal."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import shown_text
from bushel._src.engine.measurements import format_size
from bushel._src.graph import graph_text

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
class EntryFacts:
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
        """Return the histogram of some numbers, with at most ten bins; None if there are no finite numbers."""
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
    schema: list[EntryFacts] = dataclasses.field(default_factory=list)
    steps: list[dict[str, str]] = dataclasses.field(default_factory=list)
    histograms: list[Histogram] = dataclasses.field(default_factory=list)
    damage: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def add_histogram(self, name: str, numbers: Sequence[float] | np.ndarray) -> None:
        """Add the histogram of some numbers, if there are any."""
        found = Histogram.of(name, numbers)
        if found is not None:
            self.histograms.append(found)

    def as_json(self) -> dict[str, Any]:
        """Return the facts as JSON data, without empty entries."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, [], {}, "")}


def list_columns(element: Any, path: str = "") -> Iterator[EntryFacts]:
    """Yield the leaves of an element as columns: their paths, joined by "/", and their types.

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
        yield EntryFacts(
            path, "bytes" if len(element) == 1 else f"bytes[{len(element)}]", "" if kind == "bytes" else kind
        )
    elif isinstance(element, bytes):
        kind = name_bytes(element)
        yield EntryFacts(path, "bytes", "" if kind == "bytes" else kind)
    elif isinstance(element, (np.str_, np.bytes_)):
        yield EntryFacts(path, "str" if isinstance(element, np.str_) else "bytes")
    elif (dtype := getattr(element, "dtype", None)) is not None:
        yield EntryFacts(path, f"{dtype}{list(getattr(element, 'shape', ())) or ''}")
    else:
        yield EntryFacts(path, "null" if element is None else type(element).__name__)


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
    """Return what some bytes seem to be, by how they begin: "JPEG image", "text" or "bytes".

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


_MOST_FILES = 12
_MOST_COLUMNS = 60
_BAR = "▏▎▍▌▋▊▉█"


def describe(facts: Facts, *, width: int | None = None) -> str:
    """Return the facts as paragraphs and tables.

    Args:
      facts: what is known.
      width: of the terminal, in columns; by default that of this one.
    """
    columns = width or shutil.get_terminal_size().columns
    return "\n\n".join(filter(None, _list_parts(facts, columns, width))) + "\n"


def _list_parts(facts: Facts, columns: int, width: int | None) -> Iterator[str]:
    yield "\n".join([facts.target, *_list_lines(facts)])
    if facts.splits:
        yield shown_text.as_text(("split", facts.unit), [(name, f"{count:,}") for name, count in facts.splits.items()])
    if facts.steps:
        steps = graph_text.Description(tuple((step["step"], step["length"], step["element"]) for step in facts.steps))
        yield steps.as_text(width or shown_text.find_width())
    if facts.schema:
        rows = [(column.name or "(the array)", column.type, column.note) for column in facts.schema[:_MOST_COLUMNS]]
        text = shown_text.as_text(("entry", "type", ""), [_cut(row, columns) for row in rows], left=3)
        more = len(facts.schema) - len(rows)
        yield text + (f"\n... and {more:,} more" if more else "")
    if len(facts.files) > 1 or any(file.error for file in facts.files):
        yield _show_files(facts.files, facts.unit)
    for histogram in facts.histograms:
        yield show_histogram(histogram, columns)
    if facts.damage:
        yield "\n".join([f"Damage ({len(facts.damage)}):", *(f"  {line}" for line in facts.damage)])
    if facts.notes:
        yield "\n".join(facts.notes)


def _list_lines(facts: Facts) -> list[str]:
    lines = [("format", facts.format)]
    if facts.count is not None:
        lines.append((facts.unit, f"{facts.count:,}"))
    if facts.files:
        size = "" if facts.size_bytes is None else f", {format_size(facts.size_bytes)}"
        lines.append(("files", f"{len(facts.files):,}{size}"))
    lines += [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in facts.details.items()]
    width = max(len(name) for name, _ in lines)
    return [f"  {name.ljust(width)}  {value}" for name, value in lines]


def _cut(row: Sequence[str], columns: int) -> tuple[str, ...]:
    most = max(20, columns // 2)
    return tuple(cell if len(cell) <= most else cell[: most - 3] + "..." for cell in row)


def _show_files(files: list[FileFacts], unit: str) -> str:
    # Files that cannot be read come first: they must not be among those that are left out.
    shown = sorted(files, key=lambda file: not file.error)[:_MOST_FILES]
    rows = [
        (
            file.name,
            "" if file.records is None else f"{file.records:,}",
            "" if file.size_bytes is None else format_size(file.size_bytes),
            "damaged" if file.error else "",
        )
        for file in shown
    ]
    more = len(files) - len(shown)
    return shown_text.as_text(("file", unit, "size", ""), rows) + (f"\n... and {more:,} more" if more else "")


def show_histogram(histogram: Histogram, columns: int = 80) -> str:
    """Return a histogram with one line per bin.

    >>> print(show_histogram(Histogram("steps", [1, 2, 3], [2, 4]), 40))
    steps
      1  ████████████▌             2
      2  █████████████████████████ 4
    """
    edges = [_short(edge) for edge in histogram.edges]
    steps = [after - before for before, after in itertools.pairwise(histogram.edges)]
    single = all(step == 1 for step in steps) and all(float(edge).is_integer() for edge in histogram.edges)
    width = max(map(len, edges))
    names = [
        low.rjust(width) if single else f"{low.rjust(width)} to {high.rjust(width)}"
        for low, high in itertools.pairwise(edges)
    ]
    most = max(histogram.counts, default=0) or 1
    room = max(10, min(50, columns - len(names[0]) - 14))
    lines = [f"  {name}  {_bar(count / most, room)} {count:,}" for name, count in zip(names, histogram.counts)]
    return "\n".join([histogram.name, *lines])


def _bar(share: float, room: int) -> str:
    eighths = round(share * room * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_BAR[rest - 1] if rest else "")).ljust(room)


def _short(number: float) -> str:
    if float(number).is_integer() and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:.4g}"
