"""`bushel.sources.open`: chooses the source for a path by its ending, or by the files in a folder."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
from typing import Any

from bushel.base import redact
from bushel.base.errors import DamagedFile
from bushel.sources import file_access, file_formats
from bushel.sources.memory_sources import ArrayDataSource
from bushel.sources.output_folders import join_path
from bushel.sources.saved_elements import MANIFEST, SavedDataSource

HUGGING_FACE = "state.json"
"""A file in each folder that `save_to_disk` of Hugging Face datasets has written, beside `dataset_info.json`."""

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class UnknownFormat(ValueError):
    """No source reads the files of a path."""


def open(path: str | os.PathLike[str], *, storage_options: dict[str, Any] | None = None) -> Any:
    """Opens a file, a pattern or a folder with the source of its format, which the ending or the folder's files show.

    For a folder that `ds.save` wrote, the records are the saved elements. For a data set that TFDS has prepared (also
    RLDS), they are the decoded examples of its only split. For a folder that `save_to_disk` of Hugging Face datasets
    wrote, they are the rows of its Arrow files. For other formats see their sources in `bushel.sources`.

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
    if _file_exists(join_path(text, HUGGING_FACE), storage_options):
        return _open_hugging_face(text, options)
    if _file_exists(join_path(text, "dataset_info.json"), storage_options):
        tfds = importlib.import_module("bushel.sources.tfds")
        return tfds.TFDSDataSource(text, tfds.get_only_split(text, storage_options), **options)
    raise UnknownFormat(_explain_unknown(text))


def _open_hugging_face(text: str, options: dict[str, Any]) -> Any:
    """The records in a folder of `save_to_disk`. Its `state.json` names the Arrow files in their order."""
    path = join_path(text, HUGGING_FACE)
    file = file_access.open_file(path, options.get("storage_options"))
    try:
        names = [entry["filename"] for entry in json.loads(file.read(0, file.size))["_data_files"]]
        files = [join_path(text, os.path.basename(name)) for name in names]
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedFile(
            f"{redact.show(path)} does not name the files of the data set ({type(error).__name__}: {error}). Copy the "
            "folder again, or open its Arrow files with bushel.sources.ArrowDataSource."
        ) from error
    if not files:
        raise ValueError(f"{redact.show(text)} is a data set without files. Save one that has records.")
    return importlib.import_module("bushel.sources.arrow").ArrowDataSource(files, **options)


def _explain_unknown(text: str) -> str:
    """Why a path cannot be opened, with the call that opens what is there."""
    shown = redact.show(text)
    if "://" not in text and os.path.isdir(text):
        return _explain_folder(text, shown)
    if re.fullmatch(r"[\w-]+(/[\w.-]+)?", text) and not os.path.exists(text):
        return (
            f"{shown} does not exist here. For a data set of the Hugging Face Hub, write "
            f'`bushel.MapDataset.source(datasets.load_dataset("{text}", split="train"))`, or open the folder that '
            f'`huggingface_hub.snapshot_download("{text}", repo_type="dataset")` returns.'
        )
    known = ", ".join(file_formats.list_endings())
    return (
        f"Bushel does not know the format of {shown}: it ends in none of {known}, and it is not a folder "
        "that ds.save or TFDS wrote. Open it with the source of its format, from bushel.sources; "
        "`bushel.sources.FileDataSource(path)` reads files of any format as bytes."
    )


_SOME = 1000
"""So many files of a folder are looked at, to see which formats are in it."""


def _explain_folder(text: str, shown: str) -> str:
    """What a folder holds, and the call that opens it."""
    if os.path.exists(os.path.join(text, "meta", "info.json")):
        return f"{shown} is a LeRobot data set. Write `bushel.trajectory.LeRobotSource({shown!r})`."
    if os.path.exists(os.path.join(text, "dataset_dict.json")):
        splits = sorted(name for name in os.listdir(text) if os.path.exists(os.path.join(text, name, HUGGING_FACE)))
        calls = ", ".join(f"`bushel.sources.open({shown.rstrip('/') + '/' + name!r})`" for name in splits)
        return f"{shown} is a DatasetDict of Hugging Face datasets. Open one of its splits: {calls}."
    files = (os.path.join(above, name) for above, _, names in os.walk(text) for name in names)
    endings: dict[str, list[str]] = {}
    for file in itertools.islice(files, _SOME):
        ending = file_formats.find_ending(file)
        endings.setdefault(ending, []).append(file)
    if not endings:
        return f"{shown} is a folder without files. Name the folder or the files that hold the data."
    ending, found = max(endings.items(), key=lambda entry: len(entry[1]))
    folders = "" if all(os.path.dirname(file) == text.rstrip("/") for file in found) else "**/"
    sharded = "*" if any(not file.lower().endswith(ending) for file in found) else ""
    pattern = repr(f"{shown.rstrip('/')}/{folders}*{ending}{sharded}")
    if ending in file_formats.list_endings():
        call = f"`bushel.sources.open({pattern})`"
    else:
        decode = ", and decode their bytes with `bushel.sources.decode_image`" if ending in _IMAGES else ""
        call = f"`bushel.sources.FileDataSource({pattern})` for records of whole files{decode}"
    return f"{shown} is a folder of {ending or 'other'} files. Write {call}."


def _file_exists(path: str, storage_options: dict[str, Any] | None) -> bool:
    try:
        file_access.open_file(path, storage_options)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False
    return True
