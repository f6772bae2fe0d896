"""Positions of checkpoints: which element a training run reads next."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from bushel.graph.streams import Elements
from bushel.iterator import PipelineIterator
from bushel.view.stream_reader import without_workers


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The position of a training run in the last step of a pipeline."""

    name: str
    state: Any
    position: int
    """The element that comes next; 0 if elements are counted from the checkpoint on."""
    is_absolute: bool
    """Whether positions count from the beginning of the data, and not from the checkpoint on."""

    def describe(self) -> dict[str, Any]:
        """What the page knows of it."""
        return {"name": self.name, "position": self.position, "absolute": self.is_absolute}


def open_checkpoint(checkpoint: Any, given: Any, dataset: Any) -> Checkpoint:
    """The position that a state stands for, or the state in a file or folder."""
    is_path = isinstance(checkpoint, (str, os.PathLike))
    state = _read_state(Path(checkpoint)) if is_path else checkpoint
    node = dataset._node
    stream = without_workers(node if hasattr(dataset, "mp_prefetch") else Elements(node))
    with PipelineIterator(stream) as iterator:
        iterator.set_state(state)
        try:
            position, absolute = iterator._get_next_index(), True
        except Exception:  # a stream that does not know its index
            position, absolute = 0, False
    return Checkpoint(str(checkpoint) if is_path else "a state", state, position, absolute)


def _read_state(path: Path) -> Any:
    if path.is_dir():
        files = sorted(path.rglob("process_0-of-*.json"))
        if not files:
            raise ValueError(f"{path} holds no state of an iterator: no file process_0-of-1.json lies in it.")
        if len(files) > 1:
            names = ", ".join(str(file.parent) for file in files[:8])
            raise ValueError(f"{path} holds several states. Name the folder of one of them: {names}.")
        path = files[0]
    return json.loads(path.read_text())
