"""The handler that saves iterators in checkpoints, one file per process. It works with Orbax and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bushel._src.base.public import public
from bushel._src.state import files

on_create: list[Callable[[], None]] = []
"""Called before a handler is made: how `bushel.checkpoint`, a higher layer, tells Orbax what the handler takes."""


@public("bushel.checkpoint")
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
        item = _find_iterator(item, args)
        files.write(directory, files.texts_of(item))

    def restore(self, directory: files.Folder, item: Any = None, args: Any = None, *, check: bool = True) -> Any:
        """Restores an iterator, starts its prefetch, and returns it.

        Args:
          directory: the folder of the item in a checkpoint.
          item: the iterator to restore.
          args: what Orbax passes: a `CheckpointRestore`, which has the iterator and `check`.
          check: False also restores the state of another pipeline, as far as its form fits.
        """
        by_orbax = item is None and args is not None
        item = _find_iterator(item, args)
        if by_orbax:
            check = getattr(args, "check", True)
        restore = files.prepare(directory, item, check=check)
        with files.restored_by(f"check=False to {'CheckpointRestore' if by_orbax else 'restore'}"):
            restore()
        item.start_prefetch()
        return item

    def structure(self, directory: files.Folder) -> None:
        """Returns None: the state of an iterator holds no arrays."""

    def metadata(self, directory: files.Folder) -> None:
        """Returns None: all metadata is in the file of the state."""

    def finalize(self, directory: files.Folder) -> None:
        """Does nothing. Orbax calls it when all processes have written."""

    def close(self) -> None:
        """Does nothing: the handler holds no resources."""

    @classmethod
    def typestr(cls) -> str:
        """The name of this handler in Orbax, which its checkpoints hold. It is a constant, wherever the class lies."""
        return "bushel.checkpoint.CheckpointHandler"


def _find_iterator(item: Any, args: Any) -> Any:
    iterator = args.item if item is None and args is not None else item
    if not hasattr(iterator, "get_state") or not hasattr(iterator, "set_state"):
        raise TypeError(
            f"CheckpointHandler takes an iterator with get_state and set_state, got {iterator!r}. Of a dataset, save "
            "`it = iter(ds)`."
        )
    return iterator
