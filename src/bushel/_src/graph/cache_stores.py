"""Where a cache keeps the elements of a stream: in memory or in files. Only a stream read to its end is kept.

While a cache is filled, its files have a temporary name, and a lock that ends with its process.
"""

from __future__ import annotations

import abc
import bisect
import contextlib
import fcntl
import functools
import itertools
import json
import os
import pickle
import secrets
import shutil
import socket
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bushel._src.base import checked_files, trees
from bushel._src.base.errors import BushelWarning, DamagedFile, add_note
from bushel._src.base.exact_values import dump_elements
from bushel._src.base.private_elements import copy_value
from bushel._src.graph.cursors import SkipNote, State
from bushel._src.sources import folders
from bushel._src.sources.folders import Folder

INDEX = "index.json"
_PREFIX, _BEGUN = ".part-", ".begun-"
_LOCK = ".lock"
_FORGOTTEN_S = 7 * 24 * 3600.0
"""A folder whose lock does not say whether its process is alive is removed after so long without a change."""


def temporary_name() -> str:
    """Return a name that no other process gives to a folder."""
    return f"{_PREFIX}{socket.gethostname()}-{secrets.token_hex(8)}"


class UnfinishedCache(abc.ABC):
    """The files of a cache that is being filled. Nobody else reads them before they are published."""

    folder: Folder
    under: str
    """Where in the folder the files are: what their names begin with."""

    @abc.abstractmethod
    def publish(self, index: dict[str, Any]) -> None:
        """Write the index, by which others find the files; unless another process has published the same meanwhile."""

    @abc.abstractmethod
    def remove(self) -> None:
        """Remove the files."""


def begin(folder: Folder, key: str) -> UnfinishedCache:
    """Return a part that becomes the cache `key` in a folder.

    Remove the parts that killed processes have left there.
    """
    if not folder.on_disk:
        _remove_old(folder, key)
        return _UnfinishedObjects(folder, key)
    parent = Path(folder.address)
    parent.mkdir(parents=True, exist_ok=True)
    remove_forgotten(parent)
    return UnfinishedFolder(parent, parent / key)


def remove_cache(folder: Folder, key: str) -> None:
    """Remove a cache. First it removes the name or the index by which other processes find the cache."""
    if folder.on_disk:
        renamed = Path(folder.address) / temporary_name()
        os.rename(Path(folder.address) / key, renamed)
        shutil.rmtree(renamed, ignore_errors=True)
    else:
        folder.remove([f"{key}/{INDEX}"])
        folder.remove(folder.names(key, deep=True))


class UnfinishedFolder(UnfinishedCache):
    """A folder under a temporary name, which gets its own name once it is complete."""

    def __init__(self, parent: Path, target: Path):
        name = temporary_name()
        begun = parent / name.replace(_PREFIX, _BEGUN)  # others look only at folders that have their lock already
        begun.mkdir()
        self._lock: int | None = os.open(begun / _LOCK, os.O_CREAT | os.O_RDWR, 0o666)
        self._process = os.getpid()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # this file system has no locks
            (begun / _LOCK).unlink()
        self.path, self._target = parent / name, target
        begun.rename(self.path)
        self.folder, self.under = folders.open_folder(self.path), ""

    def publish(self, index: dict[str, Any]) -> None:
        self.folder.write(INDEX, checked_files.json_bytes(index))
        try:
            self._rename()
        except OSError:
            if (self._target / INDEX).exists():  # another process was faster
                self.remove()
                return
            shutil.rmtree(self._target, ignore_errors=True)  # a folder whose index is gone is of no use
            self._rename()

    def _rename(self) -> None:
        (self.path / _LOCK).unlink(missing_ok=True)
        os.rename(self.path, self._target)
        self._release()  # not before: a process that gets the lock would remove the folder as a forgotten one

    def remove(self) -> None:
        """Remove the folder with all that is in it. A forked child, which has a copy of this, removes nothing."""
        if self._process == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def remove_forgotten(parent: Path) -> None:
    """Remove the folders of processes that were killed while they filled them."""
    for pattern in (f"{_PREFIX}*", f"{_BEGUN}*"):
        for folder in parent.glob(pattern):
            with contextlib.suppress(OSError):  # another process has removed it, or it belongs to another user
                _remove_if_forgotten(folder)


def _remove_if_forgotten(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        lock = None
    try:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises an OSError if a process holds it
        # Some network file systems keep locks on one machine alone: the lock of another machine's process looks free.
        is_from_here = lock is not None and folder.name.startswith(f"{_PREFIX}{socket.gethostname()}-")
        if is_from_here or time.time() - _last_change(folder) > _FORGOTTEN_S:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def _last_change(folder: Path) -> float:
    return max(entry.stat().st_mtime for entry in [folder, *folder.iterdir()])


class _UnfinishedObjects(UnfinishedCache):
    """Objects in a folder of their own, which the index names: a store cannot rename a folder."""

    def __init__(self, folder: Folder, key: str):
        self.folder, self._key = folder, key
        self._folder_name = f"{int(time.time())}-{secrets.token_hex(8)}"
        self.under = f"{key}/{self._folder_name}/"
        self._process = os.getpid()

    def publish(self, index: dict[str, Any]) -> None:
        if self.folder.exists(f"{self._key}/{INDEX}"):  # another process was faster
            self.remove()
        else:
            self.folder.write(f"{self._key}/{INDEX}", checked_files.json_bytes({**index, "folder": self._folder_name}))

    def remove(self) -> None:
        if self._process == os.getpid():
            with contextlib.suppress(OSError):  # they are removed later, when they are old
                self.folder.remove(self.folder.names(self.under.rstrip("/")))


def _remove_old(folder: Folder, key: str) -> None:
    """Remove the objects of a cache without an index that were begun long ago."""
    if folder.exists(f"{key}/{INDEX}"):
        return
    old = []
    for name in folder.names(key, deep=True):
        begun = name.removeprefix(f"{key}/").partition("-")[0]
        if begun.isdigit() and time.time() - int(begun) > _FORGOTTEN_S:
            old.append(name)
    folder.remove(old)


Skipped = dict[int, list[SkipNote]]
"""The elements that were skipped, by the number of elements that the stream had given before."""

CHUNK_BYTES = 4 << 20
CHUNK_ELEMENTS = 4096
VERSION = 2


Chunk = tuple[list[Any], list[State]]
"""Some elements of a stream, and the stream's state after each of them."""


class CachedElements(abc.ABC):
    """The first elements of a stream, or all of them, with the stream's state after each one.

    One cursor uses it: it remembers the chunk that it has read.
    """

    def __init__(self, start: State, skipped: Skipped):
        self._start = start
        self.skipped = skipped
        """The elements that failed and were skipped when the stream was read."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def _find(self, number: int) -> tuple[Any, State]:
        """Return an element as it is kept, and the state after it. Raise DamagedFile."""

    def element(self, number: int) -> Any:
        """Return an element that belongs to the caller."""
        return copy_value(self._find(number)[0])

    def state(self, count: int) -> State:
        """Return the stream's state after `count` elements."""
        return self._find(count - 1)[1] if count else self._start


class _OpenChunk:
    """Elements by their numbers, read a chunk at a time. The last chunk stays in memory."""

    def __init__(self, read_chunk: Callable[[int, int], Chunk]):
        self._read_chunk = read_chunk
        self._first = 0
        """The number of the first element in `_chunk`."""
        self._chunk: Chunk = [], []

    def find(self, number: int, edges: list[int], checksums: list[int]) -> tuple[Any, State]:
        """Return element `number` of the chunks that begin at these edges, and the state after it."""
        if not 0 <= number - self._first < len(self._chunk[0]):
            place = bisect.bisect_right(edges, number) - 1
            self._chunk = self._read_chunk(place, checksums[place])
            self._first = edges[place]
        elements, states = self._chunk
        return elements[number - self._first], states[number - self._first]


class Kept(CachedElements):
    """All elements of a stream that was read to its end.

    Args:
      read_chunk: reads a chunk, by its number and its checksum.
      content: what `Recording.finish` has published.
      index: the bytes of the file that holds this content.
    """

    def __init__(self, read_chunk: Callable[[int, int], Chunk], content: Mapping[str, Any], index: bytes = b""):
        super().__init__(content["start"], content["skipped"])
        self._open = _OpenChunk(read_chunk)
        self._checksums = [checksum for _, checksum in content["chunks"]]
        self._edges = list(itertools.accumulate((size for size, _ in content["chunks"]), initial=0))
        self.index = index
        self.end: State = content["end"]
        """The stream's state once it has ended."""

    def __len__(self) -> int:
        return self._edges[-1]

    def _find(self, number: int) -> tuple[Any, State]:
        return self._open.find(number, self._edges, self._checksums)


class Chunks(abc.ABC):
    """Where the elements of a stream go while it is read."""

    @abc.abstractmethod
    def write(self, number: int, elements: list[Any], states: list[State]) -> int:
        """Keep a chunk, and return its checksum."""

    @abc.abstractmethod
    def read(self, number: int, checksum: int) -> Chunk:
        """Return a chunk that was written. Raise DamagedFile."""

    @abc.abstractmethod
    def publish(self, content: dict[str, Any]) -> None:
        """Let others find the chunks, with this content: all of them are written."""

    @abc.abstractmethod
    def remove(self) -> None:
        """Remove the chunks."""


class Recording(CachedElements):
    """The elements of a stream while it is read, from its start on. A chunk is written when it is large enough.

    The cursor reads elements back from here where it goes back, so that they are not computed twice.
    """

    def __init__(self, chunks: Chunks, start: State):
        super().__init__(start, {})
        self._chunks = chunks
        self._open = _OpenChunk(chunks.read)
        self._checksums: list[int] = []
        """Of the chunks that were written."""
        self._edges = [0]
        """Where the chunks that were written begin, and where the last of them ends."""
        self._unwritten: list[tuple[Any, State]] = []
        """The elements after these chunks, each with the state after it: one list, so that Ctrl-C cannot part them."""
        self._bytes = 0
        """Of the elements in `_unwritten`."""

    def __len__(self) -> int:
        return self._edges[-1] + len(self._unwritten)

    def _find(self, number: int) -> tuple[Any, State]:
        unwritten = number - self._edges[-1]
        return self._unwritten[unwritten] if unwritten >= 0 else self._open.find(number, self._edges, self._checksums)

    def add(self, element: Any, state: State, skipped: list[SkipNote]) -> None:
        """Keep one more element, the state after it, and the elements that were skipped on the way to it."""
        self._record_skips(skipped)
        self._unwritten.append((copy_value(element), state))
        self._bytes += sum(getattr(leaf, "nbytes", 64) for leaf in trees.leaves(element))
        if self._bytes >= CHUNK_BYTES or len(self._unwritten) >= CHUNK_ELEMENTS:
            self._write()

    def finish(self, end: State, skipped: list[SkipNote]) -> None:
        """Publish the recording: the stream has ended, and these elements were skipped after its last one."""
        self._record_skips(skipped)
        if self._unwritten:
            self._write()
        sizes = (high - low for low, high in itertools.pairwise(self._edges))
        chunks = [[size, checksum] for size, checksum in zip(sizes, self._checksums, strict=True)]
        self._chunks.publish({"chunks": chunks, "start": self._start, "end": end, "skipped": self.skipped})

    def abandon(self) -> None:
        """Drop the recording."""
        self._chunks.remove()

    def _record_skips(self, skipped: list[SkipNote]) -> None:
        if skipped:
            self.skipped[len(self)] = list(skipped)

    def _write(self) -> None:
        elements, states = (list(column) for column in zip(*self._unwritten, strict=True))
        checksum = self._chunks.write(len(self._checksums), elements, states)
        checksums, edges, unwritten = [*self._checksums, checksum], [*self._edges, len(self)], []
        # One line without a call: Ctrl-C interrupts before it or after it, and the three always fit together.
        self._checksums, self._edges, self._unwritten, self._bytes = checksums, edges, unwritten, 0


class CacheStore(abc.ABC):
    """Streams kept under the identity of the pipeline that gave them."""

    @abc.abstractmethod
    def find(self, key: str) -> Kept | None:
        """Return the elements of a pipeline; None where it has not been read to its end yet."""

    @abc.abstractmethod
    def forget(self, key: str, kept: Kept) -> None:
        """Remove what `find` returned for this key, because it is damaged."""

    @abc.abstractmethod
    def record(self, key: str, start: State) -> Recording:
        """Start to keep a stream whose state is `start`."""


class CacheMemory(CacheStore):
    """Keeps elements in this process."""

    def __init__(self) -> None:
        self.kept: dict[str, Callable[[], Kept]] = {}

    def find(self, key: str) -> Kept | None:
        make = self.kept.get(key)
        return None if make is None else make()

    def forget(self, key: str, kept: Kept) -> None:
        self.kept.pop(key, None)

    def record(self, key: str, start: State) -> Recording:
        return Recording(_MemoryChunks(self.kept, key), start)

    def __getstate__(self) -> dict[str, Any]:
        return {"kept": {}}  # another process fills a cache of its own


class _MemoryChunks(Chunks):
    def __init__(self, kept: dict[str, Callable[[], Kept]], key: str):
        self._kept, self._key = kept, key
        self._chunks: dict[int, Chunk] = {}

    def write(self, number: int, elements: list[Any], states: list[State]) -> int:
        self._chunks[number] = elements, states
        return 0

    def read(self, number: int, checksum: int) -> Chunk:
        return self._chunks[number]

    def publish(self, content: dict[str, Any]) -> None:
        chunks = self._chunks  # not `self`, which would be kept in a circle with the store
        self._kept.setdefault(self._key, lambda: Kept(lambda number, _: chunks[number], content))

    def remove(self) -> None:
        self._chunks.clear()


class CacheFiles(CacheStore):
    """Keeps elements in a folder, pickled; a folder in it for each pipeline. Read only folders that you trust."""

    def __init__(self, folder: str | os.PathLike[str], options: Mapping[str, Any] | None = None):
        self._folder = folders.open_folder(folder, options)

    def find(self, key: str) -> Kept | None:
        index = f"{key}/{INDEX}"
        try:
            data = self._folder.read(index)
        except FileNotFoundError:
            return None
        try:
            shown = self._folder.shown(index)
            content = checked_files.parse_json(data, shown)
            if content.get("version") != VERSION:
                raise DamagedFile(f"{shown} is of version {content.get('version')}; this one writes {VERSION}.")
        except DamagedFile as error:
            warnings.warn(f"The cache {self._folder.shown(key)} is filled again: {error}", BushelWarning, stacklevel=2)
            self._remove(key, data)
            return None
        # Caches that were written before skipped elements were kept have none. JSON has turned numbers into texts.
        tables = content.get("skipped", {}).items()
        content["skipped"] = {int(place): [(*left_out,) for left_out in some] for place, some in tables}
        under = f"{key}/{content['folder']}/" if "folder" in content else f"{key}/"
        return Kept(functools.partial(_read_chunk, self._folder, under), content, data)

    def forget(self, key: str, kept: Kept) -> None:
        self._remove(key, kept.index)

    def _remove(self, key: str, index: bytes) -> None:
        """Remove a cache, unless another process has filled it again since its index was read."""
        with contextlib.suppress(OSError):
            if self._folder.read(f"{key}/{INDEX}") == index:
                remove_cache(self._folder, key)

    def record(self, key: str, start: State) -> Recording:
        return Recording(_FileChunks(begin(self._folder, key)), start)


class _FileChunks(Chunks):
    """Files of a part of their own, which others find once it is complete."""

    def __init__(self, unfinished: UnfinishedCache):
        self._unfinished = unfinished

    def write(self, number: int, elements: list[Any], states: list[State]) -> int:
        try:
            data = dump_elements((elements, json.dumps(states)))
        except Exception as error:
            add_note(error, "bushel: a cache in files keeps what can be pickled; `cache()` keeps anything, in memory.")
            raise
        self._unfinished.folder.write(_name_chunk(self._unfinished.under, number), data)
        return zlib.crc32(data)

    def read(self, number: int, checksum: int) -> Chunk:
        return _read_chunk(self._unfinished.folder, self._unfinished.under, number, checksum)

    def publish(self, content: dict[str, Any]) -> None:
        self._unfinished.publish({"version": VERSION, **content})

    def remove(self) -> None:
        self._unfinished.remove()


def _name_chunk(under: str, chunk: int) -> str:
    return f"{under}chunk-{chunk:06}.pickle"


def _read_chunk(folder: Folder, under: str, chunk: int, checksum: int) -> Chunk:
    path = folder.shown(_name_chunk(under, chunk))
    try:
        data = folder.read(_name_chunk(under, chunk))
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read ({error}).") from error
    if zlib.crc32(data) != checksum:
        raise DamagedFile(f"{path} is damaged: its {len(data)} bytes do not match their checksum.")
    try:
        elements, states = pickle.loads(data)
        return elements, json.loads(states)
    except Exception as error:  # for example a class that was moved to another module
        raise DamagedFile(f"{path} cannot be unpickled ({type(error).__name__}: {error}).") from error
