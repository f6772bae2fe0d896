"""What Orbax's CheckpointManager takes for an iterator. Needs Orbax; `bushel.checkpoint` loads it when it is asked."""

from __future__ import annotations

import dataclasses
from typing import Any

from bushel._src.base.late_imports import install_command
from bushel._src.base.public import public
from bushel._src.state.checkpoint_files import CheckpointHandler

try:
    import orbax.checkpoint as ocp
except ImportError as error:
    raise ImportError(f"Checkpoints with Orbax need it: {install_command('orbax')}") from error


@public("bushel.checkpoint")
@ocp.args.register_with_handler(CheckpointHandler, for_save=True)  # type: ignore[arg-type]
@dataclasses.dataclass
class CheckpointSave(ocp.args.CheckpointArgs):
    """Saves an iterator as an item of a checkpoint: `ocp.args.Composite(..., data=CheckpointSave(iterator))`.

    >>> import tempfile
    >>> import orbax.checkpoint as ocp
    >>> from bushel import MapDataset
    >>> it = iter(MapDataset.range(10))
    >>> with ocp.CheckpointManager(tempfile.mkdtemp()) as manager:
    ...     saved = manager.save(1, args=ocp.args.Composite(data=CheckpointSave(it)))
    >>> saved
    True
    """

    item: Any


@public("bushel.checkpoint")
@ocp.args.register_with_handler(CheckpointHandler, for_restore=True)  # type: ignore[arg-type]
@dataclasses.dataclass
class CheckpointRestore(ocp.args.CheckpointArgs):
    """Restores an iterator from an item of a checkpoint.

    >>> import tempfile
    >>> import orbax.checkpoint as ocp
    >>> from bushel import MapDataset
    >>> it, fresh = iter(MapDataset.range(10)), iter(MapDataset.range(10))
    >>> _ = next(it)
    >>> with ocp.CheckpointManager(tempfile.mkdtemp()) as manager:
    ...     saved = manager.save(1, args=ocp.args.Composite(data=CheckpointSave(it)))
    ...     manager.wait_until_finished()
    ...     restored = manager.restore(1, args=ocp.args.Composite(data=CheckpointRestore(fresh)))
    >>> next(fresh)
    1

    With `check=False` the state of another pipeline is restored, too, as far as its form fits.
    """

    item: Any
    check: bool = dataclasses.field(default=True, kw_only=True)
