"""From what the user names to what the page looks at: Python objects, files, robot data sets, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bushel._src.base import redact
from bushel._src.datasets.base_dataset import wrap
from bushel._src.datasets.dataset import IterDataset, MapDataset
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.loaders.data_loader import DataLoader, DataLoaderIterator
from bushel._src.sources.optional_packages import import_package
from bushel._src.trajectory.dataset import TrajectoryDataset
from bushel._src.trajectory.episode_builder import EpisodeBuilder
from bushel._src.trajectory.loader import TrajectoryLoader
from bushel._src.view import scripts
from bushel._src.view.checkpoints import open_checkpoint
from bushel._src.view.own_process import RunningHere, watch_dataset, watch_iterator
from bushel._src.view.paths import open_path
from bushel._src.view.session import Session


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
    """The session of a target.

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
    """Whether an object is an iterator with a report of its own."""
    return hasattr(given, "__next__") and hasattr(given, "report")


def _find_dataset(iterator: Any) -> Any:
    """The dataset that an iterator reads; None if the iterator does not say it."""
    while not isinstance(iterator, PipelineIterator):
        if isinstance(iterator, DataLoaderIterator):
            return wrap(iterator._data_loader._node)
        if len(getattr(iterator, "_parents", ())) != 1:
            return None
        (iterator,) = iterator._parents
    return wrap(iterator._node)


def _find_running(given: Any, dataset: Any, name: str) -> RunningHere | None:
    """What runs in this process: the iterator that was passed, or the last one of the dataset that was passed."""
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
    """The object that a text names: `train.py:make_dataset`, `module:name`, or a path that Bushel can read.

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
    """The MapDataset or IterDataset that an object is, holds or can be read as."""
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
    """Refuses several datasets in one object, such as `return train, validation`: they are not records."""
    parts = given if isinstance(given, Mapping) else dict(enumerate(given)) if isinstance(given, (tuple, list)) else {}
    kinds = (MapDataset, IterDataset, DataLoader, PipelineIterator, TrajectoryDataset, TrajectoryLoader)
    for key, part in parts.items():
        if isinstance(part, kinds):
            raise TypeError(
                f"This {type(given).__name__} holds several datasets. Name one of them: a variable, or a function such "
                f"as `def make_train(): return make_datasets()[{key!r}]`."
            )


def load_tokenizer(tokenizer: Any) -> Any:
    """An object with `decode`: the given one, or the one of a `tokenizer.json`."""
    if tokenizer is None or hasattr(tokenizer, "decode"):
        return tokenizer
    tokenizers: Any = import_package("tokenizers", "robots", "Tokenizer files")
    return tokenizers.Tokenizer.from_file(os.fspath(tokenizer))
