"""The handler of iterators in checkpoints, which tells Orbax about itself in a program that has loaded Orbax."""

from __future__ import annotations

import importlib
import sys

from bushel._src.state.checkpoint_files import CheckpointHandler, on_create

__all__ = ["CheckpointHandler"]


def _register_with_orbax() -> None:
    if sys.modules.get("orbax.checkpoint") is not None:
        importlib.import_module("bushel._src.loaders.orbax")


on_create.append(_register_with_orbax)
