"""From what the user names to what the page looks at: Python objects, files, robot data sets, checkpoints."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bushel import sources
from bushel.base import redact
from bushel.dataset import IterDataset, MapDataset
from bushel.view.checkpoints import open_checkpoint
from bushel.view.session import Session


def open_session(
    target: Any,
    *,
    checkpoint: Any = None,
    start: int | None = None,
    tokenizer: Any = None,
    options: Mapping[str, Any] | None = None,
) -> Session:
    """The session of a target: see `bushel.view`. `start` is the element that the page opens with."""
    given = load_target(target, options) if isinstance(target, (str, os.PathLike)) else target
    name = redact.show(os.fspath(target)) if isinstance(target, (str, os.PathLike)) else _name(target)
    dataset = as_dataset(given)
    return Session(
        dataset,
        target=name,
        tokenizer=load_tokenizer(tokenizer),
        checkpoint=None if checkpoint is None else open_checkpoint(checkpoint, given, dataset),
        start=start,
        given=given,
    )


def _name(target: Any) -> str:
    kinds = (MapDataset, IterDataset)
    return next((kind.__name__ for kind in kinds if isinstance(target, kind)), type(target).__name__)


def load_target(target: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Any:
    """The object that a text names: `train.py:make_dataset`, `module:name`, or a path that Bushel can read."""
    text = os.fspath(target)
    place, colon, name = text.rpartition(":")
    if colon and name.replace(".", "").isidentifier() and "//" not in name and not os.path.exists(text):
        return _load_python(place, name)
    return sources.open(text, storage_options=dict(options) if options else None)


def _load_python(place: str, name: str) -> Any:
    """The object `name` of a Python file or module. A function is called, without arguments."""
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise FileNotFoundError(f"{place} does not exist.")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(place)
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    if callable(value) and not isinstance(value, (MapDataset, IterDataset)) and not hasattr(value, "__getitem__"):
        value = value()
    return value


def as_dataset(given: Any) -> Any:
    """The MapDataset or IterDataset that an object is, holds or can be read as."""
    if isinstance(given, (MapDataset, IterDataset)):
        return given
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return MapDataset.source(given)
    raise TypeError(
        f"The viewer shows datasets, loaders and sources; got {type(given).__name__}. Name a dataset, or a function "
        "without arguments that returns one."
    )


def load_tokenizer(tokenizer: Any) -> Any:
    """An object with `decode`: the given one, or the one of a `tokenizer.json`."""
    if tokenizer is None or hasattr(tokenizer, "decode"):
        return tokenizer
    from bushel.sources.optional_packages import import_package

    tokenizers: Any = import_package("tokenizers", "robots", "A tokenizer file")
    return tokenizers.Tokenizer.from_file(os.fspath(tokenizer))
