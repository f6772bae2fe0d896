"""Where a cache keeps the elements of a stream: in memory or in files. Only a stream read to its end is kept.

With each element the store keeps the stream's state after it, so that a cursor that reads the cache has a state. The
store also keeps the elements that failed and were skipped, so that they count again when the cache is read.
"""

from __future__ import annotations

import abc
import bisect
import contextlib
import functools
import itertools
import json
import os
import pickle
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from bushel._src.base import sealed, trees
from bushel._src.base.errors import BushelWarning, DamagedFile, add_note
from bushel._src.base.ownership import copy_value
from bushel._src.base.pickling import dump_elements
from bushel._src.graph.part_folders import INDEX, Part, begin, remove_cache
from bushel._src.graph.skips import SkipNote
from bushel._src.graph.state_fields import State
from bushel._src.sources import output_folders
from bushel._src.sources.output_folders import Folder

Skipped = dict[int, list[SkipNote]]
"""The elements that were skipped, by the number of elements that the stream had given before."""

CHUNK_BYTES = 4 << 20
CHUNK_ELEMENTS = 4096
VERSION = 2


Chunk = tuple[list[Any], list[State]]
"""Some elements of a stream, and the stream's state after each of them."""


class Elements(abc.ABC):
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
        """An element as it is kept, and the state after it. Raises DamagedFile."""

    def element(self, number: int) -> Any:
        """An element that belongs to the caller."""
        return copy_value(self._find(number)[0])

    def state(self, count: int) -> State:
        """The stream's state after `count` elements."""
        return self._find(count - 1)[1] if count else self._start


class _OpenChunk:
    """Elements by their numbers, read a chunk at a time. The last chunk stays in memory."""

    def __init__(self, read_chunk: Callable[[int, int], Chunk]):
        self._read_chunk = read_chunk
        self._first = 0
        """The number of the first element in `_chunk`."""
        self._chunk: Chunk = [], []

    def find(self, number: int, edges: list[int], checksums: list[int]) -> tuple[Any, State]:
        """Element `number` of the chunks that begin at these edges, and the state after it."""
        if not 0 <= number - self._first < len(self._chunk[0]):
            place = bisect.bisect_right(edges, number) - 1
            self._chunk = self._read_chunk(place, checksums[place])
            self._first = edges[place]
        elements, states = self._chunk
        return elements[number - self._first], states[number - self._first]


class Kept(Elements):
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
        """Keeps a chunk, and returns its checksum."""

    @abc.abstractmethod
    def read(self, number: int, checksum: int) -> Chunk:
        """Returns a chunk that was written. Raises DamagedFile."""

    @abc.abstractmethod
    def publish(self, content: dict[str, Any]) -> None:
        """Lets others find the chunks, with this content: all of them are written."""

    @abc.abstractmethod
    def remove(self) -> None:
        """Removes the chunks."""


class Recording(Elements):
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
        """Keeps one more element, the state after it, and the elements that were skipped on the way to it."""
        self._record_skips(skipped)
        self._unwritten.append((copy_value(element), state))
        self._bytes += sum(getattr(leaf, "nbytes", 64) for leaf in trees.leaves(element))
        if self._bytes >= CHUNK_BYTES or len(self._unwritten) >= CHUNK_ELEMENTS:
            self._write()

    def finish(self, end: State, skipped: list[SkipNote]) -> None:
        """Publishes the recording: the stream has ended, and these elements were skipped after its last one."""
        self._record_skips(skipped)
        if self._unwritten:
            self._write()
        sizes = (high - low for low, high in itertools.pairwise(self._edges))
        chunks = [[size, checksum] for size, checksum in zip(sizes, self._checksums, strict=True)]
        self._chunks.publish({"chunks": chunks, "start": self._start, "end": end, "skipped": self.skipped})

    def abandon(self) -> None:
        """Drops the recording."""
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


class Store(abc.ABC):
    """Streams kept under the identity of the pipeline that gave them."""

    @abc.abstractmethod
    def find(self, key: str) -> Kept | None:
        """The elements of a pipeline; None where it has not been read to its end yet."""

    @abc.abstractmethod
    def forget(self, key: str, kept: Kept) -> None:
        """Removes what `find` returned for this key, because it is damaged."""

    @abc.abstractmethod
    def record(self, key: str, start: State) -> Recording:
        """Starts to keep a stream whose state is `start`."""


class Memory(Store):
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


class Files(Store):
    """Keeps elements in a folder, pickled; a folder in it for each pipeline. Read only folders that you trust."""

    def __init__(self, folder: str | os.PathLike[str], options: Mapping[str, Any] | None = None):
        self._folder = output_folders.open_folder(folder, options)

    def find(self, key: str) -> Kept | None:
        index = f"{key}/{INDEX}"
        try:
            data = self._folder.read(index)
        except FileNotFoundError:
            return None
        try:
            shown = self._folder.shown(index)
            content = sealed.parse_json(data, shown)
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
        """Removes a cache, unless another process has filled it again since its index was read."""
        with contextlib.suppress(OSError):
            if self._folder.read(f"{key}/{INDEX}") == index:
                remove_cache(self._folder, key)

    def record(self, key: str, start: State) -> Recording:
        return Recording(_FileChunks(begin(self._folder, key)), start)


class _FileChunks(Chunks):
    """Files of a part of their own, which others find once it is complete."""

    def __init__(self, part: Part):
        self._part = part

    def write(self, number: int, elements: list[Any], states: list[State]) -> int:
        try:
            data = dump_elements((elements, json.dumps(states)))
        except Exception as error:
            add_note(error, "bushel: a cache in files keeps what can be pickled; `cache()` keeps anything, in memory.")
            raise
        self._part.folder.write(_name_chunk(self._part.under, number), data)
        return zlib.crc32(data)

    def read(self, number: int, checksum: int) -> Chunk:
        return _read_chunk(self._part.folder, self._part.under, number, checksum)

    def publish(self, content: dict[str, Any]) -> None:
        self._part.publish({"version": VERSION, **content})

    def remove(self) -> None:
        self._part.remove()


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
