"""States in files, one for each process, as Orbax and Grain have them: `process_0-of-1.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from bushel.base.errors import StateMismatch
from bushel.base.sharding import jax_process

Folder = Any
"""A path, of pathlib or etils, that exists."""

Later = Coroutine[Any, Any, None]
"""Work that Orbax does in the background."""


class AwaitingCreation(Protocol):
    """A folder that Orbax is making."""

    async def await_creation(self) -> Folder:
        """Returns its path, once it is there."""
        ...


def file_name() -> str:
    """The file of this process."""
    index, count = jax_process()
    return f"process_{index}-of-{count}.json"


def as_text(state: Any) -> str:
    """A state of an iterator as the text of its file."""
    return state.decode() if isinstance(state, bytes) else json.dumps(state)


def write(folder: Folder, text: str) -> None:
    """Writes the state of this process. Orbax makes the folder visible only when all of it is there."""
    (folder / file_name()).write_text(text)


def read(folder: Folder, *, any_process: bool = False) -> str:
    """The state of this process; of any, where it is the same on all of them and this one has none.

    Raises ValueError where there is none.
    """
    own = folder / file_name()
    if own.exists():
        return _text(own)
    others = sorted(path for path in folder.iterdir() if path.name.startswith("process_") and path.suffix == ".json")
    if others and any_process:
        return _text(others[0])
    there = ", ".join(path.name for path in others)
    raise ValueError(
        f"File {own} does not exist. "
        + (
            f"There are {there}: this was saved by another number of processes, each with a position of its own. "
            "Restore with as many, or use an ElasticIterator, whose state fits any number."
            if others
            else "The folder holds no state of an iterator."
        )
    )


def _text(path: Any) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise StateMismatch(f"{path} is no state of an iterator: it is not text ({error}).") from None


async def write_later(directory: AwaitingCreation, text: str) -> None:
    """Writes a state that was taken before, once its folder is there."""
    import asyncio  # whoever awaits this has loaded it; `import bushel` need not

    folder = await directory.await_creation()
    await asyncio.to_thread(write, folder, text)


async def read_later(directory: Folder, restore: Callable[[str], None], *, any_process: bool = False) -> None:
    """Reads a state and hands it to `restore`."""
    import asyncio

    restore(await asyncio.to_thread(read, directory, any_process=any_process))
