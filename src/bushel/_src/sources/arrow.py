"""Arrow IPC files (also called Feather 2) and streams: rows at any position. Local files are mapped into memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

from bushel._src.base.errors import DamagedFile
from bushel._src.base.hints import explains_arguments
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources.local_files import File
from bushel._src.sources.paths import Options, Paths, is_url
from bushel._src.sources.table_rows import UNREADABLE, TableSource, check_names

_KEPT_BYTES = 256 << 20
_FIRST_MESSAGE = 8  # bytes before it: a file begins with the name of the format
_END = b"\xff\xff\xff\xff\0\0\0\0"  # the end mark of a stream; each message begins with its first four bytes


@public("bushel.sources")
@in_states("ArrowDataSource")
class ArrowDataSource(TableSource):
    """Rows of Arrow IPC files as dicts, at any position. Local files are mapped: only what is read leaves the disk.

    Args:
      paths: one or many files in the file format or the stream format, patterns or URLs. A compressed stream is
        decompressed as a whole when it is opened.
      columns: read only these columns; all by default.
      storage_options: options of the store that holds the files. Remote files are read into memory as a whole.

    >>> import os, tempfile, pyarrow
    >>> path = os.path.join(tempfile.mkdtemp(), "train.arrow")
    >>> table = pyarrow.table({"x": [1, 2, 3]})
    >>> with pyarrow.ipc.new_file(path, table.schema) as file:
    ...     file.write_table(table)
    >>> ArrowDataSource(path)[2]
    {'x': np.int64(3)}
    """

    part = "record batch"

    @explains_arguments('Write `ArrowDataSource(paths, columns=["text"])`.')
    def __init__(self, paths: Paths, *, columns: Sequence[str] | None = None, storage_options: Options | None = None):
        super().__init__(paths, columns, _KEPT_BYTES, storage_options)

    def _make_file_cache(self) -> Any:
        return {}

    def _part_lengths(self, number: int) -> list[int]:
        return self._get_file(number).lengths

    def _read_part(self, number: int, part: int) -> Any:
        return self._get_file(number).read_batch(part)

    def _get_file(self, number: int) -> _ArrowFile:
        file = self._files.get(number)
        if file is None:  # two threads may both open it; either result can be used
            file = self._files[number] = _open_arrow_file(self._open_unchanged(number), self._columns)
        return file


class _ArrowFile:
    """One open file. Record batches are taken from the mapped memory when they are needed, and decompressed."""

    def __init__(self, path: str, content: Any, stream: bool, columns: Sequence[str] | None):
        ipc = import_package("pyarrow.ipc", "parquet", "Arrow files")
        self._path, self._columns = path, columns
        self._lock = threading.Lock()
        self._sound: set[int] = set()  # the numbers of batches that were validated
        reader = ipc.open_stream(content) if stream else ipc.open_file(content)
        self.schema = reader.schema
        self.names: list[str] = reader.schema.names
        if stream:
            batches = list(reader)  # this finds the batches without decoding them
            if content.tell() != content.size():  # pyarrow stops at the first end mark
                raise ValueError(f"it ends at byte {content.tell()} of {content.size()}")
            self._get = batches.__getitem__
            self.lengths = [batch.num_rows for batch in batches]
            return
        self._get = reader.get_batch
        # One column is enough for the lengths; the others may be compressed and large.
        narrow = ipc.open_file(content, options=ipc.IpcReadOptions(included_fields=[0] if self.names else []))
        self.lengths = [narrow.get_batch(number).num_rows for number in range(narrow.num_record_batches)]
        if (there := _count_batches(content)) > len(self.lengths):
            raise ValueError(f"its index has {len(self.lengths)} record batches, but the file has {there}")

    def read_batch(self, number: int) -> Any:
        try:
            with self._lock:
                found = self._get(number)
            if self._columns is not None:
                found = found.select(self._columns)
            if number not in self._sound:  # a wrong offset in the data would crash the process
                found.validate(full=True)
                self._sound.add(number)
        except UNREADABLE as error:
            raise DamagedFile(f"{self._path}: record batch {number} cannot be read: {error}") from error
        return found


def _count_batches(content: Any) -> int:
    """Return the number of record batches in a file: counts the messages, without the index."""
    ipc = import_package("pyarrow.ipc", "parquet", "Arrow files")
    content.seek(_FIRST_MESSAGE)
    messages, count = ipc.MessageReader.open_stream(content), 0
    with contextlib.suppress(StopIteration, *UNREADABLE):  # the error is raised later, by the read of that batch
        while True:
            count += messages.read_next_message().type == "record batch"
    return count


def _open_arrow_file(file: File, columns: Sequence[str] | None) -> _ArrowFile:
    arrow = import_package("pyarrow", "parquet", "Arrow files")
    path = file.name
    stream = file.size >= len(_END) and file.read(0, 4) == _END[:4]
    if stream and file.read(file.size - len(_END), len(_END)) != _END:
        raise DamagedFile(f"{path} is an Arrow stream without an end mark: it was cut short.")
    try:
        remote = is_url(path)
        content = arrow.BufferReader(file.read(0, file.size)) if remote else arrow.memory_map(path)
        found = _ArrowFile(path, content, stream, columns)
    except UNREADABLE as error:
        raise DamagedFile(f"{path} is not a complete Arrow file: {error}") from error
    check_names(path, found.schema, found.names, columns)
    return found
