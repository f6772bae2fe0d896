"""`bushel.sources.open`: chooses the source for a path by its ending, or by the files in a folder."""

from __future__ import annotations

import importlib
import os
from typing import Any

from bushel.base import redact
from bushel.sources import file_access, file_formats
from bushel.sources.memory_sources import ArrayDataSource
from bushel.sources.output_folders import join_path
from bushel.sources.saved_elements import MANIFEST, SavedDataSource


class UnknownFormat(ValueError):
    """No source reads the files of a path."""


def open(path: str | os.PathLike[str], *, storage_options: dict[str, Any] | None = None) -> Any:
    """Opens a file, a pattern or a folder with the source of its format, which the ending or the folder's files show.

    For a folder that `ds.save` wrote, the records are the saved elements. For a data set that TFDS has prepared (also
    RLDS), they are the decoded examples of its only split. For other formats see their sources in `bushel.sources`.

    Args:
      path: a file, a pattern such as `train-*.parquet` or `train.tfrecord-*`, or a folder, local or in an object store.
      storage_options: options of the object store.

    >>> import tempfile
    >>> import bushel
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = bushel.MapDataset.range(3).map(str).save(folder.name, format="bagz")
    >>> list(bushel.MapDataset.source(open(folder.name)))
    ['0', '1', '2']
    >>> folder.cleanup()
    """
    text = os.fspath(path)
    options: dict[str, Any] = {} if storage_options is None else {"storage_options": storage_options}
    found = file_formats.find_format(text)
    if found is not None and found.source is not None:
        opened = found.load_source()(text, **options)
        return ArrayDataSource(opened) if file_formats.is_array_file(found) else opened
    if _file_exists(join_path(text, MANIFEST), storage_options):
        return SavedDataSource(text, storage_options=storage_options)
    if _file_exists(join_path(text, "dataset_info.json"), storage_options):
        tfds = importlib.import_module("bushel.sources.tfds")
        return tfds.TFDSDataSource(text, tfds.get_only_split(text, storage_options), **options)
    known = ", ".join(file_formats.list_endings())
    raise UnknownFormat(
        f"Bushel does not know the format of {redact.show(text)}: it ends in none of {known}, and it is not a folder "
        "that ds.save or TFDS wrote. Open it with the source of its format, from bushel.sources."
    )


def _file_exists(path: str, storage_options: dict[str, Any] | None) -> bool:
    try:
        file_access.open_file(path, storage_options)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False
    return True
