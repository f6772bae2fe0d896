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
import dataclasses
import enum
import functools
import gc
import hashlib
import io
import logging
import marshal
import os
import pathlib
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bushel._src.base.code_inspection import find_build, find_reads, is_users_code, is_users_file, read_behaviour
from bushel._src.base.exact_values import remove_padding
from bushel._src.base.state_names import find_name, list_bases, name_of, rename_keys
from bushel._src.sources import memory_sources
from bushel._src.state import module_files
from bushel._src.state.purity import may_read_outside

_SAMPLES = 64  # elements of a long sequence, or rows of a large array, that a sampled digest reads
_SAMPLE_BYTES = 1024
_FULL_BYTES = 4 << 20
"""A sampled digest reads arrays, and texts in lists, up to this size in full."""
_FULL_PLAIN, _FULL_ELEMENTS = 100_000, 1000
"""A sampled digest reads lists of so many numbers or texts, and of so many other elements, in full."""
_SHORT = 128  # the digests of shorter lists are those of earlier versions
_LARGE = 1 << 20
_READ_OF_FILES = 64 << 20
"""An array that is mapped from a file is read in full up to this size. Beyond it the version of the file counts."""
_DEPTH = 48
_NAMED_OBJECTS = 64
"""Of so many objects, each attribute counts by itself, so that a message can name it."""


@dataclasses.dataclass(frozen=True)
class Dependency:
    """One thing that a digest has followed: a function, a class, a global, an attribute."""

    name: str
    kind: str
    digest: str


@dataclasses.dataclass
class Examination:
    """A digest, and what it saw."""

    digest: str
    parts: list[Dependency]
    libraries: list[str]
    """Functions and classes of libraries, which count by name."""
    unseen: dict[str, str]
    """What counts by its type only, and why: by the name of the part that holds it."""
    outside: list[str]
    """What may read files, time, or anything else that is no part of the program."""
    sampled: list[str]
    """Values of which samples were compared."""


class Memo:
    """Digests of large arrays and functions, kept while one pipeline is identified. No user's code runs meanwhile."""

    def __init__(self) -> None:
        self.arrays: dict[int, str] = {}
        self.functions: dict[int, Examination] = {}
        self.kept: list[Any] = []  # no other object can get the id of an object that is kept


describe: list[Callable[[Any], Any]] = []
"""Functions of higher layers. Each returns plain data that stand for an object it knows, or None."""


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
    reader = _Reader(sampled, memo or Memo())
    root = _Sink(name)
    if class_of is not None:
        reader.refer_class(root, class_of, constructed=False)
    for value in values:
        reader.guard(root, functools.partial(reader.feed, value=value, depth=0), "value")
    reader.follow()
    found = root.hexdigest()
    if reader.parts:
        found = _hash("parts", [found, *(f"{part.name}={part.digest}" for part in reader.parts)])
    return Examination(
        found,
        reader.parts,
        sorted(reader.libraries),
        reader.unseen,
        sorted(reader.outside),
        list(dict.fromkeys(reader.were_sampled)),
    )


def _hash(tag: str, texts: Iterable[str]) -> str:
    hashed = hashlib.blake2b(tag.encode(), digest_size=8)
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        hashed.update(f"{len(raw)}:".encode() + raw)
    return hashed.hexdigest()


class _Sink:
    """A hash, and the objects that went into it. An object that comes again counts by its number, so cycles end."""

    def __init__(self, name: str, may_run: bool = True, folder: str = "") -> None:
        hashed = hashlib.blake2b(digest_size=8)
        self.update, self.hexdigest = hashed.update, hashed.hexdigest
        self.name = name
        self.may_run = may_run
        """Whether code of this part may run once the pipeline is built. The constructor of an object has run before."""
        self.folder = folder
        """The folder of the module that this part comes from. Paths count without it, so that a program may move."""
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # no other object can get the id of an object that is kept

    def seen(self, value: Any) -> int | None:
        number = self._numbers.get(id(value))
        if number is None:
            self._numbers[id(value)] = len(self._kept)
            self._kept.append(value)
        return number


@functools.lru_cache(maxsize=4096)
def _name_digest(name: str) -> str:
    return digest(name)


def _key_digest(key: Any) -> str:
    """Return the digest of a key of a mapping. Most keys are names, which come again and again."""
    return _name_digest(key) if type(key) is str else digest(key)


def _put(sink: _Sink, tag: str, data: bytes | str = b"") -> None:
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    sink.update(f"{tag}:{len(raw)}:".encode() + raw)


_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_CONSTRUCTORS = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__del__", "__repr__"}
_NOT_BEHAVIOUR = {
    "__module__", "__dict__", "__weakref__", "__doc__", "__firstlineno__", "__static_attributes__", "__annotations__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__", "__qualname__",
    "__name__", "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__type_params__",
    "__dataclass_fields__", "__slotnames__", "__dataclass_params__", "__classdictcell__", "__builtins__",
    "__protocol_attrs__", "__pydantic_core_schema__", "__pydantic_serializer__", "__pydantic_validator__",
    "_is_protocol", "_is_runtime_protocol", "__non_callable_proto_members__", "__subclasshook__", "__wrapped__",
}  # fmt: skip
"""Attributes of classes and wrappers that are words, or that Python or pydantic makes from the others."""
_OF_THE_FILE = {
    "__name__", "__file__", "__spec__", "__package__", "__doc__", "__builtins__", "__loader__", "__path__",
    "__cached__",
}  # fmt: skip
_WITHOUT_VALUE = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
_WEAK = (weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)

Job = Callable[["_Sink"], None]


class _Reader:
    """Reads values into sinks, and notes what it could not see."""

    def __init__(self, sampled: bool, memo: Memo):
        self.sampled, self.memo = sampled, memo
        self.parts: list[Dependency] = []
        self.libraries: set[str] = set()
        self.unseen: dict[str, str] = {}
        self.outside: set[str] = set()
        self.were_sampled: list[str] = []
        self._labels: dict[Any, str] = {}
        self._kept: list[Any] = []
        self._counts: dict[str, int] = {}
        self._waiting: collections.deque[tuple[str, str, Job, bool, str]] = collections.deque()
        self._built: collections.deque[tuple[str, str, Job, bool, str]] = collections.deque()
        self._objects = 0

    # Parts: what is followed by itself, so that a message can name it.

    def follow(self) -> None:
        """Digest the parts that were met, and those that they meet."""
        while self._waiting or self._built:
            name, kind, job, may_run, folder = (self._waiting or self._built).popleft()
            sink = _Sink(name, may_run, folder)
            self.guard(sink, job, kind)
            self.parts.append(Dependency(name, kind, sink.hexdigest()))

    def guard(self, sink: _Sink, job: Job, what: str) -> None:
        """Call a job. Whatever an object's class does, a pipeline can run: what cannot be read counts by its type."""
        try:
            job(sink)
        except MemoryError:
            raise
        except Exception as error:
            self.miss(sink, what, f"reading it raises {type(error).__name__}")

    def refer(self, sink: _Sink, key: Any, kept: Any, name: str, kind: str, job: Job, *, may_run: bool = True) -> str:
        """Put the name of a part into a sink. The part itself is digested later, once."""
        label = self._labels.get(key)
        if label is None:
            number = self._counts[name] = self._counts.get(name, 0) + 1
            label = self._labels[key] = name if number == 1 else f"{name}#{number}"
            self._kept.append(kept)
            may_run = may_run and sink.may_run
            (self._waiting if may_run else self._built).append((label, kind, job, may_run, sink.folder))
        _put(sink, "part", label)
        return label

    def miss(self, sink: _Sink, value: Any, why: str) -> None:
        """Note that a value counts by its type only."""
        kind = type(value).__qualname__
        _put(sink, "type", name_of(type(value)))
        self.unseen[sink.name or kind] = f"{kind}: {why}"

    def name_library(self, sink: _Sink, module: str, name: str) -> None:
        """Put the name of something of a library: its package and its own name, without private modules between."""
        top = module.partition(".")[0]
        text = f"{top.lstrip('_')}.{name}"
        _put(sink, "named", text)
        file = getattr(sys.modules.get(top), "__file__", None)
        if top not in sys.stdlib_module_names and isinstance(file, str) and (build := find_build(file, top)):
            self.refer(sink, ("build", top), top, top, "local archive", lambda inner: _put(inner, "build", build))
        self.libraries.add(text)
        if sink.may_run and may_read_outside(text):
            self.outside.add(text)

    def name_class(self, sink: _Sink, kind: type) -> None:
        """Put the name of a class of a library into a sink; of a class of ours, its constant."""
        self.name_library(sink, kind.__module__, name_of(kind))

    # Values.

    def feed(self, sink: _Sink, value: Any, depth: int) -> None:
        """Put a value into a sink. An object that cannot be read, whatever its class does, counts by its type."""
        try:
            self._feed(sink, value, depth)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            self.miss(sink, value, f"reading it raises {type(error).__name__}")

    def _feed(self, sink: _Sink, value: Any, depth: int) -> None:
        kind = type(value)
        if kind is str and sink.folder and (value + os.sep).startswith(sink.folder):
            _put(sink, "beside", value[len(sink.folder) :])
        elif kind is int:
            _put(sink, "int", _show_int(value))
        elif value is None or kind in (bool, float, complex, str):
            _put(sink, kind.__name__, repr(value))
        elif kind in (bytes, bytearray):
            _put(sink, kind.__name__, bytes(value))
        elif _is_masked(value):
            self._feed_masked(sink, value, depth)
        elif isinstance(value, np.generic):
            self._feed_array(sink, np.asarray(value), depth)
        elif isinstance(value, np.ndarray):
            self._feed_kind_of_array(sink, value, depth)
            self._feed_array(sink, value, depth)
        elif depth > _DEPTH:
            self.refer(sink, id(value), value, f"{sink.name}...", "value", lambda inner: self.feed(inner, value, 0))
        elif kind is types.CodeType:
            self._feed_code(sink, value, depth)
        elif kind is types.FunctionType:
            self._feed_function(sink, value)
        elif isinstance(value, type):
            self._feed_class_value(sink, value)
        elif (number := sink.seen(value)) is not None and kind not in (tuple, frozenset):
            _put(sink, "seen", str(number))
        else:
            self._feed_other(sink, value, depth)

    def _feed_other(self, sink: _Sink, value: Any, depth: int) -> None:
        kind = type(value)
        if isinstance(value, logging.Logger):
            _put(sink, "logger")
        elif isinstance(value, enum.Enum):
            _put(sink, "enum", f"{name_of(kind)}.{value.name}")
            self.feed(sink, value.value, depth + 1)
            if is_users_code(kind):
                self.refer_class(sink, kind)
        elif isinstance(value, (list, tuple, dict, set, frozenset, str, int, float, complex, bytes, bytearray)):
            self._feed_container(sink, value, depth)
        elif isinstance(value, pathlib.PurePath):
            if is_users_code(kind):
                self.refer_class(sink, kind, constructed=False)
            _put(sink, "path")
            self.feed(sink, pathlib.PurePath.__str__(value), depth + 1)
            self._note_outside(sink, "path")
        elif isinstance(value, types.ModuleType):
            self._feed_module(sink, value)
        elif isinstance(value, (np.dtype, range, slice)):
            _put(sink, kind.__name__, repr(value))
        elif isinstance(value, types.MappingProxyType):
            _put(sink, "proxy")
            self.feed(sink, dict(value), depth + 1)
        elif isinstance(value, _WEAK):
            self.miss(sink, value, "weak references are not followed")
        elif type(value).__name__ == "_Environ" and kind.__module__ == "os":
            self.miss(sink, value, "the environment of the process")
            self._note_outside(sink, "os.environ")
        elif (known := _describe(value)) is not None:
            _put(sink, "described")
            self.feed(sink, known, depth + 1)
        elif isinstance(value, functools.partial):
            _put(sink, "partial")
            if is_users_code(kind):
                self.refer_class(sink, kind, constructed=False)
            self.feed(sink, value.func, depth + 1)
            self.feed(sink, value.args, depth + 1)
            self.feed(sink, value.keywords, depth + 1)
            self._feed_attributes(sink, vars(value), depth)
        elif callable(value):
            self._feed_callable(sink, value, depth)
        else:
            self._feed_object(sink, value, depth)

    def _feed_container(self, sink: _Sink, value: Any, depth: int) -> None:
        """Python's own containers and subclasses of them, whose methods are not called."""
        kind = type(value)
        if isinstance(value, (list, tuple)):
            base: Any = list if isinstance(value, list) else tuple
            self._feed_sequence(
                sink, value if kind is base else base.__iter__(value), find_name(kind) or kind.__name__, depth
            )
        elif isinstance(value, dict):
            _put(sink, "mapping", str(dict.__len__(value)))
            self._feed_entries(sink, value, depth)
        elif isinstance(value, (set, frozenset)):
            self._feed_set(sink, value)
        elif isinstance(value, (bytes, bytearray)):
            _put(sink, name_of(kind), bytes(value))
        else:
            plain: Any = next(base for base in (str, int, float, complex) if isinstance(value, base))
            show: Any = _show_int if plain is int else plain.__repr__
            _put(sink, name_of(kind), show(value))
        if kind not in (list, tuple, dict, set, frozenset):
            if is_users_code(kind):
                self.refer_class(sink, kind, constructed=False)
            else:
                _put(sink, "kind", name_of(kind))
            self._feed_attributes(sink, attributes_of(value), depth)
            if isinstance(value, collections.defaultdict):
                self.feed(sink, value.default_factory, depth + 1)

    def _some(self, sink: _Sink, values: Any, most: int) -> Any:
        """Return the elements of a list that are digested: all of them, or samples."""
        if not self.sampled or len(values) <= most:
            return values
        self.were_sampled.append(sink.name)
        last = len(values) - 1
        step = last / (_SAMPLES - 1)
        return [values[int(number * step)] for number in range(_SAMPLES - 1)] + [values[last]]

    def _feed_sequence(self, sink: _Sink, values: Any, kind: str, depth: int) -> None:
        values = values if isinstance(values, (list, tuple)) else list(values)
        _put(sink, kind, str(len(values)))
        if len(values) > _SHORT and self._is_plain(values, sink.folder):
            for at in range(0, len(values), 16384):
                _put(sink, "plain", marshal.dumps(list(values[at : at + 16384]), 0))
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
        return not sized or sum(len(value) for value in values if isinstance(value, (str, bytes))) <= _FULL_BYTES

    def _feed_entries(self, sink: _Sink, mapping: dict[Any, Any], depth: int) -> None:
        """The entries of a dict. Their order counts only in an OrderedDict."""
        entries = list(dict.items(mapping))
        if isinstance(mapping, collections.OrderedDict):
            entries = list(collections.OrderedDict.items(mapping))
            _put(sink, "order", ",".join(_key_digest(key) for key, _ in entries))
        keys = [key for key, _ in entries]
        if len(entries) > _SHORT and set(map(type, keys)) in ({str}, {int}, {bytes}):
            entries.sort(key=lambda entry: entry[0])
            self._feed_sequence(sink, [key for key, _ in entries], "keys", depth)
            self._feed_sequence(sink, [value for _, value in entries], "values", depth)
            return
        entries = list(self._some(sink, entries, _FULL_ELEMENTS))
        keyed = [(self._digest_key(key), entry) for key, entry in entries]
        for key, entry in sorted(keyed, key=lambda pair: pair[0]):
            _put(sink, "key", key)
            self.feed(sink, entry, depth + 1)

    def _digest_key(self, key: Any) -> str:
        return _name_digest(key) if type(key) is str else self._digest_apart(key)

    def _digest_apart(self, value: Any) -> str:
        """Return the digest of a value by itself, for values that have no order."""
        if type(value) in _PLAIN:
            return digest(value)
        found = examine(value, sampled=self.sampled, memo=self.memo)
        self.libraries.update(found.libraries)
        self.outside.update(found.outside)
        self.unseen.update(found.unseen)
        return found.digest

    def _feed_set(self, sink: _Sink, values: Any) -> None:
        if len(values) > _SHORT and set(map(type, values)) in ({str}, {int}, {bytes}):
            self._feed_sequence(sink, sorted(values), type(values).__name__, 0)
            return
        base: Any = set if isinstance(values, set) else frozenset
        _put(
            sink, type(values).__name__, ",".join(sorted(self._digest_apart(entry) for entry in base.__iter__(values)))
        )

    # Arrays.

    def _feed_array(self, sink: _Sink, array: np.ndarray, depth: int) -> None:
        _put(sink, "array", f"{array.dtype.str}{array.shape}")
        if array.dtype.hasobject and array.dtype.names is None:
            self._feed_sequence(sink, array.ravel().tolist(), "list", depth + 1)
            return
        parts = remove_padding(array)
        if len(parts) != 1 or parts[0][1] is not array:
            for name, part in parts:
                _put(sink, "part", name)
                self._feed_array(sink, part, depth)
        elif array.nbytes <= _LARGE or array.ndim == 0:
            _put(sink, "data", np.ascontiguousarray(array).tobytes())
        elif self.sampled and array.nbytes > _FULL_BYTES:
            self.were_sampled.append(sink.name)
            for place in np.linspace(0, len(array) - 1, _SAMPLES):
                row = np.ascontiguousarray(array[int(place)])
                _put(sink, "row", row.tobytes()[:_SAMPLE_BYTES])
        else:
            _put(sink, "large", self._digest_array(array))

    def _feed_kind_of_array(self, sink: _Sink, array: np.ndarray, depth: int) -> None:
        """What an array is beside its values: a class of the user's own, or a matrix, which multiplies otherwise."""
        kind = type(array)
        if array.ndim == 0:
            _put(sink, "array of no dimension")  # and no scalar
        if is_users_code(kind):
            self.refer_class(sink, kind, constructed=False)
            self._feed_attributes(sink, attributes_of(array), depth)
        elif kind not in (np.ndarray, np.memmap):
            _put(sink, "kind", kind.__qualname__)

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

    def _feed_masked(self, sink: _Sink, array: Any, depth: int) -> None:
        """Masked elements count as masked, whatever the values under the mask are."""
        _put(sink, "masked")
        fill = array._fill_value
        if fill is not None and repr(fill) != repr(np.ma.default_fill_value(array)):  # asking for it sets it
            _put(sink, "fill", repr(fill))
        self._feed_array(sink, np.ma.getmaskarray(array), depth)
        self._feed_array(sink, array.filled(np.zeros((), array.dtype)[()]), depth)

    # Functions.

    def _feed_function(self, sink: _Sink, function: types.FunctionType) -> None:
        name = function.__qualname__
        if is_users_code(function) or function.__code__.co_filename.startswith("<doctest "):
            self.refer(
                sink, id(function), function, name, "function", lambda inner: self._read_function(inner, function)
            )
        elif (constant := find_name(function)) is not None:
            self.name_library(sink, "bushel", constant)
        elif _is_found_by_name(function):
            self.name_library(sink, function.__module__, name)
        elif hasattr(function, "registry") and hasattr(function, "dispatch"):  # functools.singledispatch
            registry: Any = vars(function)["registry"]
            entries = sorted(((kind.__qualname__, each) for kind, each in registry.items()), key=lambda entry: entry[0])
            _put(sink, "dispatch", str(len(entries)))
            for kind, each in entries:
                _put(sink, "for", kind)
                self.feed(sink, each, 0)
        else:  # made by a function of a library, such as jax.vmap: what it was made from counts
            key = id(function)
            self.refer(sink, key, function, name, "wrapper", lambda inner: self._read_wrapper(inner, function))

    def _read_wrapper(self, sink: _Sink, function: types.FunctionType) -> None:
        self.name_library(sink, function.__globals__.get("__name__") or "", function.__code__.co_qualname)
        self._read_cells(sink, function)
        for value in (function.__defaults__, function.__kwdefaults__):
            self.feed(sink, value, 1)
        wrapped = vars(function).get("__wrapped__")
        if wrapped is not None:
            self.feed(sink, wrapped, 1)

    def _read_function(self, sink: _Sink, function: types.FunctionType) -> None:
        sink.folder = _folder_of(function.__globals__)
        self._feed_code(sink, function.__code__, 0)
        defaults, names = function.__defaults__ or (), function.__code__.co_varnames[: function.__code__.co_argcount]
        for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            self._feed_named(
                sink, (id(function), "default", name), f"{function.__qualname__}({name}=...)", "default", value
            )
        for name, value in sorted((function.__kwdefaults__ or {}).items()):
            self._feed_named(
                sink, (id(function), "default", name), f"{function.__qualname__}({name}=...)", "default", value
            )
        self._read_cells(sink, function)
        for name, value in sorted(vars(function).items()):
            if name == "__wrapped__":
                self.feed(sink, value, 1)
            elif name not in _NOT_BEHAVIOUR:
                self._feed_named(sink, (id(function), name), f"{function.__qualname__}.{name}", "attribute", value)
        self._read_globals(sink, function.__code__, function.__globals__)

    def _read_cells(self, sink: _Sink, function: types.FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # a cell that is still empty
                _put(sink, "empty", name)
                continue
            if name == "__class__" and isinstance(value, type) and sink.name.startswith(f"{value.__qualname__}."):
                _put(sink, "class", "its own")  # of a method that calls super(): its class is read anyway
                self.refer_class(sink, value, constructed=False)
                continue
            self._feed_named(sink, id(cell), name, "closure", value)

    def _feed_named(self, sink: _Sink, key: Any, name: str, kind: str, value: Any) -> None:
        """A value that has a name: a part of its own, unless it is a function or class, which has a name itself."""
        _put(sink, "name", name.rpartition(".")[2])
        if issubclass(type(value), (types.FunctionType, type, types.ModuleType)) or _is_builtin(value):
            self.feed(sink, value, 1)
        else:
            self.refer(sink, key, value, name, kind, lambda inner: self.feed(inner, value, 1))

    def _read_globals(self, sink: _Sink, code: types.CodeType, names: dict[str, Any]) -> None:
        reads = find_reads(code)
        found: dict[str, tuple[Any, Any]] = {}
        for path in reads.paths:
            name, *rest = path
            if name not in names:
                if sink.may_run and may_read_outside(f"builtins.{name}"):
                    self.outside.add(name)
                continue  # a built-in, or not there yet
            if name in _OF_THE_FILE:
                continue
            found.setdefault(*self._resolve(sink, names, name, rest))
        for name, (key, value) in sorted(found.items()):
            self._read_global(sink, key, name, value, names)
        for module, level, taken in reads.imports:
            self._read_import(sink, module, level, taken, names)

    def _resolve(self, sink: _Sink, names: dict[str, Any], name: str, rest: list[str]) -> tuple[str, tuple[Any, Any]]:
        """Return the value at the end of a path of names, as far as it can be told without running anything of the
        user's.
        """
        value, key, path = names[name], (id(names), name), name
        while rest:
            holder = value
            if isinstance(holder, types.ModuleType):
                if not _is_users_module(holder):
                    return ".".join((path, *rest)), (key, _Named(holder.__name__, ".".join(rest)))
                if rest[0] not in vars(holder):
                    break
                value = vars(holder)[rest[0]]
            elif isinstance(holder, type) or not _has_plain_attribute(holder, rest[0]):
                break
            else:
                value = vars(holder)[rest[0]]
            key, path = (id(vars(holder)), rest[0]), f"{path}.{rest.pop(0)}"
            self._kept.append(holder)
        return path, (key, value)

    def _read_global(self, sink: _Sink, key: Any, name: str, value: Any, names: dict[str, Any]) -> None:
        _put(sink, "global", name)
        if type(value) is _Named:
            self.name_library(sink, value.module, value.name)
        elif issubclass(type(value), (types.FunctionType, type, types.ModuleType)) or _is_builtin(value):
            self.feed(sink, value, 1)
        else:
            self.refer(sink, key, value, name, "global", lambda inner: self.feed(inner, value, 0))

    def _read_import(self, sink: _Sink, module: str, level: int, taken: tuple[str, ...], names: dict[str, Any]) -> None:
        """A module that a function imports when it runs: the code of the whole module counts if it is the user's."""
        for name in module_files.list_modules(module, level, taken, names):
            own = module_files.find_users_module(name)
            if own is None:
                self.name_library(sink, name, "")
            else:
                self._refer_module(sink, own)

    def _refer_module(self, sink: _Sink, own: module_files.UsersModule) -> None:
        def read(inner: _Sink) -> None:
            code = own.code
            if code is None:
                self.miss(inner, own, "its source cannot be read")
                return
            self._feed_code(inner, code, 0)
            for module, level, taken in find_reads(code).imports:
                self._read_import(inner, module, level, taken, {"__package__": own.package, "__name__": own.name})

        self._note_outside(sink, f"import {own.name}")
        self.refer(sink, ("module", own.name), own, f"module {own.name.rpartition('.')[2]}", "module", read)

    def _feed_module(self, sink: _Sink, module: types.ModuleType) -> None:
        is_own_module = _is_users_module(module)
        own = module_files.find_users_module(module.__name__) if is_own_module else None
        if is_own_module and own is None:  # it was made at run time
            attributes = {name: value for name, value in vars(module).items() if not name.startswith("__")}
            read = functools.partial(self._feed_attributes, attributes=attributes, depth=0)
            self.refer(sink, id(module), module, "module", "module", read)
        elif own is None:
            _put(sink, "module", module.__name__.partition(".")[0])
            self.libraries.add(module.__name__)
            if sink.may_run and may_read_outside(f"{module.__name__}."):
                self.outside.add(module.__name__)
        else:
            self._refer_module(sink, own)

    def _feed_code(self, sink: _Sink, code: types.CodeType, depth: int) -> None:
        behaviour = read_behaviour(code)
        _put(sink, "code", behaviour.instructions)
        _put(sink, "names", repr(behaviour.names))
        for constant in behaviour.constants:
            self.feed(sink, constant, depth + 1)

    def _feed_callable(self, sink: _Sink, value: Any, depth: int) -> None:
        if isinstance(value, types.MethodType):
            _put(sink, "method")
            if (owner := find_name(type(value.__self__))) is not None and not is_users_code(value.__func__):
                _put(sink, "named", f"{owner}.{value.__name__}")  # a class of ours that has a constant
            else:
                self.feed(sink, value.__func__, depth + 1)
            self.feed(sink, value.__self__, depth + 1)
        elif _is_builtin(value):
            self._feed_builtin(sink, value, depth)
        elif not is_users_code(type(value)) and callable(wrapped := _read_attribute(value, "__wrapped__")):
            _put(sink, "wrapper", type(value).__qualname__)
            if _is_found_by_name(value) and not _is_users_callable(wrapped):
                self.name_library(sink, value.__module__, value.__qualname__)
                return
            self.feed(sink, wrapped, depth + 1)
            if type(value).__module__.partition(".")[0] != "jaxlib":  # jax.jit keeps its own notes there
                self._feed_attributes(sink, attributes_of(value), depth)
        elif not is_users_code(type(value)) and _is_found_by_name(value):
            self.name_library(sink, value.__module__, getattr(value, "__qualname__", value.__name__))
        else:
            self._feed_object(sink, value, depth)

    def _feed_builtin(self, sink: _Sink, function: Any, depth: int) -> None:
        # Before NumPy 2.2, a ufunc such as np.sin has a name, but no qualified one.
        name = getattr(function, "__name__", type(function).__qualname__)
        module = getattr(function, "__module__", None) or type(function).__module__
        self.name_library(sink, module, getattr(function, "__qualname__", name))
        if isinstance(function, np.ufunc) and name.endswith("(vectorized)"):
            self.feed(sink, _find_inside(function), depth + 1)  # np.frompyfunc hides the function inside
        owner = getattr(function, "__self__", None)  # of a method such as {...}.get
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.feed(sink, owner, depth + 1)

    # Classes and objects.

    def _feed_class_value(self, sink: _Sink, kind: type) -> None:
        if is_users_code(kind):
            self.refer_class(sink, kind)
        else:
            self.name_class(sink, kind)

    def refer_class(self, sink: _Sink, kind: type, *, constructed: bool = True) -> None:
        """The code and the attributes of a user's class and its bases.

        With `constructed`, code may make objects of this class later, so its constructor may still run.
        """
        for base in list_bases(kind):
            if is_users_code(base):
                self.refer(
                    sink, id(base), base, base.__qualname__, "class", functools.partial(self._read_class, kind=base)
                )
                if constructed and sink.may_run:
                    self._construct(base)
            elif base is not object:
                self.name_class(sink, base)

    def _construct(self, kind: type) -> None:
        for name in _CONSTRUCTORS:
            function = vars(kind).get(name)
            if isinstance(function, types.FunctionType) and is_users_code(function):
                for path in find_reads(function.__code__).paths:
                    self._note_construction(function, path)

    def _note_construction(self, function: types.FunctionType, path: tuple[str, ...]) -> None:
        """Note what a constructor reads that may still run. It is followed by name only, one step far."""
        value = function.__globals__.get(path[0])
        if path[0] not in function.__globals__:
            text = f"builtins.{path[0]}"
        elif isinstance(value, types.ModuleType) and not _is_users_module(value):
            text = f"{value.__name__.partition('.')[0]}.{'.'.join(path[1:])}"
        elif isinstance(value, types.FunctionType) and is_users_code(value):
            text = "builtins.open"  # what it calls is not known here
        else:
            return
        if may_read_outside(text):
            self.outside.add(f"{function.__qualname__} reads {'.'.join(path)}")

    def _read_class(self, sink: _Sink, kind: type) -> None:
        sink.folder = _folder_of(_names_of_module(kind))
        if type(kind) is not type and is_users_code(type(kind)):
            self.refer_class(sink, type(kind))
        for name, field in vars(kind).get("__dataclass_fields__", {}).items():
            if field.metadata:
                _put(sink, "metadata", name)
                self.feed(sink, dict(field.metadata), 1)
        members = vars(kind)
        if issubclass(kind, enum.Enum):
            for member in kind.__members__.values():
                _put(sink, "member", member.name)
                self.feed(sink, member.value, 1)
            members = {name: value for name, value in members.items() if isinstance(value, _FUNCTIONS)}
            members = {name: value for name, value in members.items() if is_users_code(_function_of(value) or kind)}
        for name, value in sorted(members.items()):
            if name in _NOT_BEHAVIOUR or isinstance(value, _WITHOUT_VALUE) or name.startswith("_abc_"):
                continue
            if type(value).__name__ == "_tuplegetter":  # a field of a named tuple
                continue
            self._read_member(sink, kind, name, value)

    def _read_member(self, sink: _Sink, kind: type, name: str, value: Any) -> None:
        _put(sink, "member", name)
        parts = [value]
        if not is_users_code(type(value)):
            inner = [
                _read_attribute(value, part) for part in ("__func__", "fget", "fset", "fdel", "func", "dispatcher")
            ]
            found = [part for part in inner if part is not None]
            if isinstance(value, functools.partialmethod):
                found += [value.args, value.keywords]
            if isinstance(value, (staticmethod, classmethod, property)) or found:
                _put(sink, "kind", type(value).__name__)
                parts = found or [value]
        for part in parts:
            if isinstance(part, types.FunctionType):
                label = f"{kind.__qualname__}.{name}"
                may_run = name not in _CONSTRUCTORS
                if is_users_code(part):
                    read = functools.partial(self._read_function, function=part)
                    self.refer(sink, id(part), part, label, "method", read, may_run=may_run)
                else:
                    self.feed(sink, part, 1)
            else:
                self._feed_named(
                    sink, (id(kind), name, id(part)), f"{kind.__qualname__}.{name}", "class attribute", part
                )

    def _feed_object(self, sink: _Sink, value: Any, depth: int) -> None:
        kind = type(value)
        _put(sink, "object", name_of(kind))
        if is_users_code(kind):
            sink.folder = sink.folder or _folder_of(_names_of_module(kind))
            self._objects += 1
            self.refer_class(sink, kind, constructed=False)
            attributes = attributes_of(value)
            if self._objects <= _NAMED_OBJECTS:
                for name in sorted(attributes):
                    label = f"{sink.name}.{name}" if sink.name else f"{kind.__qualname__}().{name}"
                    self._feed_named(sink, (id(value), "attribute", name), label, "attribute", attributes[name])
            elif depth:
                # A part of its own: the objects of a long chain would otherwise lie one inside the other.
                read = functools.partial(self._feed_attributes, attributes=attributes, depth=0)
                self.refer(sink, id(value), value, kind.__qualname__ + "()", "object", read)
            else:
                self._feed_attributes(sink, attributes, depth)
            content = _read_base(value)
            if content is not None:
                _put(sink, "content")
                self.feed(sink, content, depth + 1)
            elif not attributes and is_iterator(value):
                self.miss(sink, value, "an iterator would be consumed")
            return
        self._feed_foreign(sink, value, depth)

    def _feed_foreign(self, sink: _Sink, value: Any, depth: int) -> None:
        """An object of a library: its attributes, or what pickle would keep of it."""
        kind = type(value)
        top = kind.__module__.partition(".")[0]
        if (content := _read_base(value)) is not None:
            self.feed(sink, content, depth + 1)
        elif isinstance(value, memoryview):
            self._feed_array(sink, np.asarray(value), depth)
        elif isinstance(value, contextvars.ContextVar):
            with contextlib.suppress(LookupError):
                self.feed(sink, value.get(), depth + 1)
        elif is_iterator(value) or isinstance(value, _OPEN):
            self.miss(sink, value, "an open handle or an iterator, which would be consumed")
        elif top == "typing":
            _put(sink, "typing", kind.__name__)
        elif (values := self._read_table(sink, value, top)) is not None:
            self.feed(sink, values, depth + 1)
        elif top in _READS_FILES:
            self.miss(sink, value, "its values lie in files")
        elif hasattr(value, "__array__") and hasattr(value, "dtype"):
            self._feed_array(sink, _to_numpy(value), depth)
        else:
            if sink.may_run and may_read_outside(f"{top.lstrip('_')}.{kind.__qualname__}()"):
                self.outside.add(f"{top}.{kind.__qualname__}")
            attributes = attributes_of(value)
            if attributes:
                self._feed_attributes(sink, attributes, depth)
            else:
                self._feed_reduced(sink, value, depth)

    def _read_table(self, sink: _Sink, value: Any, top: str) -> Any:
        if self.sampled and _is_table(value, top):
            _put(sink, "rows", str(len(value)))
            whole, value = value, _take_samples(value, top)
            if value is not whole:
                self.were_sampled.append(sink.name)
        return _read_table(value, top)

    def _feed_attributes(self, sink: _Sink, attributes: dict[str, Any], depth: int) -> None:
        for name in sorted(attributes, key=str):
            if name not in _NOT_BEHAVIOUR:
                _put(sink, "field", str(name))
                self.feed(sink, attributes[name], depth + 1)

    def _feed_reduced(self, sink: _Sink, value: Any, depth: int) -> None:
        """Digest what pickle would keep of an object without attributes, such as a compiled pattern or a date."""
        try:
            reducer = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
        except Exception:  # it cannot be pickled
            if type(value) is not object:
                self.miss(sink, value, "it cannot be pickled")
            return
        if not isinstance(reduced, tuple):
            return
        if getattr(reduced[0], "__name__", "") == "__newobj__" and len(reduced[1]) == 1 and not any(reduced[2:]):
            return  # it has no content
        for number, part in enumerate(reduced[1:]):
            # The fourth and the fifth are iterators over its content, made for this call.
            self.feed(sink, list(part) if number in (2, 3) and part is not None else part, depth + 1)

    def _note_outside(self, sink: _Sink, name: str) -> None:
        if sink.may_run:
            self.outside.add(name)


@dataclasses.dataclass(frozen=True)
class _Named:
    """An attribute of a module of a library."""

    module: str
    name: str


_READS_FILES = {"h5py", "zarr", "tensorstore", "dask", "netCDF4", "h5netcdf", "tables", "lance", "tiledb", "blosc2"}
"""Libraries whose arrays are read when they are asked for their values: a terabyte, perhaps."""
_FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)


def _open_types() -> tuple[type, ...]:
    import _thread
    import threading

    locks = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, _thread._local)
    return (io.IOBase, *locks, threading.Thread, types.GeneratorType, types.FrameType, types.CoroutineType)


class _Open(type):
    """Stands for the types of handles, which are looked up when they are first needed."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _list_open_types())


@functools.cache
def _list_open_types() -> tuple[type, ...]:
    return _open_types()


class _OPEN(metaclass=_Open):
    pass


def _show_int(value: int) -> str:
    """Its digits. Python refuses to write very large numbers in decimal."""
    return int.__repr__(value) if int.bit_length(value) <= 2048 else hex(value)


def _read_base(value: Any) -> Any:
    """Return what a type written in C keeps for an object, or for one of a class that inherits from it; None if
    unknown.
    """
    kind = type(value)
    if issubclass(kind, (io.BytesIO, io.StringIO)):
        base: Any = io.BytesIO if issubclass(kind, io.BytesIO) else io.StringIO
        return base.getvalue(value)
    if issubclass(kind, collections.deque):
        return [object.__getattribute__(value, "maxlen"), list(collections.deque.__iter__(value))]
    if issubclass(kind, BaseException):
        return [object.__getattribute__(value, "args"), dict(object.__getattribute__(value, "__dict__"))]
    for base in kind.__mro__:
        name = f"{base.__module__.lstrip('_')}.{base.__qualname__}"
        if name in _CONTENTS:
            return _CONTENTS[name](value, base)
    return None


_CONTENTS: dict[str, Callable[[Any, Any], Any]] = {
    "array.array": lambda value, base: [base.typecode.__get__(value), memoryview(value).tobytes()],
    "ctypes._CData": lambda value, base: base.__reduce__(value)[1][1],  # an error if it holds addresses
    "datetime.date": lambda value, base: base.__reduce__(value)[1:],
    "datetime.datetime": lambda value, base: base.__reduce_ex__(value, 4)[1:],
    "datetime.time": lambda value, base: base.__reduce_ex__(value, 4)[1:],
    "datetime.timedelta": lambda value, base: base.__reduce__(value)[1:],
    "decimal.Decimal": lambda value, base: base.__reduce__(value)[1:],
    "functools.KeyWrapper": lambda value, base: _find_inside(value),
    "struct.Struct": lambda value, base: base.format.__get__(value),
    "jaxlib._jax.pytree.PyTreeDef": lambda value, base: [value.node_data(), value.children()],
}
"""By type, how to read what it keeps. No method of a class of the user's own is called."""


def _find_inside(value: Any) -> list[Any]:
    """Return the objects that an object written in C holds, but its type."""
    return [inside for inside in gc.get_referents(value) if inside is not type(value)]


def is_iterator(value: Any) -> bool:
    """Return whether reading an object would consume it."""
    kind = type(value)
    return hasattr(kind, "__next__") and hasattr(kind, "__iter__")


def _is_masked(value: Any) -> bool:
    """Return whether a value is a masked array.

    Before anyone has loaded numpy.ma, which takes 10 ms, no value can be one.
    """
    return "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray)


def _is_builtin(function: Any) -> bool:
    return isinstance(function, (types.BuiltinFunctionType, types.MethodDescriptorType, np.ufunc)) or (
        type(function).__module__ == "builtins"
        and type(function).__name__ in ("method-wrapper", "wrapper_descriptor", "classmethod_descriptor")
    )


def _is_users_module(module: types.ModuleType) -> bool:
    return is_users_code(types.FunctionType(_EMPTY, vars(module)))


_EMPTY = compile("", "", "exec")


def _is_users_callable(value: Any) -> bool:
    while not isinstance(value, types.FunctionType):
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType):
            value = value.__func__
        elif (inner := _read_attribute(value, "__wrapped__")) is not None:
            value = inner
        else:
            return is_users_code(type(value)) and not _is_builtin(value)
    return is_users_code(value)


def _is_found_by_name(value: Any) -> bool:
    """Return whether an object of a library is what its module has under its name, and was not made for the user.

    `functools.wraps` gives a wrapper the name and the module of the user's function. So the module must be a library's.
    """
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    module = getattr(value, "__module__", None) or ""
    found: Any = sys.modules.get(module)
    if found is None or is_users_file(module, getattr(found, "__file__", None)):
        return False
    for part in name.split(".") if isinstance(name, str) else [""]:
        found = getattr(found, part, None) if found is not None else None
    return found is value


def _read_attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _has_plain_attribute(holder: Any, name: str) -> bool:
    """Return whether `holder.name` is an entry of its `__dict__`, and nothing runs when it is read."""
    kind = type(holder)
    return (
        (kind is types.SimpleNamespace or kind.__getattribute__ is object.__getattribute__)
        and name in getattr(holder, "__dict__", {})
        and not any(name in vars(base) and hasattr(vars(base)[name], "__set__") for base in kind.__mro__)
        and _describe(holder) is None
    )


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes that an object has, without running anything of its class; of ours, by the keys of
    states.
    """
    kind = type(value)
    attributes = dict(value.__dict__) if isinstance(getattr(value, "__dict__", None), dict) else {}
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, functools.cached_property):
                attributes.pop(name, None)  # it follows from the others, and may not be computed yet
            elif isinstance(member, types.MemberDescriptorType) and not name.startswith("__"):
                try:
                    attributes.setdefault(name, member.__get__(value))
                except (AttributeError, TypeError):
                    continue
    return rename_keys(kind, attributes)


def _function_of(member: Any) -> Any:
    for part in ("__func__", "fget", "func"):
        if hasattr(member, part):
            return getattr(member, part)
    return member if isinstance(member, types.FunctionType) else None


def _names_of_module(kind: type) -> dict[str, Any]:
    """Return the names of the module of a class. A class of a script has a method or two that know them."""
    methods = [member for member in vars(kind).values() if isinstance(member, types.FunctionType)]
    loaded = sys.modules.get(kind.__module__)
    return methods[0].__globals__ if methods else {} if loaded is None else vars(loaded)


def _folder_of(names: dict[str, Any]) -> str:
    """Return the folder of a module with a separator after it; nothing if the module has no file."""
    file = names.get("__file__")
    if not isinstance(file, str):
        return ""
    folder = os.path.dirname(os.path.abspath(file))
    return "" if folder == os.sep else folder + os.sep


def _describe(value: Any) -> Any:
    for function in describe:
        found = function(value)
        if found is not None:
            return found
    return None


def is_in_memory(value: Any) -> bool:
    """Return whether an object of a library is an array or a table in memory."""
    top = type(value).__module__.lstrip("_").partition(".")[0]
    if top in ("jax", "jaxlib", "numpy", "torch"):
        return hasattr(value, "__array__") and hasattr(value, "dtype")
    return isinstance(value, (collections.deque, collections.UserList)) or top == "array" or _is_table(value, top)


def _is_table(value: Any, top: str) -> bool:
    name = type(value).__name__
    if top == "pyarrow":
        return name in ("Table", "RecordBatch") or all(hasattr(value, each) for each in ("type", "to_pylist", "slice"))
    if top == "pandas":
        return hasattr(value, "to_numpy")
    return top == "polars" and name in ("DataFrame", "Series")


def _take_samples(table: Any, top: str) -> Any:
    """Return some rows of a large table, for a sampled digest; the table itself if it is small."""
    if top == "pandas":
        size: Any = table.memory_usage()
        small, rows = np.sum(size) <= _FULL_BYTES, getattr(table, "iloc", table)
    elif top == "polars":
        small, rows = table.estimated_size() <= _FULL_BYTES, table
    else:
        small, rows = table.nbytes <= _FULL_BYTES, None
    if small:
        return table
    places = np.linspace(0, len(table) - 1, _SAMPLES).astype(int).tolist()
    return table.take(places) if rows is None else rows[places]


def _read_table(value: Any, top: str) -> Any:
    """Return the values of a table in memory of pandas, polars or pyarrow; None for anything else."""
    if not _is_table(value, top):
        return None
    name = type(value).__name__
    if top == "pandas" and name == "DataFrame":
        return [
            list(value.columns),
            _read_pandas(value.index),
            [_read_pandas(value.iloc[:, n]) for n in range(value.shape[1])],
        ]
    if top == "pandas" and name == "Series":
        return [value.name, _read_pandas(value.index), _read_pandas(value)]
    if top == "pandas" and hasattr(value, "to_numpy"):
        return _read_pandas(value)
    if top == "polars" and name in ("DataFrame", "Series"):
        value = value.to_arrow()
        top, name = "pyarrow", type(value).__name__
    if top == "pyarrow" and name in ("Table", "RecordBatch"):
        return [str(value.schema.remove_metadata()), [_read_arrow(column) for column in value.columns]]
    if top == "pyarrow" and hasattr(value, "type") and hasattr(value, "to_pylist") and hasattr(value, "slice"):
        return _read_arrow(value)
    return None


def _read_pandas(column: Any) -> list[Any]:
    kind = column.dtype  # of categories, the values do not say the codes
    known = [kind.categories.to_numpy(), kind.ordered] if hasattr(kind, "categories") else str(kind)
    return [known, column.to_numpy()]


def _read_arrow(column: Any) -> list[bytes]:
    """Return the values of a column in Arrow's format, cut in pieces of one size, so that chunks and slices do not
    count.
    """
    import pyarrow  # the column is one of its objects

    pieces = []
    for at in range(0, max(1, len(column)), 1 << 16):
        piece = column.slice(at, 1 << 16)
        piece = piece.combine_chunks() if isinstance(piece, pyarrow.ChunkedArray) else piece
        if isinstance(piece, pyarrow.ChunkedArray):
            piece = pyarrow.concat_arrays(piece.chunks) if piece.num_chunks else pyarrow.array([], piece.type)
        piece = pyarrow.concat_arrays([piece, piece.slice(0, 0)])
        batch = pyarrow.record_batch([piece], names=["values"])
        pieces.append(batch.serialize().to_pybytes())
    return pieces


def _to_numpy(value: Any) -> np.ndarray:
    """Return an array of JAX or PyTorch in memory of this process."""
    if hasattr(value, "detach"):  # PyTorch
        value = value.detach().cpu().contiguous()
        try:
            return np.asarray(value)
        except TypeError:  # a type that NumPy does not know, such as bfloat16
            import torch  # type: ignore[import-not-found]  # the value is one of its arrays

            return np.asarray(value.view(torch.uint8))
    try:
        return np.asarray(value)
    except TypeError:
        from jax import random  # keys for random numbers

        return np.asarray(random.key_data(value))
