"""Which functions of libraries could read something outside the program: files, time, networks, chance.

Data of a user's own source are known without a `fingerprint` if its attributes are values in memory and its code calls
nothing else. What is not listed here counts as reading.
"""

from __future__ import annotations

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
