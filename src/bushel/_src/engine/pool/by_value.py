"""Modules that workers could not import. Whatever such a module defines is sent by value, as is the main module.

The program has loaded such a module from a file by its path, or has made it in memory, and has put it into
`sys.modules` under a name of its own choice.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import cloudpickle


def send_by_value(name: Any) -> None:
    """Makes cloudpickle send what module `name` defines by value, if no import would find the module."""
    module = sys.modules.get(name) if isinstance(name, str) and name != "__main__" else None
    if module is not None and not _is_importable(name.partition(".")[0], _get_file(name), tuple(sys.path)):
        cloudpickle.register_pickle_by_value(module)


def _get_file(name: str) -> str | None:
    """The file of a top-level module; None for a module inside a package."""
    return None if "." in name else getattr(sys.modules[name], "__file__", None)


@functools.lru_cache(maxsize=4096)
def _is_importable(name: str, file: str | None, path: tuple[str, ...]) -> bool:
    """Whether an import of a top-level module or package would find it, in `file` if that is known.

    `path` is `sys.path`; it is an argument so that the cache forgets its answers when the path changes. Modules inside
    a package are not searched for: the package may create them when it is imported.
    """
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    spec = next((spec for find in finders if find is not None and (spec := find(name, None)) is not None), None)
    if spec is None or file is None or spec.origin is None:
        return spec is not None
    try:
        # Another file of the same name is another module: a worker would import the wrong one.
        return os.path.samefile(spec.origin, file)
    except OSError:  # a module inside a zip archive, or one that is built in, has no file to compare
        return True
