"""Iterators in Orbax checkpoints, beside model and optimizer, under Grain's names."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from bushel.state.handler import CheckpointHandler, on_create

if TYPE_CHECKING:
    from bushel.orbax import CheckpointRestore, CheckpointSave

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave"]


def __getattr__(name: str) -> Any:
    # Orbax is large: it is loaded when it is used.
    if name in ("CheckpointRestore", "CheckpointSave"):
        from bushel import orbax

        return getattr(orbax, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register_with_orbax() -> None:
    """Tells Orbax which arguments the handler takes, in a program that has loaded Orbax."""
    if sys.modules.get("orbax.checkpoint") is not None:
        __getattr__("CheckpointSave")


on_create.append(_register_with_orbax)
