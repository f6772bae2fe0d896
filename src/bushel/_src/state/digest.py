"""Digests of parameters, functions and data that are the same in every process and on every machine.

A digest follows what the user's own code reaches: helper functions, globals, attributes, closures, defaults. Libraries
count by name. Line numbers, comments, docstrings, addresses, hash seeds and folders do not count. Nothing of the user's
is executed, and no iterator is consumed.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copyreg
import enum
import functools
import hashlib
import logging
import marshal
import os
import pathlib
import types
import weakref
from typing import Any

import numpy as np

from bushel._src.base.code_inspection import is_users_code
from bushel._src.base.exact_values import remove_padding
from bushel._src.base.state_names import find_name, name_of
from bushel._src.sources import memory_sources
from bushel._src.state.code_reader import CodeReader
from bushel._src.state.digest_notes import Examination, Memo, Notes, Sink, hash_texts, may_read_outside, put
from bushel._src.state.object_contents import (
    FULL_BYTES,
    READS_FILES,
    SAMPLES,
    attributes_of,
    find_description,
    find_inside,
    folder_of,
    is_builtin,
    is_found_by_name,
    is_iterator,
    is_masked,
    is_open_handle,
    is_table,
    is_users_callable,
    names_of_module,
    read_attribute,
    read_content,
    read_table,
    show_int,
    take_samples,
    to_numpy,
)

_SAMPLE_BYTES = 1024
_FULL_PLAIN, _FULL_ELEMENTS = 100_000, 1000
"""A sampled digest reads lists of so many numbers or texts, and of so many other elements, in full."""
_SHORT = 128  # the digests of shorter lists are those of earlier versions
_LARGE = 1 << 20
_READ_OF_FILES = 64 << 20
"""An array that is mapped from a file is read in full up to this size. Beyond it the version of the file counts."""
_DEPTH = 48
_NAMED_OBJECTS = 64
"""Of so many objects, each attribute counts by itself, so that a message can name it."""
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_WEAK = (weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


def digest(*values: Any) -> str:
    """Return a short hexadecimal digest of values, with everything that they hold, and of the functions among them.

    A function counts with what it reads: functions, classes and values of the user's own modules, what those read, and
    so on. Installed libraries count by name.
    """
    return examine(*values).digest


whole_digest = digest


def examine(
    *values: Any, sampled: bool = False, memo: Memo | None = None, name: str = "", class_of: type | None = None
) -> Examination:
    """Return the digest of values, and what it has followed.

    Args:
      *values: anything.
      sampled: of long lists and large arrays, reads samples.
      memo: shares digests of large arrays between several calls.
      name: what the values are called in messages.
      class_of: a class of objects that exist already. Its code counts, and its constructor will not run again.
    """
    reader = _ValueReader(sampled, memo or Memo())
    notes = reader.notes
    root = Sink(name)
    if class_of is not None:
        reader.code.refer_class(root, class_of, constructed=False)
    for value in values:
        notes.guard(root, functools.partial(reader.feed, value=value, depth=0), "value")
    notes.follow()
    found = root.hexdigest()
    if notes.dependencies:
        found = hash_texts("parts", [found, *(f"{part.name}={part.digest}" for part in notes.dependencies)])
    return Examination(
        found,
        notes.dependencies,
        sorted(notes.libraries),
        notes.unseen,
        sorted(notes.outside),
        list(dict.fromkeys(notes.were_sampled)),
    )


@functools.lru_cache(maxsize=4096)
def _name_digest(name: str) -> str:
    return digest(name)


def _key_digest(key: Any) -> str:
    """Return the digest of a key of a mapping. Most keys are names, which come again and again."""
    return _name_digest(key) if type(key) is str else digest(key)


class _ValueReader:
    """Reads values into sinks, and notes what it could not see."""

    def __init__(self, sampled: bool, memo: Memo):
        self.sampled, self.memo = sampled, memo
        self.notes = Notes()
        self.code = CodeReader(self.notes, self.feed)
        self._objects = 0

    def feed(self, sink: Sink, value: Any, depth: int) -> None:
        """Put a value into a sink. An object that cannot be read, whatever its class does, counts by its type."""
        try:
            self._feed(sink, value, depth)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            self.notes.miss(sink, value, f"reading it raises {type(error).__name__}")

    def _feed(self, sink: Sink, value: Any, depth: int) -> None:
        kind = type(value)
        if kind is str and sink.folder and (value + os.sep).startswith(sink.folder):
            put(sink, "beside", value[len(sink.folder) :])
        elif kind is int:
            put(sink, "int", show_int(value))
        elif value is None or kind in (bool, float, complex, str):
            put(sink, kind.__name__, repr(value))
        elif kind in (bytes, bytearray):
            put(sink, kind.__name__, bytes(value))
        elif is_masked(value):
            self._feed_masked(sink, value, depth)
        elif isinstance(value, np.generic):
            self._feed_array(sink, np.asarray(value), depth)
        elif isinstance(value, np.ndarray):
            self._feed_kind_of_array(sink, value, depth)
            self._feed_array(sink, value, depth)
        elif depth > _DEPTH:
            self.notes.refer(
                sink, id(value), value, f"{sink.name}...", "value", lambda inner: self.feed(inner, value, 0)
            )
        elif kind is types.CodeType:
            self.code.feed_code(sink, value, depth)
        elif kind is types.FunctionType:
            self.code.feed_function(sink, value)
        elif isinstance(value, type):
            self.code.feed_class_value(sink, value)
        elif (number := sink.seen(value)) is not None and kind not in (tuple, frozenset):
            put(sink, "seen", str(number))
        else:
            self._feed_other(sink, value, depth)

    def _feed_other(self, sink: Sink, value: Any, depth: int) -> None:
        kind = type(value)
        if isinstance(value, logging.Logger):
            put(sink, "logger")
        elif isinstance(value, enum.Enum):
            put(sink, "enum", f"{name_of(kind)}.{value.name}")
            self.feed(sink, value.value, depth + 1)
            if is_users_code(kind):
                self.code.refer_class(sink, kind)
        elif isinstance(value, (list, tuple, dict, set, frozenset, str, int, float, complex, bytes, bytearray)):
            self._feed_container(sink, value, depth)
        elif isinstance(value, pathlib.PurePath):
            if is_users_code(kind):
                self.code.refer_class(sink, kind, constructed=False)
            put(sink, "path")
            self.feed(sink, pathlib.PurePath.__str__(value), depth + 1)
            self.notes.note_outside(sink, "path")
        elif isinstance(value, types.ModuleType):
            self.code.feed_module(sink, value)
        elif isinstance(value, (np.dtype, range, slice)):
            put(sink, kind.__name__, repr(value))
        elif isinstance(value, types.MappingProxyType):
            put(sink, "proxy")
            self.feed(sink, dict(value), depth + 1)
        elif isinstance(value, _WEAK):
            self.notes.miss(sink, value, "weak references are not followed")
        elif type(value).__name__ == "_Environ" and kind.__module__ == "os":
            self.notes.miss(sink, value, "the environment of the process")
            self.notes.note_outside(sink, "os.environ")
        elif (known := find_description(value)) is not None:
            put(sink, "described")
            self.feed(sink, known, depth + 1)
        elif isinstance(value, functools.partial):
            put(sink, "partial")
            if is_users_code(kind):
                self.code.refer_class(sink, kind, constructed=False)
            self.feed(sink, value.func, depth + 1)
            self.feed(sink, value.args, depth + 1)
            self.feed(sink, value.keywords, depth + 1)
            self.code.feed_attributes(sink, vars(value), depth)
        elif callable(value):
            self._feed_callable(sink, value, depth)
        else:
            self._feed_object(sink, value, depth)

    def _feed_container(self, sink: Sink, value: Any, depth: int) -> None:
        """Python's own containers and subclasses of them, whose methods are not called."""
        kind = type(value)
        if isinstance(value, (list, tuple)):
            base: Any = list if isinstance(value, list) else tuple
            self._feed_sequence(
                sink, value if kind is base else base.__iter__(value), find_name(kind) or kind.__name__, depth
            )
        elif isinstance(value, dict):
            put(sink, "mapping", str(dict.__len__(value)))
            self._feed_entries(sink, value, depth)
        elif isinstance(value, (set, frozenset)):
            self._feed_set(sink, value)
        elif isinstance(value, (bytes, bytearray)):
            put(sink, name_of(kind), bytes(value))
        else:
            plain: Any = next(base for base in (str, int, float, complex) if isinstance(value, base))
            show: Any = show_int if plain is int else plain.__repr__
            put(sink, name_of(kind), show(value))
        if kind not in (list, tuple, dict, set, frozenset):
            if is_users_code(kind):
                self.code.refer_class(sink, kind, constructed=False)
            else:
                put(sink, "kind", name_of(kind))
            self.code.feed_attributes(sink, attributes_of(value), depth)
            if isinstance(value, collections.defaultdict):
                self.feed(sink, value.default_factory, depth + 1)

    def _some(self, sink: Sink, values: Any, most: int) -> Any:
        """Return the elements of a list that are digested: all of them, or samples."""
        if not self.sampled or len(values) <= most:
            return values
        self.notes.were_sampled.append(sink.name)
        last = len(values) - 1
        step = last / (SAMPLES - 1)
        return [values[int(number * step)] for number in range(SAMPLES - 1)] + [values[last]]

    def _feed_sequence(self, sink: Sink, values: Any, kind: str, depth: int) -> None:
        values = values if isinstance(values, (list, tuple)) else list(values)
        put(sink, kind, str(len(values)))
        if len(values) > _SHORT and self._is_plain(values, sink.folder):
            for at in range(0, len(values), 16384):
                put(sink, "plain", marshal.dumps(list(values[at : at + 16384]), 0))
            return
        for value in self._some(sink, values, _FULL_ELEMENTS):
            self.feed(sink, value, depth + 1)

    def _is_plain(self, values: Any, folder: str) -> bool:
        """Return whether values are numbers and texts only, and not too many to read all of them."""
        if self.sampled and len(values) > _FULL_PLAIN:
            return False
        kinds = set(map(type, values))
        if not kinds <= _PLAIN:
            return False
        if (
            folder
            and str in kinds
            and any(type(value) is str and (value + os.sep).startswith(folder) for value in values)
        ):
            return False
        sized = self.sampled and kinds & {str, bytes}
        return not sized or sum(len(value) for value in values if isinstance(value, (str, bytes))) <= FULL_BYTES

    def _feed_entries(self, sink: Sink, mapping: dict[Any, Any], depth: int) -> None:
        """The entries of a dict. Their order counts only in an OrderedDict."""
        entries = list(dict.items(mapping))
        if isinstance(mapping, collections.OrderedDict):
            entries = list(collections.OrderedDict.items(mapping))
            put(sink, "order", ",".join(_key_digest(key) for key, _ in entries))
        keys = [key for key, _ in entries]
        if len(entries) > _SHORT and set(map(type, keys)) in ({str}, {int}, {bytes}):
            entries.sort(key=lambda entry: entry[0])
            self._feed_sequence(sink, [key for key, _ in entries], "keys", depth)
            self._feed_sequence(sink, [value for _, value in entries], "values", depth)
            return
        entries = list(self._some(sink, entries, _FULL_ELEMENTS))
        keyed = [(self._digest_key(key), entry) for key, entry in entries]
        for key, entry in sorted(keyed, key=lambda pair: pair[0]):
            put(sink, "key", key)
            self.feed(sink, entry, depth + 1)

    def _digest_key(self, key: Any) -> str:
        return _name_digest(key) if type(key) is str else self._digest_apart(key)

    def _digest_apart(self, value: Any) -> str:
        """Return the digest of a value by itself, for values that have no order."""
        if type(value) in _PLAIN:
            return digest(value)
        found = examine(value, sampled=self.sampled, memo=self.memo)
        self.notes.libraries.update(found.libraries)
        self.notes.outside.update(found.outside)
        self.notes.unseen.update(found.unseen)
        return found.digest

    def _feed_set(self, sink: Sink, values: Any) -> None:
        if len(values) > _SHORT and set(map(type, values)) in ({str}, {int}, {bytes}):
            self._feed_sequence(sink, sorted(values), type(values).__name__, 0)
            return
        base: Any = set if isinstance(values, set) else frozenset
        put(sink, type(values).__name__, ",".join(sorted(self._digest_apart(entry) for entry in base.__iter__(values))))

    def _feed_array(self, sink: Sink, array: np.ndarray, depth: int) -> None:
        put(sink, "array", f"{array.dtype.str}{array.shape}")
        if array.dtype.hasobject and array.dtype.names is None:
            self._feed_sequence(sink, array.ravel().tolist(), "list", depth + 1)
            return
        parts = remove_padding(array)
        if len(parts) != 1 or parts[0][1] is not array:
            for name, part in parts:
                put(sink, "part", name)
                self._feed_array(sink, part, depth)
        elif array.nbytes <= _LARGE or array.ndim == 0:
            put(sink, "data", np.ascontiguousarray(array).tobytes())
        elif self.sampled and array.nbytes > FULL_BYTES:
            self.notes.were_sampled.append(sink.name)
            for place in np.linspace(0, len(array) - 1, SAMPLES):
                row = np.ascontiguousarray(array[int(place)])
                put(sink, "row", row.tobytes()[:_SAMPLE_BYTES])
        else:
            put(sink, "large", self._digest_array(array))

    def _feed_kind_of_array(self, sink: Sink, array: np.ndarray, depth: int) -> None:
        """What an array is beside its values: a class of the user's own, or a matrix, which multiplies otherwise."""
        kind = type(array)
        if array.ndim == 0:
            put(sink, "array of no dimension")  # and no scalar
        if is_users_code(kind):
            self.code.refer_class(sink, kind, constructed=False)
            self.code.feed_attributes(sink, attributes_of(array), depth)
        elif kind not in (np.ndarray, np.memmap):
            put(sink, "kind", kind.__qualname__)

    def _digest_array(self, array: np.ndarray) -> str:
        known = self.memo.arrays.get(id(array))
        if known is None:
            in_file = memory_sources.pack_array(array)
            large = array.nbytes > _READ_OF_FILES
            if large and isinstance(in_file, memory_sources.InFile) and in_file.version is not None:
                # A part of a file that this process cannot change: the version of the file stands for its values.
                place = [in_file.offset, in_file.shape, in_file.strides]
                known = digest("file", in_file.version, place)
            else:
                hashed = hashlib.blake2b(digest_size=16)
                rows = max(1, (16 << 20) * len(array) // max(1, array.nbytes))
                for low in range(0, len(array), rows):
                    chunk = np.ascontiguousarray(array[low : low + rows])
                    hashed.update(chunk.reshape(-1).view(np.uint8).data)
                known = hashed.hexdigest()
            self.memo.arrays[id(array)] = known
            self.memo.kept.append(array)
        return known

    def _feed_masked(self, sink: Sink, array: Any, depth: int) -> None:
        """Masked elements count as masked, whatever the values under the mask are."""
        put(sink, "masked")
        fill = array._fill_value
        if fill is not None and repr(fill) != repr(np.ma.default_fill_value(array)):  # asking for it sets it
            put(sink, "fill", repr(fill))
        self._feed_array(sink, np.ma.getmaskarray(array), depth)
        self._feed_array(sink, array.filled(np.zeros((), array.dtype)[()]), depth)

    def _feed_callable(self, sink: Sink, value: Any, depth: int) -> None:
        if isinstance(value, types.MethodType):
            put(sink, "method")
            if (owner := find_name(type(value.__self__))) is not None and not is_users_code(value.__func__):
                put(sink, "named", f"{owner}.{value.__name__}")  # a class of ours that has a constant
            else:
                self.feed(sink, value.__func__, depth + 1)
            self.feed(sink, value.__self__, depth + 1)
        elif is_builtin(value):
            self._feed_builtin(sink, value, depth)
        elif not is_users_code(type(value)) and callable(wrapped := read_attribute(value, "__wrapped__")):
            put(sink, "wrapper", type(value).__qualname__)
            if is_found_by_name(value) and not is_users_callable(wrapped):
                self.notes.name_library(sink, value.__module__, value.__qualname__)
                return
            self.feed(sink, wrapped, depth + 1)
            if type(value).__module__.partition(".")[0] != "jaxlib":  # jax.jit keeps its own notes there
                self.code.feed_attributes(sink, attributes_of(value), depth)
        elif not is_users_code(type(value)) and is_found_by_name(value):
            self.notes.name_library(sink, value.__module__, getattr(value, "__qualname__", value.__name__))
        else:
            self._feed_object(sink, value, depth)

    def _feed_builtin(self, sink: Sink, function: Any, depth: int) -> None:
        # Before NumPy 2.2, a ufunc such as np.sin has a name, but no qualified one.
        name = getattr(function, "__name__", type(function).__qualname__)
        module = getattr(function, "__module__", None) or type(function).__module__
        self.notes.name_library(sink, module, getattr(function, "__qualname__", name))
        if isinstance(function, np.ufunc) and name.endswith("(vectorized)"):
            self.feed(sink, find_inside(function), depth + 1)  # np.frompyfunc hides the function inside
        owner = getattr(function, "__self__", None)  # of a method such as {...}.get
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.feed(sink, owner, depth + 1)

    def _feed_object(self, sink: Sink, value: Any, depth: int) -> None:
        kind = type(value)
        put(sink, "object", name_of(kind))
        if is_users_code(kind):
            sink.folder = sink.folder or folder_of(names_of_module(kind))
            self._objects += 1
            self.code.refer_class(sink, kind, constructed=False)
            attributes = attributes_of(value)
            if self._objects <= _NAMED_OBJECTS:
                for name in sorted(attributes):
                    label = f"{sink.name}.{name}" if sink.name else f"{kind.__qualname__}().{name}"
                    self.code.feed_named(sink, (id(value), "attribute", name), label, "attribute", attributes[name])
            elif depth:
                # A part of its own: the objects of a long chain would otherwise lie one inside the other.
                read = functools.partial(self.code.feed_attributes, attributes=attributes, depth=0)
                self.notes.refer(sink, id(value), value, kind.__qualname__ + "()", "object", read)
            else:
                self.code.feed_attributes(sink, attributes, depth)
            content = read_content(value)
            if content is not None:
                put(sink, "content")
                self.feed(sink, content, depth + 1)
            elif not attributes and is_iterator(value):
                self.notes.miss(sink, value, "an iterator would be consumed")
            return
        self._feed_foreign(sink, value, depth)

    def _feed_foreign(self, sink: Sink, value: Any, depth: int) -> None:
        """An object of a library: its attributes, or what pickle would keep of it."""
        kind = type(value)
        top = kind.__module__.partition(".")[0]
        if (content := read_content(value)) is not None:
            self.feed(sink, content, depth + 1)
        elif isinstance(value, memoryview):
            self._feed_array(sink, np.asarray(value), depth)
        elif isinstance(value, contextvars.ContextVar):
            with contextlib.suppress(LookupError):
                self.feed(sink, value.get(), depth + 1)
        elif is_iterator(value) or is_open_handle(value):
            self.notes.miss(sink, value, "an open handle or an iterator, which would be consumed")
        elif top == "typing":
            put(sink, "typing", kind.__name__)
        elif (values := self._sample_table(sink, value, top)) is not None:
            self.feed(sink, values, depth + 1)
        elif top in READS_FILES:
            self.notes.miss(sink, value, "its values lie in files")
        elif hasattr(value, "__array__") and hasattr(value, "dtype"):
            self._feed_array(sink, to_numpy(value), depth)
        else:
            if sink.may_run and may_read_outside(f"{top.lstrip('_')}.{kind.__qualname__}()"):
                self.notes.outside.add(f"{top}.{kind.__qualname__}")
            attributes = attributes_of(value)
            if attributes:
                self.code.feed_attributes(sink, attributes, depth)
            else:
                self._feed_reduced(sink, value, depth)

    def _sample_table(self, sink: Sink, value: Any, top: str) -> Any:
        if self.sampled and is_table(value, top):
            put(sink, "rows", str(len(value)))
            whole, value = value, take_samples(value, top)
            if value is not whole:
                self.notes.were_sampled.append(sink.name)
        return read_table(value, top)

    def _feed_reduced(self, sink: Sink, value: Any, depth: int) -> None:
        """Digest what pickle would keep of an object without attributes, such as a compiled pattern or a date."""
        try:
            reducer = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
        except Exception:  # it cannot be pickled
            if type(value) is not object:
                self.notes.miss(sink, value, "it cannot be pickled")
            return
        if not isinstance(reduced, tuple):
            return
        if getattr(reduced[0], "__name__", "") == "__newobj__" and len(reduced[1]) == 1 and not any(reduced[2:]):
            return  # it has no content
        for number, part in enumerate(reduced[1:]):
            # The fourth and the fifth are iterators over its content, made for this call.
            self.feed(sink, list(part) if number in (2, 3) and part is not None else part, depth + 1)
