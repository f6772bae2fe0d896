"""Which functions a configuration file may name. Importing any other function would run code of the file's author."""

from __future__ import annotations

import importlib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bushel._src.base.public import find_module
from bushel._src.trajectory.module_spec import SPEC_KEYS
from bushel._src.trajectory.oxe.entry_points import PROJECTS, load_tables

_REFERENCE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")
_DOORS = (
    "bushel.trajectory",
    *(f"bushel.trajectory.{name}" for name in ("data_utils", "goal_relabeling", "obs_transforms", "traj_transforms")),
)
"""Public modules whose functions a file may name, if they are defined in one of the modules of `_PURE`."""
_PURE = {
    f"bushel._src.trajectory.{name}"
    for name in (
        "augmentations",
        "data_utils",
        "goal_relabeling",
        "normalization",
        "obs_transforms",
        "traj_transforms",
        "oxe.special_transforms",
    )
}
"""Our own modules whose functions every file may name: they only compute, and read or write no files."""
_TABLES = {f"bushel.trajectory.oxe.{project}": project for project in PROJECTS}


def check_references(content: Any, path: str, modules: Sequence[str]) -> None:
    """Raises ValueError for a configuration that names a function outside `modules` and our own transforms.

    Args:
      content: the content of the file.
      path: the path of the file, for the error.
      modules: packages and modules that the caller trusts, such as "my_robots".
    """
    for module, name in _find_references(content):
        trusted = any(module == known or module.startswith(f"{known}.") for known in modules)
        if not trusted and not _is_own_transform(module, name):
            raise ValueError(
                f"{path} names the function {module}:{name}, which would be imported and called. If you trust the "
                f"file, say so in your code: MixtureConfig.from_file({path!r}, modules=[{module.partition('.')[0]!r}])."
            )


def _is_own_transform(module: str, name: str) -> bool:
    if module in _TABLES and name in load_tables(_TABLES[module]).functions:
        return True
    if module not in (*_DOORS, *_TABLES):
        return False
    # A name with dots is refused, since getattr does not find it: it could lead to another module.
    function = getattr(importlib.import_module(module), name, None)
    return isinstance(function, types.FunctionType) and find_module(function) in _PURE


def _find_references(content: Any) -> Iterator[tuple[str, str]]:
    """Module and name of each function that a configuration names."""
    if isinstance(content, str):
        if match := _REFERENCE.fullmatch(content):
            yield match[1], match[2]
    elif isinstance(content, Mapping):
        if set(content) == SPEC_KEYS:
            yield str(content["module"]), str(content["name"])
        for value in content.values():
            yield from _find_references(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _find_references(value)
