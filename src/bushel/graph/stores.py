"""Where a cache keeps the elements of a stream: in memory or in files. Only a stream read to its end is kept.

With each element the store keeps the stream's state after it, so that a cursor that reads the cache has a state. The
store also keeps the elements that failed and were skipped, so that they count again when the cache is read.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import os
import pickle
import warnings
import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from bushel.base import sealed, trees
from bushel.base.errors import DamagedFile, add_note
from bushel.base.ownership import copy_value
from bushel.graph.part_folders import INDEX, Part, begin, remove_cache
from bushel.graph.skips import SkipNote
from bushel.graph.state_fields import State
from bushel.sources import output_folders
from bushel.sources.output_folders import Folder

Skipped = dict[int, list[SkipNote]]
"""The elements that were skipped, by the number of elements that the stream had given before."""

CHUNK_BYTES = 4 << 20
CHUNK_ELEMENTS = 4096
VERSION = 2


class Kept(Protocol):
    """All elements of a stream."""

    end: State
    """The stream's state once it has ended."""

    skipped: Skipped
    """The elements that failed and were skipped when the stream was read."""

    def __len__(self) -> int: ...

    def element(self, number: int) -> Any:
        """An element that belongs to the caller."""
        ...

    def state(self, count: int) -> State:
        """The stream's state after `count` elements."""
        ...


class Recording(abc.ABC):
    """The elements of a stream while it is read, from its start on."""

    @abc.abstractmethod
    def add(self, element: Any, state: State, skipped: list[SkipNote]) -> None:
        """Keeps one more element, the state after it, and the elements that were skipped on the way to it."""

    @abc.abstractmethod
    def back_to(self, count: int) -> None:
        """Drops all but the first `count` elements."""

    @abc.abstractmethod
    def finish(self, end: State, skipped: list[SkipNote]) -> None:
        """The stream has ended, and these elements were skipped after its last one: from now on others find it."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """Drops the recording."""


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
        self.kept: dict[str, _InMemory] = {}

    def find(self, key: str) -> Kept | None:
        return self.kept.get(key)

    def forget(self, key: str, kept: Kept) -> None:
        self.kept.pop(key, None)

    def record(self, key: str, start: State) -> Recording:
        return _MemoryRecording(self, key, start)

    def __getstate__(self) -> dict[str, Any]:
        return {"kept": {}}  # another process fills a cache of its own


@dataclasses.dataclass
class _InMemory:
    elements: list[Any]
    states: list[State]
    end: State
    skipped: Skipped

    def __len__(self) -> int:
        return len(self.elements)

    def element(self, number: int) -> Any:
        return copy_value(self.elements[number])

    def state(self, count: int) -> State:
        return self.states[count]


class _MemoryRecording(Recording):
    def __init__(self, store: Memory, key: str, start: State):
        self._store, self._key = store, key
        self._elements: list[Any] = []
        self._states = [start]
        self._skipped: Skipped = {}

    def add(self, element: Any, state: State, skipped: list[SkipNote]) -> None:
        _record_skips(self._skipped, len(self._elements), skipped)
        self._elements.append(copy_value(element))
        self._states.append(state)

    def back_to(self, count: int) -> None:
        del self._elements[count:], self._states[count + 1 :]
        self._skipped = _before(self._skipped, count)

    def finish(self, end: State, skipped: list[SkipNote]) -> None:
        _record_skips(self._skipped, len(self._elements), skipped)
        self._store.kept.setdefault(self._key, _InMemory(self._elements, self._states, end, self._skipped))

    def abandon(self) -> None:
        self._elements, self._states, self._skipped = [], self._states[:1], {}


def _record_skips(table: Skipped, place: int, skipped: list[SkipNote]) -> None:
    if skipped:
        table[place] = list(skipped)


def _before(table: Skipped, count: int) -> Skipped:
    """The entries for elements that were skipped before element number `count`."""
    return {place: skipped for place, skipped in table.items() if place < count}


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
            warnings.warn(f"The cache {self._folder.shown(key)} is filled again: {error}", stacklevel=2)
            self._remove(key, data)
            return None
        # Caches that were written before skipped elements were kept have none.
        tables = content.get("skipped", {}).items()
        skipped = {int(place): [(*left_out,) for left_out in some] for place, some in tables}
        under = f"{key}/{content['folder']}/" if "folder" in content else f"{key}/"
        return _InFiles(self._folder, under, content["chunks"], content["start"], content["end"], skipped, data)

    def forget(self, key: str, kept: Kept) -> None:
        if isinstance(kept, _InFiles):
            self._remove(key, kept.index)

    def _remove(self, key: str, index: bytes) -> None:
        """Removes a cache, unless another process has filled it again since its index was read."""
        with contextlib.suppress(OSError):
            if self._folder.read(f"{key}/{INDEX}") == index:
                remove_cache(self._folder, key)

    def record(self, key: str, start: State) -> Recording:
        return _FileRecording(begin(self._folder, key), start)


class _InFiles:
    def __init__(
        self,
        folder: Folder,
        under: str,
        chunks: list[list[int]],
        start: State,
        end: State,
        skipped: Skipped,
        index: bytes,
    ):
        self._folder, self._under, self._chunks, self._start = folder, under, chunks, start
        self.index = index  # the content of its file, by which it is told from one that was made later
        self._edges = np.cumsum([0] + [count for count, _ in chunks])
        self._open: tuple[int, list[Any], list[State]] = (-1, [], [])
        self.end, self.skipped = end, skipped

    def __len__(self) -> int:
        return int(self._edges[-1])

    def element(self, number: int) -> Any:
        elements, _, place = self._chunk_of(number)
        return copy_value(elements[place])

    def state(self, count: int) -> State:
        if count == 0:
            return self._start
        _, states, place = self._chunk_of(count - 1)
        return states[place]

    def _chunk_of(self, number: int) -> tuple[list[Any], list[State], int]:
        chunk = int(np.searchsorted(self._edges, number, side="right")) - 1
        if self._open[0] != chunk:
            self._open = (chunk, *_read(self._folder, self._under, chunk, self._chunks[chunk][1]))
        return self._open[1], self._open[2], number - int(self._edges[chunk])


class _FileRecording(Recording):
    """Writes into a part of its own, which others find once it is complete."""

    def __init__(self, part: Part, start: State):
        self._part, self._start = part, start
        self._elements: list[Any] = []
        self._states: list[State] = []
        self._bytes = 0
        self._chunks: list[list[int]] = []
        self._skipped: Skipped = {}

    def add(self, element: Any, state: State, skipped: list[SkipNote]) -> None:
        _record_skips(self._skipped, self._count(), skipped)
        self._elements.append(copy_value(element))
        self._states.append(state)
        self._bytes += sum(getattr(leaf, "nbytes", 64) for leaf in trees.leaves(element))
        if self._bytes >= CHUNK_BYTES or len(self._elements) >= CHUNK_ELEMENTS:
            self._flush()

    def _flush(self) -> None:
        try:
            data = pickle.dumps((self._elements, json.dumps(self._states)), protocol=5)
        except Exception as error:
            add_note(error, "bushel: a cache in files keeps what can be pickled; `cache()` keeps anything, in memory.")
            raise
        self._part.folder.write(_name(self._part.under, len(self._chunks)), data)
        self._chunks.append([len(self._elements), zlib.crc32(data)])
        self._elements, self._states, self._bytes = [], [], 0

    def _count(self) -> int:
        return sum(size for size, _ in self._chunks) + len(self._elements)

    def back_to(self, count: int) -> None:
        while sum(size for size, _ in self._chunks) > count:
            _, checksum = self._chunks.pop()
            elements, states = _read(self._part.folder, self._part.under, len(self._chunks), checksum)
            self._elements, self._states = elements + self._elements, states + self._states
        left = count - sum(size for size, _ in self._chunks)
        del self._elements[left:], self._states[left:]
        self._skipped = _before(self._skipped, count)

    def finish(self, end: State, skipped: list[SkipNote]) -> None:
        _record_skips(self._skipped, self._count(), skipped)
        if self._elements:
            self._flush()
        kept = {"chunks": self._chunks, "start": self._start, "end": end, "skipped": self._skipped}
        self._part.publish({"version": VERSION, **kept})

    def abandon(self) -> None:
        self._part.remove()


def _name(under: str, chunk: int) -> str:
    return f"{under}chunk-{chunk:06}.pickle"


def _read(folder: Folder, under: str, chunk: int, checksum: int) -> tuple[list[Any], list[State]]:
    path = folder.shown(_name(under, chunk))
    try:
        data = folder.read(_name(under, chunk))
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read ({error}).") from error
    if zlib.crc32(data) != checksum:
        raise DamagedFile(f"{path} is damaged: its {len(data)} bytes do not match their checksum.")
    try:
        elements, states = pickle.loads(data)
        return elements, json.loads(states)
    except Exception as error:  # for example a class that was moved to another module
        raise DamagedFile(f"{path} cannot be unpickled ({type(error).__name__}: {error}).") from error
