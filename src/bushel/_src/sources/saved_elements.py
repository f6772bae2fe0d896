"""What `ds.save` writes: elements of any pipeline as records of bytes or as rows of Parquet files, and a manifest.

All elements have one layout, which says what the parts of an element are. The layout is plain JSON and is stored once,
in the manifest. A record holds only the values, and the shapes of its arrays. In Parquet files nested dicts become
columns `a.b`, and arrays lists; an array with more or less than one axis gets a second column, `name.shape`. Elements
that rows cannot hold are an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bushel._src.base import blocks, checked_files, checks, redact, trees
from bushel._src.base.errors import DamagedFile
from bushel._src.base.exact_values import whole_text
from bushel._src.base.late_imports import import_package
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.folders import join_path
from bushel._src.sources.paths import Options, Path, normalize_path

Layout = Any
"""`{"dict": {key: layout}}`, `{"list": [layout]}`, `{"tuple": [layout]}`, `{"array": dtype}`, `{"scalar": dtype}`, or
the name of a Python type: "int", "float", "bool", "str", "bytes", "None"."""

_PYTHON = {int: "int", float: "float", bool: "bool", str: "str", bytes: "bytes", type(None): "None"}
_LENGTH = struct.Struct("<Q")
_NUMBERS = {"int": struct.Struct("<q"), "float": struct.Struct("<d"), "bool": struct.Struct("<?")}


def infer_layout(element: Any, path: str = "the element") -> Layout:
    """Return the layout of an element.

    >>> infer_layout({"image": np.zeros((2, 2), np.uint8), "label": 3})
    {'dict': {'image': {'array': '|u1'}, 'label': 'int'}}
    """
    kind = type(element)
    if kind is dict:
        for key in element:
            if not isinstance(key, str):
                raise TypeError(f"{path} has the key {key!r}: keys must be texts to be saved.")
        return {"dict": {key: infer_layout(part, f"{path}[{key!r}]") for key, part in element.items()}}
    if kind is list or kind is tuple:
        parts = [infer_layout(part, f"{path}[{number}]") for number, part in enumerate(element)]
        return {kind.__name__: parts}
    if kind in _PYTHON:
        return _PYTHON[kind]
    _refuse_mask(element, path)
    if isinstance(element, np.generic):
        return {"scalar": _show_dtype(element.dtype, path)}
    if hasattr(element, "__array__") and hasattr(element, "dtype"):
        return {"array": _show_dtype(np.asarray(element).dtype, path)}
    raise TypeError(
        f"{path} is of type {kind.__name__}, which cannot be saved: first map it to dicts, lists and tuples of arrays, "
        "numbers, texts and bytes."
    )


def _refuse_mask(value: Any, path: str) -> None:
    """Raise an error for a masked array, of which only the data would be saved, without the mask."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{path} is a masked array, whose mask cannot be saved: map it to an array with `x.filled(value)`, and "
            "save `np.ma.getmaskarray(x)` under a key of its own."
        )


def _show_dtype(dtype: np.dtype, path: str) -> str:
    if dtype.hasobject or dtype.names is not None or dtype.type is np.void:
        raise TypeError(f"{path} has the dtype {dtype}, which cannot be saved: first map it to another dtype.")
    if dtype.kind in "US":
        return dtype.kind  # each record states the length of its texts
    return dtype.str if dtype.kind != "V" else dtype.name  # types of ml_dtypes, such as bfloat16, are known by name


def parse_dtype(text: str) -> np.dtype:
    """Return the dtype that a layout names."""
    try:
        return np.dtype(text)
    except TypeError:
        import ml_dtypes  # registers its types with NumPy

        return np.dtype(getattr(ml_dtypes, text, text))


def encode(element: Any, layout: Layout) -> bytes:
    """Encode an element as a record. Raise ValueError if the element has another layout.

    >>> decode(encode((1, "a"), {"tuple": ["int", "str"]}), {"tuple": ["int", "str"]})
    (1, 'a')
    """
    parts: list[bytes] = []
    _append(element, layout, "the element", parts)
    return b"".join(parts)


def _append(value: Any, layout: Layout, path: str, parts: list[bytes]) -> None:
    if isinstance(layout, str):
        _append_python(value, layout, path, parts)
        return
    ((form, inner),) = layout.items()
    if form == "dict":
        if type(value) is not dict or value.keys() != inner.keys():
            raise _mismatch_error(value, path, f"a dict with the keys {list(inner)}")
        for key, below in inner.items():
            _append(value[key], below, f"{path}[{key!r}]", parts)
    elif form in ("list", "tuple"):
        if type(value).__name__ != form or len(value) != len(inner):
            raise _mismatch_error(value, path, f"a {form} of {len(inner)}")
        for number, below in enumerate(inner):
            _append(value[number], below, f"{path}[{number}]", parts)
    else:
        if isinstance(value, np.ma.MaskedArray):
            raise _mismatch_error(value, path, f"{inner}[...] without a mask")
        array, dtype = np.asarray(value), parse_dtype(inner)
        same = array.dtype.kind == dtype.kind if dtype.kind in "US" else array.dtype == dtype
        if isinstance(value, np.generic) != (form == "scalar") or not same:
            raise _mismatch_error(value, path, f"{inner}[...]" if form == "array" else f"one number, {inner}")
        if isinstance(value, (np.str_, np.bytes_)):
            _append_text(value, parts)
            return
        if dtype.kind in "US":
            array = array.astype(f"<U{max(1, array.dtype.itemsize // 4)}" if dtype.kind == "U" else array.dtype)
            parts.append(_LENGTH.pack(array.dtype.itemsize))
        if form == "array":
            parts.append(struct.pack(f"<B{array.ndim}Q", array.ndim, *array.shape))
        parts.append(array.tobytes())


def _append_text(text: np.str_ | np.bytes_, parts: list[bytes]) -> None:
    """Append a text with the zeros at its end, which an array of it would not have."""
    whole = whole_text(text)
    data = whole.encode("utf-32-le", "surrogatepass") if isinstance(whole, str) else whole
    parts += [_LENGTH.pack(len(data)), data]


def _append_python(value: Any, kind: str, path: str, parts: list[bytes]) -> None:
    if _PYTHON.get(type(value)) != kind:
        raise _mismatch_error(value, path, kind)
    if kind in _NUMBERS:
        try:
            parts.append(_NUMBERS[kind].pack(value))
        except struct.error:
            raise ValueError(f"{path} is {value}, which does not fit into 64 bits: save it as text.") from None
    elif kind != "None":
        data = value.encode("utf-8", "surrogatepass") if kind == "str" else value
        parts += [_LENGTH.pack(len(data)), data]


def _mismatch_error(value: Any, path: str, expected: str) -> ValueError:
    return ValueError(
        f"{path} is {trees.describe(value)}, but it was {expected} in the first element. All elements that are saved "
        "together need the same keys and dtypes; shapes may differ."
    )


def decode(record: bytes | memoryview, layout: Layout) -> Any:
    """Decode the element of a record."""
    reader = _RecordReader(memoryview(record))
    element = reader.read(layout)
    if reader.place != len(reader.data):
        raise DamagedFile(f"A record has {len(reader.data)} bytes, but its element ends after {reader.place} bytes.")
    return element


class _RecordReader:
    """Reads values from a record, one after the other."""

    def __init__(self, data: memoryview):
        self.data, self.place = data, 0

    def read(self, layout: Layout) -> Any:
        if isinstance(layout, str):
            return self._read_python(layout)
        ((form, inner),) = layout.items()
        if form == "dict":
            return {key: self.read(below) for key, below in inner.items()}
        if form == "list":
            return [self.read(below) for below in inner]
        if form == "tuple":
            return tuple([self.read(below) for below in inner])
        dtype = parse_dtype(inner)
        if dtype.kind in "US":
            dtype = self._read_text_dtype(dtype.kind, form)
        if form == "scalar" and dtype.kind in "US":
            return self._read_text(dtype)
        if form == "scalar":
            return np.frombuffer(self._read_bytes(dtype.itemsize), dtype)[0]
        (ndim,) = struct.unpack("<B", self._read_bytes(1))
        shape = struct.unpack(f"<{ndim}Q", self._read_bytes(8 * ndim))
        size = dtype.itemsize
        for length in shape:  # with Python's integers, which cannot overflow, in case the shape is damaged
            size *= length
        return np.frombuffer(self._read_bytes(size), dtype).reshape(shape).copy()

    def _read_text_dtype(self, kind: str, form: str) -> np.dtype:
        size = _LENGTH.unpack(self._read_bytes(8))[0]
        if not (form == "array") <= size < 1 << 31:
            raise DamagedFile(f"A record has an array whose texts have {size} bytes.")
        return np.dtype(f"<U{size // 4}" if kind == "U" else f"S{size}")

    def _read_text(self, dtype: np.dtype) -> np.str_ | np.bytes_:
        data = bytes(self._read_bytes(dtype.itemsize))
        if dtype.kind == "S":
            return np.bytes_(data)
        try:
            text = data.decode("utf-32-le", "surrogatepass")
        except UnicodeDecodeError as error:
            raise DamagedFile(f"A text in a record is not UTF-32: {error}.") from None
        return np.str_(text)

    def _read_python(self, kind: str) -> Any:
        if kind == "None":
            return None
        if kind in _NUMBERS:
            return _NUMBERS[kind].unpack(self._read_bytes(_NUMBERS[kind].size))[0]
        data = bytes(self._read_bytes(_LENGTH.unpack(self._read_bytes(8))[0]))
        if kind == "bytes":
            return data
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise DamagedFile(f"A text in a record is not UTF-8: {error}.") from None

    def _read_bytes(self, count: int) -> memoryview:
        begin = self.place
        if count > len(self.data) - begin:
            raise DamagedFile(f"A record ends after {len(self.data)} bytes, in the middle of its element.")
        self.place += count
        return self.data[begin : self.place]


def check_layout(layout: Any, where: str) -> Layout:
    """Check a layout that was read from a file, and return it."""
    match layout:
        case "int" | "float" | "bool" | "str" | "bytes" | "None":
            return layout
        case {"dict": dict(parts), **rest} if not rest:
            for key, part in parts.items():
                check_layout(part, f"{where}[{key!r}]")
            return layout
        case {"list": list(parts), **rest} | {"tuple": list(parts), **rest} if not rest:
            for number, part in enumerate(parts):
                check_layout(part, f"{where}[{number}]")
            return layout
        case {"array": str(text), **rest} | {"scalar": str(text), **rest} if not rest:
            with contextlib.suppress(TypeError, ImportError, ValueError):
                if not parse_dtype(text).hasobject:
                    return layout
    raise DamagedFile(f"{where} is not a layout of elements: {layout!r}.")


_ROWS_PER_GROUP = 1000
_GROUP_BYTES = 64 << 20
_ARROW_NAMES = {"int": "int64", "float": "float64", "bool": "bool_", "str": "string", "bytes": "binary"}
_SHAPE = ".shape"


def list_columns(layout: Layout, path: str | None = None) -> Iterator[tuple[str, Layout]]:
    """Yield the names of the columns of a layout, and the layout of each."""
    match layout:
        case {"dict": parts}:
            if path is None and not any(True for _ in _list_leaves(layout)):
                raise TypeError(f"The element has no values: a Parquet file without columns has no rows. {_INSTEAD}")
            for key, part in parts.items():
                if "." in key:
                    raise TypeError(f"The key {key!r} has a dot, which separates the parts of column names: rename it.")
                yield from list_columns(part, _join(path, key))
        case {"list": _} | {"tuple": _}:
            raise TypeError(
                f"{path or 'The element'} is a list or a tuple, which has no names for Parquet columns. {_INSTEAD}"
            )
        case _ if path is None:
            raise TypeError(f"Only an element that is a dict has names for Parquet columns. {_INSTEAD}")
        case _:
            yield path, layout


def _join(path: str | None, key: str) -> str:
    return key if path is None else f"{path}.{key}"


def _list_leaves(layout: Layout) -> Iterator[Layout]:
    if isinstance(layout, dict) and "dict" in layout:
        for part in layout["dict"].values():
            yield from _list_leaves(part)
    else:
        yield layout


_INSTEAD = 'Map it to a dict of arrays, numbers and texts, or save it with format="bag".'


def _arrow_type(arrow: Any, leaf: Layout, path: str) -> Any:
    if isinstance(leaf, str):
        return arrow.null() if leaf == "None" else getattr(arrow, _ARROW_NAMES[leaf])()
    ((form, text),) = leaf.items()
    dtype = parse_dtype(text)
    try:
        inner = {"U": arrow.string, "S": arrow.binary}[dtype.kind]() if dtype.kind in "US" else None
        inner = inner or arrow.from_numpy_dtype(dtype.newbyteorder("="))
    except (arrow.ArrowNotImplementedError, NotImplementedError):
        raise TypeError(f"{path} has the dtype {dtype}, which Parquet does not have. {_INSTEAD}") from None
    return inner if form == "scalar" else arrow.list_(inner)


class RowWriter:
    """Writes elements of one layout to a Parquet file. The first element decides which arrays get a shape column."""

    def __init__(self, path: str, layout: Layout, first: Any):
        self._arrow = import_package("pyarrow", "parquet", "Saved Parquet files")
        parquet = import_package("pyarrow.parquet", "parquet", "Saved Parquet files")
        self._layout, self._leaves = layout, dict(list_columns(layout))
        row = dict(_iterate_values(first, layout))
        self._shaped = {
            name for name, leaf in self._leaves.items() if _is_array(leaf) and np.asarray(row[name]).ndim != 1
        }
        fields = [(name, _arrow_type(self._arrow, leaf, name)) for name, leaf in self._leaves.items()]
        fields += [(name + _SHAPE, self._arrow.list_(self._arrow.int64())) for name in sorted(self._shaped)]
        self._schema = self._arrow.schema(fields)
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd", write_page_checksum=True)
        self._rows: list[dict[str, Any]] = []
        self._held_bytes = 0

    def write(self, element: Any) -> int:
        """Write an element. Return the approximate number of bytes that it takes."""
        size = len(encode(element, self._layout))  # raises an error if the layout differs
        row: dict[str, Any] = {}
        for name, value in _iterate_values(element, self._layout):
            if _is_array(self._leaves[name]):
                array = np.asarray(value)
                if name in self._shaped:
                    row[name + _SHAPE] = list(array.shape)
                elif array.ndim != 1:
                    raise ValueError(
                        f"{name} has {array.ndim} axes, but it had one axis in the first element. A Parquet column "
                        "needs the same number of axes in all elements. Reshape it, or save with "
                        'format="bag".'
                    )
                value = array.astype(array.dtype.newbyteorder("="), copy=False).ravel()
                value = value.tolist() if array.dtype.kind in "US" else value
            elif isinstance(value, (np.str_, np.bytes_)):
                value = whole_text(value)
            elif isinstance(value, np.generic):
                value = value.item()
            row[name] = value
        self._rows.append(row)
        self._held_bytes += size
        if len(self._rows) == _ROWS_PER_GROUP or self._held_bytes > _GROUP_BYTES:
            self._flush()
        return size

    def _flush(self) -> None:
        columns = [self._make_column(field) for field in self._schema]
        self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._held_bytes = [], 0

    def _make_column(self, field: Any) -> Any:
        try:
            return self._arrow.array([row[field.name] for row in self._rows], field.type)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{field.name} holds a text that is not valid Unicode ({error.reason}), which Parquet cannot store. "
                'Save it as bytes, or with format="bag".'
            ) from None

    def close(self) -> None:
        """Complete the file."""
        if self._rows:
            self._flush()
        self._writer.close()


def _is_array(leaf: Layout) -> bool:
    return isinstance(leaf, dict) and "array" in leaf


def _iterate_values(element: Any, layout: Layout, path: str | None = None) -> Iterator[tuple[str, Any]]:
    if isinstance(layout, dict) and "dict" in layout:
        for key, part in layout["dict"].items():
            yield from _iterate_values(element[key], part, _join(path, key))
    else:
        yield path or "", element


def decode_row(row: dict[str, Any], layout: Layout, path: str | None = None) -> Any:
    """Restore the element of a row."""
    if isinstance(layout, dict) and "dict" in layout:
        return {key: decode_row(row, part, _join(path, key)) for key, part in layout["dict"].items()}
    if layout == "None":
        return None
    try:
        path = path or ""
        return _decode_value(row[path], row.get(path + _SHAPE), layout)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFile(f"column {path!r} does not match its layout {layout!r}: {error!r}.") from None


def _decode_value(value: Any, shape: Any, leaf: Layout) -> Any:
    if isinstance(leaf, str):
        value = value.item() if isinstance(value, np.generic) else value
        return {"int": int, "float": float, "bool": bool, "str": str, "bytes": bytes}[leaf](value)
    ((form, text),) = leaf.items()
    dtype = parse_dtype(text)
    if form == "scalar":
        return np.asarray(value).astype(dtype)[()] if dtype.kind not in "US" else dtype.type(value)
    array = np.array(list(value), dtype) if dtype.kind in "US" else np.asarray(value).astype(dtype)
    return array if shape is None else array.reshape([int(length) for length in shape])


MANIFEST = "bushel.json"
PROGRESS = ".saving.json"
"""The file that `ds.save` writes into a folder whose files are not complete."""
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of `bushel.json`, which describes a folder of saved elements."""

    format: str
    files: tuple[str, ...]
    counts: tuple[int, ...]
    """The number of elements in each file."""
    layout: Layout
    identity: str = ""
    """A digest of the pipeline that made the elements."""
    skipped: int = 0
    """How many elements failed and were left out."""

    def content(self) -> dict[str, Any]:
        """Return the manifest as plain data. The caller writes it with a checksum."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @staticmethod
    def parse(data: bytes, where: str) -> Manifest:
        """Parse and check a manifest that was read from `where`. A manifest written by hand may lack a checksum."""
        content = checked_files.parse_json(data, where, needs_checksum=False)
        match content:
            case {
                "version": int(version),
                "format": str(kind),
                "files": list(files),
                "counts": list(counts),
                "layout": layout,
                "identity": str(identity),
            }:
                pass
            case _:
                raise DamagedFile(f"{where} is not a manifest of saved elements.")
        if version != VERSION:
            raise DamagedFile(f"{where} has version {version}; this Bushel reads version {VERSION}.")
        for name in files:
            if not isinstance(name, str) or not name or os.path.basename(name) != name:
                raise DamagedFile(f"{where} names the file {name!r}, which does not lie in its folder.")
        if len(counts) != len(files) or any(type(count) is not int or count < 0 for count in counts):
            raise DamagedFile(f"{where} names {len(files)} files, but its counts are {counts}.")
        skipped = content.get("skipped", 0)  # a manifest written by hand may lack it
        if type(skipped) is not int or skipped < 0:
            raise DamagedFile(f"{where} says that {skipped!r} elements were skipped.")
        if kind not in SOURCES:
            raise DamagedFile(f"{where} has files of format {kind!r}; there are {', '.join(SOURCES)}.")
        layout = check_layout(layout, f"layout in {where}")
        return Manifest(kind, tuple(files), tuple(counts), layout, identity, skipped)


def _open_array_record(paths: list[str], options: Any) -> Any:
    from bushel._src.sources.array_record import ArrayRecordDataSource

    return ArrayRecordDataSource(paths, storage_options=options)


def _open_tfrecord(paths: list[str], options: Any) -> Any:
    from bushel._src.sources.tfrecord import TFRecordDataSource

    return TFRecordDataSource(paths, storage_options=options)


def _open_bagz(paths: list[str], options: Any) -> Any:
    from bushel._src.sources.bagz import BagzDataSource

    return BagzDataSource(paths, storage_options=options)


def _open_parquet(paths: list[str], options: Any) -> Any:
    from bushel._src.sources.parquet import ParquetDataSource

    return ParquetDataSource(paths, storage_options=options)


SOURCES: dict[str, Callable[[list[str], Any], Any]] = {
    "array_record": _open_array_record,
    "bag": _open_bagz,
    "bagz": _open_bagz,
    "parquet": _open_parquet,
    "tfrecord": _open_tfrecord,
}
"""For each format, a function that opens its files."""


@in_states("SavedDataSource")
class SavedDataSource:
    """The elements that `ds.save(folder)` wrote, by position: the same trees, dtypes and values.

    Args:
      path: the folder of `ds.save`, local or in an object store.
      storage_options: options of the store, such as its region.

    >>> import tempfile
    >>> import bushel
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = bushel.MapDataset.range(3).map(lambda x: {"x": np.full(2, x)}).save(folder.name)
    >>> SavedDataSource(folder.name)[2]
    {'x': array([2, 2])}
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, *, storage_options: Options | None = None):
        self._folder = normalize_path(path).rstrip("/")
        file = file_access.open_file(join_path(self._folder, MANIFEST), storage_options)
        self._manifest = Manifest.parse(file.read(0, file.size), file.name)
        paths = [
            join_path(self._folder, name) for name, count in zip(self._manifest.files, self._manifest.counts) if count
        ]
        self._records: Any = SOURCES[self._manifest.format](paths, storage_options) if paths else []
        if len(self._records) != sum(self._manifest.counts):
            raise DamagedFile(
                f"The files of {redact.show(self._folder)} have {len(self._records)} records, but {MANIFEST} says "
                f"{sum(self._manifest.counts)}."
            )

    @property
    def layout(self) -> Layout:
        """The layout of the elements; see `bushel._src.sources.saved_elements`."""
        return self._manifest.layout

    @property
    def costs_round_trip(self) -> bool:
        """Whether the records are in files behind URLs."""
        return getattr(self._records, "costs_round_trip", False)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([checks.position(index, len(self))])[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[Any]:
        """Return the elements at `indices`."""
        places = checks.positions(indices, len(self))
        records = blocks.rows_of(self._records.__getitems__(places)) if len(places) else []
        restore = decode_row if self._manifest.format == "parquet" else decode
        return [
            self._decode_record(restore, record, place) for record, place in zip(records, places.tolist(), strict=True)
        ]

    def _decode_record(self, restore: Callable[[Any, Layout], Any], record: Any, place: int) -> Any:
        try:
            return restore(record, self.layout)
        except DamagedFile as error:
            raise DamagedFile(f"Element {place} of {self!r} is damaged: {error}") from None

    def fingerprint(self) -> Any:
        """Return the names, sizes and time of the files, for the identity in checkpoints."""
        return [] if isinstance(self._records, list) else self._records.fingerprint()

    def __repr__(self) -> str:
        return f"SavedDataSource({redact.base_name(self._folder)}: {len(self)} elements)"
