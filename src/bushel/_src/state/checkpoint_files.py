"""States in files, one file per process, and the handler that saves iterators in checkpoints.

The files have the names that Orbax and Grain use: `process_0-of-1.json`. It works with Orbax and without.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from bushel._src.base.errors import StateMismatch
from bushel._src.base.options import ShardOptions, jax_process
from bushel._src.base.public import public
from bushel._src.state.state_forms import parse_state

Folder = Any
"""A path, of pathlib or etils, that exists."""

Later = Coroutine[Any, Any, None]
"""Work that Orbax does in the background."""


SHARD_INDEX, SHARD_COUNT = "shard_index", "shard_count"
"""Entries of a state that say which host has saved it, for iterators whose state fits no other one."""

_SHARD = "shard_state_{}.json"


class AwaitingCreation(Protocol):
    """A folder that Orbax creates in the background."""

    async def await_creation(self) -> Folder:
        """Wait until the folder exists, and return its path."""
        ...


def file_name() -> str:
    """Return the name of the file of this process."""
    index, count = jax_process()
    return f"process_{index}-of-{count}.json"


def as_text(state: Any) -> str:
    """Return a state of an iterator as the text of its file."""
    return state.decode() if isinstance(state, bytes) else json.dumps(state)


def texts_of(iterator: Any) -> dict[str, str]:
    """Return the texts of an iterator's files, by the names of the files."""
    texts = {file_name(): as_text(iterator.get_state())}
    if getattr(iterator, "_has_shard_states", False):
        states = iterator.get_shard_states()
        texts |= {_SHARD.format(number): as_text(state) for number, state in states.items()}
    return texts


def write(folder: Folder, texts: dict[str, str]) -> None:
    """Write the files of this process. Orbax renames the folder when all processes have written their files."""
    for name, text in texts.items():
        (folder / name).write_text(text)


def prepare(folder: Folder, iterator: Any, *, check: bool = True) -> Callable[[], None]:
    """Read the state of an iterator, and return the function that restores it.

    Raises ValueError where there is none. With `check=False` the function also restores the state of another pipeline.
    """
    if getattr(iterator, "_has_shard_states", False):
        states = _read_shards(folder, iterator.shard_options)
        if states is not None:
            return lambda: iterator.set_shard_states(states, check=check)
    text = read(folder, any_process=getattr(iterator, "_same_on_all_processes", False))

    def restore() -> None:
        # A DataLoader's iterator has its states as bytes, as in Grain.
        state = text.encode() if isinstance(iterator.get_state(), bytes) else parse_state(text)
        if check:
            iterator.set_state(state)
        else:
            set_unchecked_state(iterator, state)

    return restore


def set_unchecked_state(iterator: Any, state: Any) -> None:
    """`iterator.set_state(state, check=False)`, also of a user's iterator, which may have no such argument."""
    try:
        has_check = "check" in inspect.signature(iterator.set_state).parameters
    except (TypeError, ValueError):  # written in C
        has_check = False
    if has_check:
        iterator.set_state(state, check=False)
    else:
        iterator.set_state(state)


class restored_by:
    """A `with` block in which a call of the user's restores a state.

    `set_state` says how to restore a state without the check. The user has called another function, so a StateMismatch
    that is raised in the block names the argument of that function instead.

    >>> with restored_by("check=False to CheckpointRestore"):
    ...     raise StateMismatch("Pass check=False to set_state to restore it anyway.")
    Traceback (most recent call last):
    bushel.StateMismatch: Pass check=False to CheckpointRestore to restore it anyway.
    """

    def __init__(self, advice: str):
        self._advice = advice

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, StateMismatch):
            error.args = (_SET_STATE.sub(self._advice, error.args[0]),)


_SET_STATE = re.compile(r"check=False to set_(shard_)?states?\b")


def _read_shards(folder: Folder, shard: ShardOptions) -> dict[int, Any] | None:
    """Return the states of the shards that a host reads, by number.

    None where the file of this process was saved by the same host of as many, or where no shard has a file: then that
    file is to be restored, which also holds the order in which the shards take turns.
    """
    path = folder / file_name()
    if path.exists():
        state = parse_state(_text(path))
        saved_by = state.get(SHARD_INDEX), state.get(SHARD_COUNT)
        if saved_by in ((shard.shard_index, shard.shard_count), (None, None)):
            return None
    named = ((re.fullmatch(_SHARD.format(r"(\d{1,18})"), path.name), path) for path in folder.iterdir())
    paths = {int(match[1]): path for match, path in named if match}
    mine = sorted(number for number in paths if number % shard.shard_count == shard.shard_index)
    return {number: parse_state(_text(paths[number])) for number in mine} if paths else None


def read(folder: Folder, *, any_process: bool = False) -> str:
    """Return the state of this process; of any, where it is the same on all of them and this one has none.

    Raises ValueError where there is none.
    """
    path = folder / file_name()
    if path.exists():
        return _text(path)
    others = sorted(path for path in folder.iterdir() if path.name.startswith("process_") and path.suffix == ".json")
    if others and any_process:
        text = _text(others[0])
        if text != _text(others[-1]):
            raise ValueError(
                f"{others[0]} and {others[-1].name} differ, so each process that saved them had a position of its own. "
                "Restore them with as many processes and the same pipeline as they were saved with."
            )
        return text
    there = ", ".join(path.name for path in others)
    raise ValueError(
        f"File {path} does not exist. "
        + (
            f"There are {there}: this was saved by another number of processes, each with a position of its own. "
            "Restore with as many, or use an ElasticIterator or `to_device` with a sharding over all processes: their "
            "states fit any number."
            if others
            else "The folder holds no state of an iterator."
        )
    )


def _text(path: Any) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise StateMismatch(f"{path} is not the state of an iterator: it is not text ({error}).") from None


async def write_later(directory: AwaitingCreation, texts: dict[str, str]) -> None:
    """Write files whose texts were taken before, once their folder is there."""
    import asyncio  # whoever awaits this has loaded it; `import bushel` need not

    folder = await directory.await_creation()
    await asyncio.to_thread(write, folder, texts)


async def restore_later(directory: Folder, iterator: Any) -> None:
    """Read the state of an iterator in another thread, and restores it in this one."""
    import asyncio

    restore = await asyncio.to_thread(prepare, directory, iterator)
    with restored_by("check=False to bushel.checkpoint.CheckpointHandler().restore(folder, iterator)"):
        restore()


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

    def save(self, directory: Folder, item: Any = None, args: Any = None) -> None:
        """Write the state of an iterator into a folder."""
        item = _find_iterator(item, args)
        write(directory, texts_of(item))

    def restore(self, directory: Folder, item: Any = None, args: Any = None, *, check: bool = True) -> Any:
        """Restore an iterator, starts its prefetch, and return it.

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
        restore = prepare(directory, item, check=check)
        with restored_by(f"check=False to {'CheckpointRestore' if by_orbax else 'restore'}"):
            restore()
        item.start_prefetch()
        return item

    def structure(self, directory: Folder) -> None:
        """Return None: the state of an iterator holds no arrays."""

    def metadata(self, directory: Folder) -> None:
        """Return None: all metadata is in the file of the state."""

    def finalize(self, directory: Folder) -> None:
        """Do nothing. Orbax calls it when all processes have written."""

    def close(self) -> None:
        """Do nothing: the handler holds no resources."""

    @classmethod
    def typestr(cls) -> str:
        """Return the name of this handler in Orbax, which its checkpoints hold.

        It is a constant, wherever the class lies.
        """
        return "bushel.checkpoint.CheckpointHandler"


def _find_iterator(item: Any, args: Any) -> Any:
    iterator = args.item if item is None and args is not None else item
    if not hasattr(iterator, "get_state") or not hasattr(iterator, "set_state"):
        raise TypeError(
            f"CheckpointHandler takes an iterator with get_state and set_state, got {iterator!r}. Of a dataset, save "
            "`it = iter(ds)`."
        )
    return iterator
