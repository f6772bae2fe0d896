"""Modules that workers could not import: what is defined in them is sent by value, as that of the main module is.

Such a module was loaded from a file by its path, or was made in memory, and stands in `sys.modules` under a name of the
program's choice.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import cloudpickle


def send_by_value(name: Any) -> None:
    """Has cloudpickle send what the module `name` defines by value, if no import would find this module."""
    module = sys.modules.get(name) if isinstance(name, str) and name != "__main__" else None
    if module is not None and not _is_found(name.partition(".")[0], _file(name), tuple(sys.path)):
        cloudpickle.register_pickle_by_value(module)


def _file(name: str) -> str | None:
    """The file of a module that is no part of a package."""
    return None if "." in name else getattr(sys.modules[name], "__file__", None)


@functools.lru_cache(maxsize=4096)
def _is_found(name: str, file: str | None, path: tuple[str, ...]) -> bool:
    """Whether a search for a module or package comes upon one, in this file if it is known. `path` is `sys.path`.

    Parts of a package are left to it: it may make them when it is imported.
    """
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    spec = next((spec for find in finders if find is not None and (spec := find(name, None)) is not None), None)
    if spec is None or file is None or spec.origin is None:
        return spec is not None
    try:
        return os.path.samefile(spec.origin, file)
    except OSError:  # inside an archive, or built in
        return True
