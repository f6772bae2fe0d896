"""The handler that puts iterators into checkpoints: one file for each process. It works with Orbax and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bushel.state import files

on_create: list[Callable[[], None]] = []
"""Called before a handler is made: how `bushel.checkpoint`, a higher layer, tells Orbax what the handler takes."""


class CheckpointHandler:
    """Saves and restores iterators inside an Orbax checkpoint, one file for each process.

    Orbax finds it by `CheckpointSave` and `CheckpointRestore`; it works without Orbax too.

    >>> import pathlib, tempfile
    >>> import bushel
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> it = iter(bushel.MapDataset.range(3))
    >>> _ = next(it)
    >>> CheckpointHandler().save(folder, it)
    >>> list(CheckpointHandler().restore(folder, iter(bushel.MapDataset.range(3))))
    [1, 2]
    """

    def __init__(self) -> None:
        for prepare in on_create:
            prepare()

    def save(self, directory: files.Folder, item: Any = None, args: Any = None) -> None:
        """Writes the state of an iterator into a folder."""
        item = _item(item, args)
        files.write(directory, files.texts_of(item))

    def restore(self, directory: files.Folder, item: Any = None, args: Any = None) -> Any:
        """Restores an iterator, lets it begin to work ahead, and returns it."""
        item = _item(item, args)
        files.prepare(directory, item)()
        item.start_prefetch()
        return item

    def structure(self, directory: files.Folder) -> None:
        """Nothing: an iterator has no structure of arrays."""

    def metadata(self, directory: files.Folder) -> None:
        """Nothing: what a state says is in its file."""

    def finalize(self, directory: files.Folder) -> None:
        """Nothing is left to do when all processes have written."""

    def close(self) -> None:
        """Nothing is held."""

    @classmethod
    def typestr(cls) -> str:
        """How Orbax names this handler."""
        return f"{cls.__module__}.{cls.__qualname__}"


def _item(item: Any, args: Any) -> Any:
    found = args.item if item is None and args is not None else item
    if not hasattr(found, "get_state") or not hasattr(found, "set_state"):
        raise TypeError(f"CheckpointHandler takes an iterator with get_state and set_state, got {found!r}.")
    return found
