"""Positions of checkpoints: which element a training run reads next."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from bushel._src.base import redact
from bushel._src.graph.node import MapNode
from bushel._src.graph.streams import Elements
from bushel._src.loaders.data_loader import DataLoader
from bushel._src.trajectory.loader import TrajectoryLoader
from bushel._src.view.own_process import open_unlisted
from bushel._src.view.stream_reader import can_seek, without_workers


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The position of a training run in the last step of a pipeline."""

    name: str
    state: Any
    """The state of the last step as a stream."""
    position: int
    """The element that the page opens with: the next one, or that of the wanted step of training."""
    is_absolute: bool
    """Whether elements count from the beginning of the data, and not from the checkpoint on."""
    about: str
    """A sentence on the position."""

    def describe(self) -> dict[str, Any]:
        """What the page knows of it."""
        return {"position": self.position, "absolute": self.is_absolute, "about": self.about}


def open_checkpoint(checkpoint: Any, given: Any, dataset: Any, training_step: int | None = None) -> Checkpoint:
    """The position that a state stands for, or the state in a file or folder.

    Args:
      checkpoint: a state, a file of one, the folder of a checkpoint, or the folder of several, named by their steps.
      given: the object that the user named, whose iterators have such states.
      dataset: the dataset that the page shows.
      training_step: which step of training to look at. Of several checkpoints the last one before it is taken. A step
        reads one element, and a checkpoint is saved after the element of its step.
    """
    name, saved_at = "the state", None
    if isinstance(checkpoint, (str, os.PathLike)):
        path, saved_at = _choose_step(Path(checkpoint), training_step)
        name, checkpoint = redact.show(str(path)), _read_state(path)
    if training_step is not None and saved_at is None:
        raise ValueError(
            f"{name} does not say at which step of training it was saved. Pass the folder that holds checkpoints in "
            "folders named by their steps, such as run/12000."
        )
    state, position, absolute = _locate(checkpoint, given, dataset)
    about = f"{name}: the next element is {position:,}" if absolute else f"{name}: element 0 is the next one"
    if training_step is not None and saved_at is not None:
        position += training_step - saved_at - 1
        if position < 0:
            raise ValueError(
                f"Step {training_step} was before {name}, and this stream can only be read forward from a checkpoint."
            )
        about = f"{name} was saved at step {saved_at:,}. Step {training_step:,} reads element {position:,}"
    return Checkpoint(name, state, position, absolute, about + ".")


def _locate(state: Any, given: Any, dataset: Any) -> tuple[Any, int, bool]:
    """The state of the stream, the next element, and whether elements count from the beginning."""
    if isinstance(given, TrajectoryLoader):
        with iter(given) as batches:
            batches.set_state(state)
            rows = batches.get_state()["global_next_index"]
        return None, rows // given._running.batch_size, True
    if isinstance(given, DataLoader):
        with iter(given) as elements:
            elements.set_state(state if isinstance(state, bytes) else json.dumps(state).encode())
            state = elements._iterator.get_state()
    node = dataset._node
    if isinstance(node, MapNode):
        with open_unlisted(Elements(node)) as iterator:
            iterator.set_state(state)
            return state, iterator._get_next_index(), True
    stream = without_workers(node)
    with open_unlisted(stream) as iterator:
        iterator.set_state(state)
        absolute = can_seek(stream, iterator)
        return state, iterator._get_next_index() if absolute else 0, absolute


def _choose_step(path: Path, wanted: int | None) -> tuple[Path, int | None]:
    """The folder of one checkpoint, and the step that it was saved at, if its name is a number."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    steps = {int(entry.name): entry for entry in path.iterdir() if entry.name.isdigit()} if path.is_dir() else {}
    if not steps:
        return path, int(path.name) if path.name.isdigit() else None
    if wanted is None:
        return steps[max(steps)], max(steps)
    # A checkpoint of step n - 1 stands before the element of step n. One of step n itself stands after it.
    earlier = [step for step in steps if step < wanted] or [step for step in steps if step == wanted]
    if not earlier:
        raise ValueError(f"{path} has no checkpoint of step {wanted} or earlier; it has {sorted(steps)}.")
    return steps[max(earlier)], max(earlier)


def _read_state(path: Path) -> Any:
    if path.is_dir():
        files = sorted(path.rglob("process_0-of-*.json"))
        if not files:
            raise ValueError(f"{path} holds no state of an iterator: there is no file process_0-of-1.json in it.")
        if len(files) > 1:
            names = ", ".join(str(file.parent) for file in files[:8])
            raise ValueError(f"{path} holds several states. Name the folder of one of them: {names}.")
        path = files[0]
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not the state of an iterator: it is not JSON ({error}).") from None
