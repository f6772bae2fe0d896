"""`bushel.sources.open`: chooses the source for a path by its ending, or by the files in a folder."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, UnknownFormat
from bushel._src.base.public import public
from bushel._src.sources import file_access, file_formats, folder_files
from bushel._src.sources.folder_listing import explain_web_folder, file_exists, is_folder, is_web
from bushel._src.sources.output_folders import join_path
from bushel._src.sources.paths import Options, Path, expand_path
from bushel._src.sources.protocol import RandomAccessDataSource
from bushel._src.sources.saved_elements import MANIFEST, PROGRESS, SavedDataSource

_SAVED = re.compile(r"(^|/)part-\d{5}\.(array_record|bag|bagz|parquet|tfrecord)$")
"""The names of the files that `ds.save` writes."""

_EPISODES = "bushel._src.trajectory.episode_paths"
"""The module of a higher layer that knows data sets of episodes. It is imported when a path may be one."""

HUGGING_FACE = "state.json"
"""A file in each folder that `save_to_disk` of Hugging Face datasets has written, beside `dataset_info.json`."""

_HUGGING_FACE_SPLITS = "dataset_dict.json"


@public("bushel.sources")
def open(
    path: Path,
    *,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    storage_options: Options | None = None,
) -> RandomAccessDataSource[Any]:
    """Opens a file, a pattern or a folder with the source of its format, which the ending or the folder's files show.

    This opens all that `bushel inspect` reads, but for files that can only be read in order (`.tar`, `.tfrecord.gz`).
    The records of a folder that `ds.save` wrote are the saved elements. Those of a data set of TFDS or RLDS are the
    decoded examples of a split; those of a LeRobot folder, its rows (`LeRobotSource`); those of other data sets of
    robots, raw trajectories; those of a folder that `save_to_disk` of Hugging Face datasets wrote, the rows of its
    Arrow files. Of a folder of files of one format, all files are read. For other formats see `bushel.sources`.

    Args:
      path: a file, a pattern such as `train-*.parquet` or `train.tfrecord-*`, or a folder, local or in an object store.
      columns: read only these columns or arrays, of formats that have some; all by default.
      split: which split of a data set that has several, such as "train".
      storage_options: options of the object store.

    >>> import tempfile
    >>> import bushel
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = bushel.MapDataset.range(3).map(str).save(folder.name)
    >>> list(bushel.MapDataset.source(open(folder.name)))
    ['0', '1', '2']
    >>> folder.cleanup()
    """
    text = expand_path(path)
    found = file_formats.find_format(text)
    if columns is None and (found is None or found.name == "HDF5"):
        episodes = _open_episodes(text, split, storage_options)
        if episodes is not None:
            return episodes
    return open_records(text, columns=columns, split=split, options=storage_options)


def _open_episodes(text: str, split: str | None, options: Options | None) -> RandomAccessDataSource[Any] | None:
    """The source of a data set of robots; None if there is none at the path, or one that TFDS has prepared."""
    if file_exists(join_path(text, MANIFEST), options) or file_exists(join_path(text, "dataset_info.json"), options):
        return None
    module = importlib.import_module(_EPISODES)
    kind = module.find_kind(text, options)
    if kind is None:
        return None
    if kind == "lerobot":
        if split is not None:
            raise ValueError(
                f"{redact.show(text)} is a LeRobot data set, which `open` reads as a whole. Leave out split={split!r}, "
                "or write `bushel.trajectory.LeRobotSource(path, episodes=[0, 1])`."
            )
        return importlib.import_module("bushel._src.trajectory.lerobot.source").LeRobotSource(
            text, storage_options=options
        )
    builder = module.open_path(text, kind, options)
    if kind == "rlds":
        return _open_tfds(builder.folder, split, options)
    return builder.episodes(split or "all")


def open_records(
    text: str,
    *,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    options: Options | None = None,
) -> RandomAccessDataSource[Any]:
    """The same as `open`, for what is not a data set of robots."""
    found = file_formats.find_format(text)
    whole = found is None and file_formats.is_whole_file(text)
    if found is None and not whole and file_exists(join_path(text, HUGGING_FACE), options):
        _refuse(text, "split", split)
        return _open_hugging_face(text, columns, options)
    if found is None and not whole and file_exists(join_path(text, "dataset_info.json"), options):
        _refuse(text, "columns", columns)
        return _open_tfds(text, split, options)
    _refuse(text, "split", split)
    if found is not None or whole:
        return folder_files.open_files(found, [text], columns, options)
    if file_exists(join_path(text, MANIFEST), options):
        _refuse(text, "columns", columns)
        return SavedDataSource(text, storage_options=options)
    if is_web(text):
        raise explain_web_folder(text)
    if is_folder(text, options):
        if file_exists(join_path(text, _HUGGING_FACE_SPLITS), options):
            raise UnknownFormat(_explain_splits(text, options))
        kind, files = folder_files.find_folder_files(text, options)
        _refuse_unfinished(text, files, options)
        return folder_files.open_files(kind, files, columns, options)
    raise UnknownFormat(_explain_unknown(text))


def _refuse_unfinished(text: str, files: Sequence[str], options: Options | None) -> None:
    """Raises an error for a folder that `ds.save` has not completed: without its manifest, files are mere bytes."""
    if file_exists(join_path(text, PROGRESS), options) or any(map(_SAVED.search, files)):
        raise UnknownFormat(
            f"{redact.show(text)} has files of `ds.save`, but no {MANIFEST}: the saving was interrupted. Run the "
            f"program that saves again, and it completes the folder. If something else wrote these files, name "
            f"them with a pattern: '{redact.show(text.rstrip('/'))}/part-*'."
        )


def _open_tfds(folder: str, split: str | None, options: Options | None) -> RandomAccessDataSource[Any]:
    tfds = importlib.import_module("bushel._src.sources.tfds")
    chosen = tfds.get_only_split(folder, options) if split is None else split
    return tfds.TFDSDataSource(folder, split=chosen, storage_options=options)


def _refuse(text: str, name: str, value: Any) -> None:
    if value is not None:
        raise ValueError(f"{redact.show(text)} has no {name}. Leave out {name}={value!r}.")


def _open_hugging_face(text: str, columns: Sequence[str] | None, options: Options | None) -> Any:
    """The records in a folder of `save_to_disk`. Its `state.json` names the Arrow files in their order."""
    path = join_path(text, HUGGING_FACE)
    file = file_access.open_file(path, options)
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
    return folder_files.open_files(file_formats.find_format(files[0]), files, columns, options)


def _explain_splits(text: str, options: Options | None) -> str:
    """Why a folder with several splits of Hugging Face datasets is not one data set."""
    shown = redact.show(text)
    content = file_access.open_file(join_path(text, _HUGGING_FACE_SPLITS), options)
    try:
        splits = list(map(str, json.loads(content.read(0, content.size))["splits"]))
    except (ValueError, LookupError, TypeError):
        splits = []
    calls = ", ".join(f"`bushel.sources.open({shown.rstrip('/') + '/' + name!r})`" for name in splits or ["train"])
    return f"{shown} is a DatasetDict of Hugging Face datasets. Open one of its splits: {calls}."


def _explain_unknown(text: str) -> str:
    """Why a path cannot be opened, with the call that opens what is there."""
    shown = redact.show(text)
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
