"""Bagz files: records end to end, then the end offset of each. The format has no checksums: see `checksums.py`.

Records are copied from mapped memory where that is faster, which it is if the file is in memory. The memory map itself
is in `local_files.py`, and so is the case of a file that is cut short while it is mapped.
"""

from __future__ import annotations

import mmap
import os
import re
import resource
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, TooLarge
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources import decompression, file_access
from bushel._src.sources.local_files import File, LocalFile, read_each
from bushel._src.sources.paths import Options, Paths
from bushel._src.sources.record_files import JoinedRecords, RecordReader, copy_records
from bushel._src.sources.shard_journals import final_name

_QUICK_S = 50e-6  # a disk needs longer: all pages were in memory
_LEAST_PAUSE, _MOST_PAUSE = 16, 4096
_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # macOS counts only for the whole process


class MappedReads:
    """Decides for each block of a file whether it is copied from mapped memory or read.

    If a page of mapped memory is not in memory, the system fetches this page alone, while this thread holds the GIL, so
    all threads wait. A read does neither. So after a block with such pages, the next 16 blocks are read instead. This
    pause doubles each time it happens again, and shrinks by one for each block whose pages were in memory.
    """

    def __init__(self, file: LocalFile):
        self._file = file
        self._to_read = 0  # how many blocks to read before the map is tried again
        self._pause = _LEAST_PAUSE
        self._long = True  # whether the last block took long, so that page faults of the next one are counted

    def copy_block(
        self, copy: Callable[[mmap.mmap, np.ndarray], list[bytes] | None], spans: np.ndarray
    ) -> list[bytes] | None:
        """Return the records that `copy` takes from memory at `spans`; None if the caller should read the block."""
        if self._to_read > 0:
            self._to_read -= 1
            return None
        memory = self._file.map_memory()
        if memory is None:
            return None
        before = _count_page_faults() if self._long else None
        begun = time.perf_counter()
        found = copy(memory, spans)
        self._long = time.perf_counter() - begun > _QUICK_S
        if before is not None:
            if _count_page_faults() > before:
                self._to_read, self._pause = self._pause, min(2 * self._pause, _MOST_PAUSE)
            else:
                self._pause = max(self._pause - 1, _LEAST_PAUSE)
        return found


def _count_page_faults() -> int:
    """Return the number of pages that were fetched from disk so far."""
    return resource.getrusage(_WHOSE).ru_majflt


_WORTH_MAPPING = 8  # fewer records are read, not copied from mapped memory
_SHARDED = re.compile(r"(.*)@(\d+|\*)(\.[^./]*)?")
_SHARD = re.compile(r".*-\d{5}-of-(\d{5})(\.[^./]*)?")


@public("bushel.sources")
@in_states("BagzDataSource")
class BagzDataSource(JoinedRecords):
    """Records of Bagz files as bytes: `.bagz` files are compressed record by record with zstd, `.bag` files are not.

    Args:
      paths: one or many files, patterns or URLs. "name@3.bagz" stands for the three shards of a set, "name@*.bagz" for
        all shards.
      compressed: whether records are compressed. By default the ending of the file's name decides.
      separate_limits: whether the offsets are in a separate file, whose name is "limits." and the name of the file.
      storage_options: options of the store that holds the files.

    >>> import struct, tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "two.bag")
    >>> _ = path.write_bytes(b"one" + b"three" + struct.pack("<QQ", 3, 8))
    >>> list(BagzDataSource(path))
    [b'one', b'three']
    """

    def __init__(
        self,
        paths: Paths,
        *,
        compressed: bool | None = None,
        separate_limits: bool = False,
        storage_options: Options | None = None,
    ):
        self._compressed, self._separate = compressed, bool(separate_limits)
        super().__init__(expand_shards(paths, storage_options), storage_options)

    def _make_reader(self, file: File) -> RecordReader:
        compressed = (
            final_name(redact.remove_query(file.address)).endswith(".bagz")
            if self._compressed is None
            else self._compressed
        )
        if not self._separate:
            return _BagFile(file, file, compressed)
        path, query, rest = file.address.partition("?") if file.address.startswith("http") else (file.address, "", "")
        folder, name = os.path.split(path)
        limits = os.path.join(folder, f"limits.{name}{query}{rest}")
        return _BagFile(file, file_access.open_file(limits, self._options), compressed)


def expand_shards(paths: Any, options: Options | None) -> Any:
    """Replace a name such as "name@3.bagz" by the paths of all its shards."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if isinstance(paths, bytes) or not isinstance(paths, Iterable):
        return paths  # the error is raised where all paths are checked
    found: list[Any] = []
    for path in paths:
        sharded = _SHARDED.fullmatch(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else None
        if sharded is None:
            found.append(path)
            continue
        stem, count, ending = sharded.group(1), sharded.group(2), sharded.group(3) or ""
        count = (
            _count_shards(os.fspath(path), f"{stem}-?????-of-?????{ending}", options) if count == "*" else int(count)
        )
        found += [f"{stem}-{number:05d}-of-{count:05d}{ending}" for number in range(count)]
    return found


def _count_shards(path: str, pattern: str, options: Options | None) -> int:
    """Return the number of shards of a set, from the names of its files. A missing shard then causes an error."""
    shards = [_SHARD.fullmatch(final_name(name)) for name in file_access.find_files(pattern, options)]
    counts = sorted({int(shard.group(1)) for shard in shards if shard})
    if len(counts) != 1:
        raise ValueError(
            f"{redact.show(path)}: there are sets of {' and of '.join(map(str, counts)) or 'no'} shards. Write the "
            "number of shards instead of *."
        )
    return counts[0]


class _BagFile(RecordReader):
    def __init__(self, file: File, limits: File, compressed: bool):
        self._file, self._compressed = file, compressed
        ends = _read_ends(file, limits)
        self.count = len(ends)
        lengths = np.diff(ends, prepend=0)
        self._longest = int(lengths.max(initial=0))
        self._spans = np.stack((ends - lengths, lengths), axis=1)  # start and length of each record
        self._hollow = (
            compressed and not lengths.all()
        )  # an empty record takes no bytes in the file, not even an empty frame
        self._mapping = MappedReads(file) if isinstance(file, LocalFile) else None

    def read(self, position: int) -> bytes:
        data = self._file.read(self._spans.item(position, 0), self._spans.item(position, 1))
        if not self._compressed or not data:
            return data
        try:
            return decompression.decompress_zstd(data, 0)
        except ImportError:
            raise
        except Exception as error:
            raise self._damage_error(position, error) from error

    def read_many(self, positions: np.ndarray) -> list[bytes]:
        spans = self._spans.take(positions, axis=0)
        count = len(positions)
        # Records that lie side by side are read with one call, and the system reads ahead. Mapping would be slower.
        if self._mapping and count >= _WORTH_MAPPING and positions.item(-1) - positions.item(0) != count - 1:
            found = self._mapping.copy_block(self._copy_records, spans)
            if found is not None:
                return found
        return self._read_records(positions, spans)

    def _copy_records(self, memory: mmap.mmap, spans: np.ndarray) -> list[bytes] | None:
        """Copy records from memory; None if one is damaged. A read from the file then names the damaged one."""
        if not self._compressed:
            starts = spans[:, 0]
            return [memory[low:high] for low, high in zip(starts.tolist(), (starts + spans[:, 1]).tolist())]
        try:
            if not self._hollow:
                return decompression.decompress_zstd_frames(memory, spans, self._longest)
            full = spans[:, 1] > 0
            found = iter(decompression.decompress_zstd_frames(memory, spans[full], self._longest))
            return [next(found) if there else b"" for there in full.tolist()]
        except ImportError:
            raise
        except Exception:
            return None

    def _read_records(self, positions: np.ndarray, spans: np.ndarray) -> list[bytes]:
        """Read records from the file."""
        begins, lengths = spans[:, 0].tolist(), spans[:, 1].tolist()
        if not self._compressed:
            return self._file.read_many(begins, lengths)
        found: list[bytes] = []
        try:
            for part in read_each(self._file, begins, lengths):
                found.append(decompression.decompress_zstd(part, 0) if part else b"")
        except (ImportError, OSError):
            raise
        except Exception as error:
            if isinstance(error, DamagedFile) and not isinstance(
                error, TooLarge
            ):  # the error is about the file, and names it
                raise
            raise self._damage_error(positions.item(len(found)), error) from error
        return found

    def read_into(self, positions: np.ndarray, rows: memoryview, size: int) -> None:
        spans = self._spans[positions]
        if self._compressed or (spans[:, 1] != size).any():
            return copy_records(self.read_many(positions), rows, size, self._file.name, positions)
        for place, start in enumerate(spans[:, 0].tolist()):
            self._file.read_into(start, [rows[place * size : (place + 1) * size]])

    def _damage_error(self, position: int, error: Exception) -> DamagedFile:
        if isinstance(error, TooLarge):
            return TooLarge(f"{self._file.name}: record {position} is not read: {error}")
        return DamagedFile(
            f"{self._file.name}: record {position} is damaged: it cannot be decompressed ({error}). If the file is "
            "not compressed, pass compressed=False."
        )


def _read_ends(file: File, limits: File) -> np.ndarray:
    """Read the end offsets of the records."""
    separate = limits is not file
    if not limits.size:
        return np.zeros(0, np.int64)
    if limits.size < 8:
        raise DamagedFile(f"{limits.name} is not a complete Bagz file: it has only {limits.size} bytes.")
    last = int.from_bytes(limits.read(limits.size - 8, 8), "little")
    first = 0 if separate else last
    if last > file.size or first > limits.size - 8 or (limits.size - first) % 8:
        raise DamagedFile(
            f"{file.name} is not a complete Bagz file: its last 8 bytes should give the place of the offsets, and give "
            f"{last} in a file of {file.size} bytes. It was cut short, or is of another format."
        )
    ends = np.frombuffer(limits.read(first, limits.size - first), "<u8")
    if (ends[1:] < ends[:-1]).any():  # compared, because a difference could overflow; the last offset was checked above
        raise DamagedFile(f"{file.name}: the offsets of its records are damaged: they decrease.")
    return ends.astype(np.int64)
