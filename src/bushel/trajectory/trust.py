"""Which functions a configuration file may name: to import what a file from elsewhere names would run its code."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_REFERENCE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")
_PURE = ("augmentations", "goal_relabeling", "normalization", "obs_transforms", "traj_transforms")
"""Our own modules whose functions every file may name: they compute, and touch no file."""
_SPEC_KEYS = {"module", "name", "args", "kwargs"}


def check_references(content: Any, path: str, modules: Sequence[str]) -> None:
    """Refuses a configuration that names a function outside of `modules` and of our own transforms.

    Args:
      content: what the file holds.
      path: of the file, for the error.
      modules: packages and modules that the caller trusts, such as "my_robots".
    """
    for module, name in _references(content):
        trusted = any(module == known or module.startswith(f"{known}.") for known in modules)
        if not trusted and not _is_own_transform(module, name):
            raise ValueError(
                f"{path} names the function {module}:{name}, which would be imported and called. If you trust the "
                f"file, say so in your code: MixtureConfig.from_file({path!r}, modules=[{module.partition('.')[0]!r}])."
            )


def _is_own_transform(module: str, name: str) -> bool:
    if module not in {f"bushel.trajectory.{part}" for part in _PURE}:
        return False
    found = getattr(importlib.import_module(module), name, None)  # no dots: names inside of names lead elsewhere
    return getattr(found, "__module__", None) == module


def _references(content: Any) -> Iterator[tuple[str, str]]:
    """Module and name of everything in a configuration that names a function."""
    if isinstance(content, str):
        if found := _REFERENCE.fullmatch(content):
            yield found[1], found[2]
    elif isinstance(content, Mapping):
        if set(content) == _SPEC_KEYS:
            yield str(content["module"]), str(content["name"])
        for value in content.values():
            yield from _references(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _references(value)
