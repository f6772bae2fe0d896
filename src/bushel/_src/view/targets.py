"""From what the user names to what the page looks at: Python objects, files, robot data sets, checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bushel._src.base import redact
from bushel._src.base.errors import UnknownFormat
from bushel._src.base.late_imports import import_package
from bushel._src.datasets.base_dataset import wrap
from bushel._src.datasets.dataset import IterDataset, MapDataset
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.graph.node import MapNode
from bushel._src.graph.streams import Elements
from bushel._src.loaders.data_loader import DataLoader, DataLoaderIterator
from bushel._src.sources.folders import file_exists
from bushel._src.sources.paths import expand_path, is_url
from bushel._src.sources.source_by_path import open_records
from bushel._src.trajectory import episode_builder
from bushel._src.trajectory.episode_builder import EpisodeBuilder
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset
from bushel._src.trajectory.trajectory_loader import TrajectoryLoader
from bushel._src.view import scripts
from bushel._src.view.attachment import RunningHere, open_unlisted, watch_dataset, watch_iterator
from bushel._src.view.session import Session, can_seek, without_workers


def open_path(path: str, *, split: str | None = None, options: dict[str, Any] | None = None) -> Any:
    """Return the source of a file, folder or URL, or the `EpisodeBuilder` of a robot data set."""
    path = expand_path(path)
    kind = episode_builder.find_kind(path, options)
    if kind is not None:
        return episode_builder.open_path(path, kind, options)
    try:
        return open_records(path, split=split, options=options)
    except UnknownFormat:
        if not (file_exists(path, options) if is_url(path) else os.path.exists(path)):
            raise FileNotFoundError(
                f"{redact.show(path)} does not exist. Name a file, a folder, a pattern, or train.py:make_dataset."
            ) from None
        raise


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
        """Return what the page knows of it."""
        return {"position": self.position, "absolute": self.is_absolute, "about": self.about}


def open_checkpoint(checkpoint: Any, given: Any, dataset: Any, training_step: int | None = None) -> Checkpoint:
    """Return the position that a state stands for, or the state in a file or folder.

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
    """Return the state of the stream, the next element, and whether elements count from the beginning."""
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
    """Return the folder of one checkpoint, and the step that it was saved at, if its name is a number."""
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


def open_session(
    target: Any,
    *,
    checkpoint: Any = None,
    training_step: int | None = None,
    index: int | None = None,
    tokenizer: Any = None,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
) -> Session:
    """Return the session of a target.

    Args:
      target: a dataset, a loader, an iterator, a source, or a text: `train.py:make_dataset`, `module:name`, or a path.
      checkpoint: a state, a file of one, or a folder of checkpoints.
      training_step: the step of training whose element the page opens with; it needs a checkpoint.
      index: the element that the page opens with.
      tokenizer: an object with `decode`, or the path of a `tokenizer.json`.
      split: the split of a TFDS or robot data set.
      storage_options: of the store of the files.
      arguments: of the script that the target names.
    """
    name, given = _name(target), target
    if isinstance(target, (str, os.PathLike)):
        name = scripts.show_target(os.fspath(target), arguments)
        given = load_target(target, split=split, storage_options=storage_options, arguments=arguments)
    dataset = _find_dataset(given) if is_iterator(given) else as_dataset(given, split)
    position = None
    if checkpoint is not None:
        position = open_checkpoint(checkpoint, given, dataset, training_step)
    elif training_step is not None:
        raise ValueError("A step of training needs a checkpoint, which says how far the data were at a step.")
    return Session(
        dataset,
        target=name,
        tokenizer=load_tokenizer(tokenizer),
        checkpoint=position,
        start=index,
        episodes=given if isinstance(given, EpisodeBuilder) else None,
        given=dataset if is_iterator(given) else given,  # an iterator is not held
        attached=None if isinstance(target, (str, os.PathLike)) else _find_running(given, dataset, name),
    )


def is_iterator(given: Any) -> bool:
    """Return whether an object is an iterator with a report of its own."""
    return hasattr(given, "__next__") and hasattr(given, "report")


def _find_dataset(iterator: Any) -> Any:
    """Return the dataset that an iterator reads; None if the iterator does not say it."""
    while not isinstance(iterator, PipelineIterator):
        if isinstance(iterator, DataLoaderIterator):
            return wrap(iterator._data_loader._node)
        if len(getattr(iterator, "_parents", ())) != 1:
            return None
        (iterator,) = iterator._parents
    return wrap(iterator._node)


def _find_running(given: Any, dataset: Any, name: str) -> RunningHere | None:
    """Return what runs in this process: the iterator that was passed, or the last one of the dataset that was
    passed.
    """
    if is_iterator(given):
        given.report()  # raises here, and not in the page, if this kind of iterator has none
        return watch_iterator(given, name)
    loads = isinstance(given, TrajectoryLoader)  # its own iterators make batches in another way
    return watch_dataset(given.dataset.dataset._node if loads else dataset._node, name)


def _name(target: Any) -> str:
    kinds = (MapDataset, IterDataset)
    return next((kind.__name__ for kind in kinds if isinstance(target, kind)), type(target).__name__)


def load_target(
    target: str | os.PathLike[str],
    *,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
) -> Any:
    """Return the object that a text names: `train.py:make_dataset`, `module:name`, or a path that Bushel can read.

    Args:
      target: the text.
      split: the split of a TFDS or robot data set.
      storage_options: options of the store of the files.
      arguments: the arguments of the script, which it finds in `sys.argv`.
    """
    text = os.fspath(target)
    if scripts.is_python_target(text):
        return scripts.load_object(text, arguments)
    if arguments:
        raise ValueError(
            f"Arguments behind two dashes are for a script such as train.py:make_dataset; {redact.show(text)} is none."
        )
    if scripts.is_script(text):
        raise ValueError(f"{text} is a Python file. Name the dataset in it, or a function: {text}:make_dataset")
    return open_path(text, split=split, options=dict(storage_options) if storage_options else None)


def as_dataset(given: Any, split: str | None = None) -> Any:
    """Return the MapDataset or IterDataset that an object is, holds or can be read as."""
    if isinstance(given, (MapDataset, IterDataset)):
        return given
    if isinstance(given, TrajectoryLoader):
        return given.dataset.dataset.batch(given._running.batch_size)
    if isinstance(given, TrajectoryDataset):
        return given.dataset
    if isinstance(given, EpisodeBuilder):
        return MapDataset.source(given.episodes(split or "all"))
    if isinstance(given, (DataLoader, PipelineIterator)):
        return wrap(given._node)
    _check_one(given)
    if hasattr(given, "__iter__") or (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        return MapDataset.source(given)  # refuses iterables without positions, and says what to write
    raise TypeError(
        f"A dataset, a loader or a source is needed, got {type(given).__name__}. Name one, or a function without "
        "arguments that returns one."
    )


def _check_one(given: Any) -> None:
    """Refuse several datasets in one object, such as `return train, validation`: they are not records."""
    parts = given if isinstance(given, Mapping) else dict(enumerate(given)) if isinstance(given, (tuple, list)) else {}
    kinds = (MapDataset, IterDataset, DataLoader, PipelineIterator, TrajectoryDataset, TrajectoryLoader)
    for key, part in parts.items():
        if isinstance(part, kinds):
            raise TypeError(
                f"This {type(given).__name__} holds several datasets. Name one of them: a variable, or a function such "
                f"as `def make_train(): return make_datasets()[{key!r}]`."
            )


def load_tokenizer(tokenizer: Any) -> Any:
    """Return an object with `decode`: the given one, or the one of a `tokenizer.json`."""
    if tokenizer is None or hasattr(tokenizer, "decode"):
        return tokenizer
    tokenizers: Any = import_package("tokenizers", "robots", "Tokenizer files")
    return tokenizers.Tokenizer.from_file(os.fspath(tokenizer))
