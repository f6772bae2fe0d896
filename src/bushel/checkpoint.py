"""Iterators in Orbax checkpoints, beside model and optimizer, under Grain's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bushel.state.handler import CheckpointHandler

if TYPE_CHECKING:
    from bushel.orbax import CheckpointRestore, CheckpointSave

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave"]


def __getattr__(name: str) -> Any:
    # Orbax is large: it is loaded when it is used.
    if name in ("CheckpointRestore", "CheckpointSave"):
        from bushel import orbax

        return getattr(orbax, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
