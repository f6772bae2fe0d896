"""Iterators in Orbax checkpoints, beside model and optimizer, under Grain's names."""

import typing as _typing

from bushel._src.base.doors import open_door as _open_door

if _typing.TYPE_CHECKING:
    from bushel._src.loaders.checkpoint import CheckpointHandler
    from bushel._src.loaders.orbax import CheckpointRestore, CheckpointSave

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave"]

_MODULES = {
    "loaders.checkpoint": "CheckpointHandler",
    "loaders.orbax": "CheckpointRestore CheckpointSave",
}

if not _typing.TYPE_CHECKING:  # Orbax is large: it is loaded when it is used
    __getattr__, __dir__ = _open_door(__name__, __all__, _MODULES)
