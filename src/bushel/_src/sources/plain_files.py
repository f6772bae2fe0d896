"""Files without a container: lines of text, records of one size as arrays, and whole files as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, memory, redact
from bushel._src.base.blocks import Columns
from bushel._src.base.hints import explains_arguments
from bushel._src.base.public import public
from bushel._src.base.shown_text import Progress
from bushel._src.base.state_names import in_states
from bushel._src.base.trees import ShapeDtypeStruct
from bushel._src.sources import file_access
from bushel._src.sources.decompression import decompress_file
from bushel._src.sources.local_files import File
from bushel._src.sources.paths import Options, Paths, is_url
from bushel._src.sources.record_files import JoinedRecords, RecordReader, copy_records, map_in_threads, name_files

_WINDOW = 8 << 20


@public("bushel.sources")
@in_states("LineDataSource")
class LineDataSource(JoinedRecords):
    r"""Lines of text files as bytes, without line ends, at any position. The files are read once when it is made.

    Files that are compressed with gzip, zstd, bzip2 or xz are recognised by their content, not by their name. They are
    decompressed into memory, in each process that reads them, up to the limit `record_bytes` of `set_limits` (1 GiB).

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "x.jsonl")
    >>> _ = path.write_text('{"a": 1}\n{"a": 2}\n')
    >>> LineDataSource(path)[1]
    b'{"a": 2}'
    """

    def __init__(self, paths: Paths, *, storage_options: Options | None = None):
        super().__init__(paths, storage_options)

    def _make_reader(self, file: File) -> RecordReader:
        return _LineFile(file)


class _LineFile(RecordReader):
    def __init__(self, file: File):
        self._file = file = decompress_file(file)
        _check_encoding(file)
        places = [np.zeros(1, np.int64)]
        bar = Progress(f"lines of {redact.base_name(file.name)}", file.size, unit="B", delay_s=1)
        for start in range(0, file.size, _WINDOW):
            window = np.frombuffer(file.read(start, min(_WINDOW, file.size - start)), np.uint8)
            places.append(np.flatnonzero(window == ord("\n")) + (start + 1))
            bar.show(min(start + _WINDOW, file.size))
        bar.end()
        bounds = np.concatenate(places)
        if bounds[-1] != file.size:  # the last line has no line end
            bounds = np.append(bounds, file.size)
        self._starts, self._lengths = bounds[:-1], np.diff(bounds)
        self.count = len(self._starts)

    def read(self, position: int) -> bytes:
        return _strip_end(self._file.read(self._starts.item(position), self._lengths.item(position)))

    def read_many(self, positions: np.ndarray) -> list[bytes]:
        lines = self._file.read_many(self._starts[positions].tolist(), self._lengths[positions].tolist())
        return [_strip_end(line) for line in lines]

    def read_into(self, positions: np.ndarray, rows: memoryview, size: int) -> None:
        copy_records(self.read_many(positions), rows, size, self._file.name, positions)


def _check_encoding(file: File) -> None:
    """Raise an error for UTF-16 and UTF-32: the bytes of a line end are parts of other characters there."""
    begin = file.read(0, min(4, file.size))
    if begin.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        raise ValueError(
            f"{file.name} is text in UTF-16 or UTF-32, which cannot be cut into lines of bytes. Write it as UTF-8."
        )


def _strip_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


@public("bushel.sources")
@in_states("FixedRecords")
class FixedRecords:
    """Records of one size as arrays. The bytes of each record are taken as an array of `dtype` and `shape`.

    Records are read from the file directly into the batch, without another copy.

    >>> import numpy as np, tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "x.bag")
    >>> from bushel.sources import BagzDataSource, FixedRecords
    >>> data = np.arange(6, dtype="<i4").tobytes()
    >>> _ = path.write_bytes(data + np.array([12, 24], "<u8").tobytes())
    >>> FixedRecords(BagzDataSource(path), dtype=np.int32, shape=(3,))[1]
    array([3, 4, 5], dtype=int32)
    """

    gives_new_records = True
    reads_in_place = True
    """`__getitems__` makes its arrays with `memory.output`, and no function of the user's sees them meanwhile."""

    @explains_arguments("Write `FixedRecords(source, dtype=np.int32, shape=(3,))`.")
    def __init__(self, source: JoinedRecords, *, dtype: Any, shape: Sequence[int] = ()):
        self._source = source
        self._dtype = np.dtype(dtype)
        self._shape = tuple(checks.integer(size, "an axis of shape") for size in shape)
        if self._dtype.hasobject or self._dtype.itemsize == 0:
            raise TypeError(f"Bytes of records cannot be interpreted as dtype {self._dtype}.")
        if not callable(getattr(source, "read_into", None)):
            raise TypeError(f"FixedRecords needs a source of record files, got {type(source).__name__}.")

    @property
    def costs_round_trip(self) -> bool:
        """Whether the records are in files behind URLs."""
        return getattr(self._source, "costs_round_trip", False)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> np.ndarray:
        place = checks.position(index, len(self))
        out = memory.empty((1, *self._shape), self._dtype)
        self._source.read_into([place], out)
        return out[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Columns:
        """Return the records at `indices` as one array. Each record is read directly into its row."""
        out = memory.output((len(indices), *self._shape), self._dtype)
        self._source.read_into(indices, out)
        return Columns(out, len(indices))

    def element_spec(self) -> ShapeDtypeStruct:
        """Return shape and dtype of a record."""
        return ShapeDtypeStruct(self._shape, self._dtype)

    def fingerprint(self) -> Any:
        return [self._source.fingerprint(), self._dtype.str, list(self._shape)]

    def __repr__(self) -> str:
        return f"FixedRecords({self._source!r}, {self._dtype}{list(self._shape)})"


@public("bushel.sources")
@in_states("FileDataSource")
class FileDataSource:
    """One record per file: a dict of its path and its content as bytes. The name of the folder is often the label.

    The path in a record has no query and no password, so that the record is the same when its URL is signed again.

    >>> import os, tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.mkdtemp()
    >>> os.mkdir(os.path.join(folder, "cat"))
    >>> _ = Path(folder, "cat", "1.txt").write_text("meow")
    >>> record = FileDataSource(f"{folder}/*/*.txt")[0]
    >>> record["content"], record["path"].split("/")[-2:]
    (b'meow', ['cat', '1.txt'])
    """

    def __init__(self, paths: Paths, *, storage_options: Options | None = None):
        self._options = redact.Options(storage_options or {})
        self._paths = file_access.find_files(paths, self._options)
        self.costs_round_trip = any(map(is_url, self._paths)) and "cache_dir" not in self._options

    @property
    def paths(self) -> list[str]:
        """The files, in order."""
        return list(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._read_file(self._paths[checks.integer(index, "index")])

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Return the files at `indices`. Remote files are read at the same time, since each costs round trips."""
        paths = [self._paths[index] for index in checks.positions(indices, len(self)).tolist()]
        return list((map_in_threads if any(map(is_url, paths)) else map)(self._read_file, paths))

    def _read_file(self, path: str) -> dict[str, Any]:
        file = file_access.open_file(path, self._options)
        return {"path": redact.remove_query(path), "content": file.read(0, file.size)}

    def fingerprint(self) -> Any:
        return [redact.object_name(path) for path in self._paths]

    def fingerprint_in_full(self) -> Any:
        """Return the version of each file, for what is kept on disk: a request per file, which is too much for a
        state.
        """
        versions = map_in_threads if any(map(is_url, self._paths)) else map
        return list(versions(lambda path: file_access.fingerprint_files([path], self._options), self._paths))

    def __repr__(self) -> str:
        return f"FileDataSource({name_files(self._paths)})"
