"""Notes what a digest has followed, part by part, what it could not see, and what may read outside the program."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

from bushel._src.base.code_inspection import find_build
from bushel._src.base.state_names import name_of


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


class Sink:
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
        """Return the number of an object that went into this hash before; None for a new one, which gets the next
        number.
        """
        number = self._numbers.get(id(value))
        if number is None:
            self._numbers[id(value)] = len(self._kept)
            self._kept.append(value)
        return number


def put(sink: Sink, tag: str, data: bytes | str = b"") -> None:
    """Add a tag and data to a hash. The length of the data stands between them, so that nothing runs together."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    sink.update(f"{tag}:{len(raw)}:".encode() + raw)


def hash_texts(tag: str, texts: Iterable[str]) -> str:
    """Return the digest of several texts."""
    hashed = hashlib.blake2b(tag.encode(), digest_size=8)
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        hashed.update(f"{len(raw)}:".encode() + raw)
    return hashed.hexdigest()


PutContent = Callable[[Sink], None]


class Notes:
    """The parts that a digest follows, each once, and what it could not see."""

    def __init__(self) -> None:
        self.dependencies: list[Dependency] = []
        self.libraries: set[str] = set()
        self.unseen: dict[str, str] = {}
        self.outside: set[str] = set()
        self.were_sampled: list[str] = []
        self._labels: dict[Any, str] = {}
        self._kept: list[Any] = []  # no other object can get the id of an object that is kept
        self._counts: dict[str, int] = {}
        self._waiting: collections.deque[tuple[str, str, PutContent, bool, str]] = collections.deque()
        self._built: collections.deque[tuple[str, str, PutContent, bool, str]] = collections.deque()

    def follow(self) -> None:
        """Digest the parts that were met, and those that they meet."""
        while self._waiting or self._built:
            name, kind, job, may_run, folder = (self._waiting or self._built).popleft()
            sink = Sink(name, may_run, folder)
            self.guard(sink, job, kind)
            self.dependencies.append(Dependency(name, kind, sink.hexdigest()))

    def guard(self, sink: Sink, job: PutContent, what: str) -> None:
        """Call a job. Whatever an object's class does, a pipeline can run: what cannot be read counts by its type."""
        try:
            job(sink)
        except MemoryError:
            raise
        except Exception as error:
            self.miss(sink, what, f"reading it raises {type(error).__name__}")

    def refer(
        self, sink: Sink, key: Any, kept: Any, name: str, kind: str, job: PutContent, *, may_run: bool = True
    ) -> str:
        """Put the name of a part into a sink. The part itself is digested later, once."""
        label = self._labels.get(key)
        if label is None:
            number = self._counts[name] = self._counts.get(name, 0) + 1
            label = self._labels[key] = name if number == 1 else f"{name}#{number}"
            self._kept.append(kept)
            may_run = may_run and sink.may_run
            (self._waiting if may_run else self._built).append((label, kind, job, may_run, sink.folder))
        put(sink, "part", label)
        return label

    def keep(self, value: Any) -> None:
        """Keep an object alive, so that its id stays its own."""
        self._kept.append(value)

    def miss(self, sink: Sink, value: Any, why: str) -> None:
        """Note that a value counts by its type only."""
        kind = type(value).__qualname__
        put(sink, "type", name_of(type(value)))
        self.unseen[sink.name or kind] = f"{kind}: {why}"

    def name_library(self, sink: Sink, module: str, name: str) -> None:
        """Put the name of something of a library: its package and its own name, without private modules between."""
        top = module.partition(".")[0]
        text = f"{top.lstrip('_')}.{name}"
        put(sink, "named", text)
        file = getattr(sys.modules.get(top), "__file__", None)
        if top not in sys.stdlib_module_names and isinstance(file, str) and (build := find_build(file, top)):
            self.refer(sink, ("build", top), top, top, "local archive", lambda inner: put(inner, "build", build))
        self.libraries.add(text)
        if sink.may_run and may_read_outside(text):
            self.outside.add(text)

    def name_class(self, sink: Sink, kind: type) -> None:
        """Put the name of a class of a library into a sink; of a class of ours, its constant."""
        self.name_library(sink, kind.__module__, name_of(kind))

    def note_outside(self, sink: Sink, name: str) -> None:
        """Note what may read outside the program, if code of this part may still run."""
        if sink.may_run:
            self.outside.add(name)


# Which functions of libraries could read something outside the program: files, time, networks, chance. Data of a
# user's own source are known without a `fingerprint` if its attributes are values in memory and its code calls
# nothing else. What is not listed here counts as reading.

_IMPURE_BUILTINS = {
    "open", "__import__", "exec", "eval", "compile", "input", "globals", "locals", "breakpoint", "memoryview", "id",
    "__loader__", "__spec__", "__file__",
}  # fmt: skip
_PURE_PACKAGES = {
    "abc", "bisect", "cmath", "collections", "copy", "dataclasses", "decimal", "enum", "fractions", "functools",
    "heapq", "itertools", "jax", "jaxlib", "json", "math", "numbers", "numpy", "operator", "re", "statistics", "string",
    "struct", "textwrap", "types", "typing", "typing_extensions", "zlib", "base64", "hashlib", "datetime",
}  # fmt: skip
_IMPURE_NAMES = {
    "load", "loads_from", "fromfile", "memmap", "loadtxt", "genfromtxt", "fromregex", "DataSource", "open_memmap",
    "random", "now", "today", "utcnow", "io_callback", "pure_callback", "callback", "file_digest", "ctypeslib",
}  # fmt: skip
"""Parts of names in these packages that read files, time or chance."""
_PURE_BUSHEL = {
    "MapDataset", "IterDataset", "DatasetIterator", "RandomAccessDataSource", "ShapeDtypeStruct", "Dataset",
    "MapPipeline", "IterPipeline", "StateMismatch", "ArrayDataSource", "RaggedDataSource",
}  # fmt: skip
_PURE_BASES = {"torch.Dataset", "torch.IterableDataset", "torch.Generic", "grain.RandomAccessDataSource"}


def may_read_outside(name: str) -> bool:
    """Return whether a function or class of a library may read files, time, networks or chance.

    >>> may_read_outside("numpy.mean"), may_read_outside("numpy.load"), may_read_outside("h5py.File")
    (False, True, True)
    """
    package, _, rest = name.partition(".")
    parts = rest.removesuffix("()").split(".")
    if package == "builtins":
        return bool(_IMPURE_BUILTINS & set(parts))
    if package == "bushel":
        return not set(parts) & _PURE_BUSHEL and not rest.startswith("transforms")
    return name not in _PURE_BASES and (package not in _PURE_PACKAGES or bool(_IMPURE_NAMES & set(parts)))
