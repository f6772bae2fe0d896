"""Lines of text files as records: JSON lines, CSV, plain text."""

from __future__ import annotations

import numpy as np

from bushel._src.base import redact
from bushel._src.base.progress import Progress
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources.compressed_files import decompress_file
from bushel._src.sources.local_files import File
from bushel._src.sources.paths import Options, Paths
from bushel._src.sources.record_files import RecordReader, RecordSource, copy_records

_WINDOW = 8 << 20


@public("bushel.sources")
@in_states("LineDataSource")
class LineDataSource(RecordSource):
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
    """Raises an error for UTF-16 and UTF-32: the bytes of a line end are parts of other characters there."""
    begin = file.read(0, min(4, file.size))
    if begin.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        raise ValueError(
            f"{file.name} is text in UTF-16 or UTF-32, which cannot be cut into lines of bytes. Write it as UTF-8."
        )


def _strip_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")
