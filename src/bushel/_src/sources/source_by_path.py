"""`bushel.sources.open`: chooses the source for a path by its ending, or by the files in a folder.

`FORMATS` is the table of endings for `open`, `bushel view` and `bushel inspect`. How a format is read belongs to its
own module; which formats can be converted into which belongs to `conversion.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, UnknownFormat
from bushel._src.base.public import public
from bushel._src.sources import decompression, file_access, folders
from bushel._src.sources.array_files import load_arrays
from bushel._src.sources.folders import explain_web_folder, file_exists, is_folder, is_web, join_path
from bushel._src.sources.memory_sources import ArrayDataSource
from bushel._src.sources.paths import Options, Path, expand_path
from bushel._src.sources.plain_files import FileDataSource
from bushel._src.sources.saved_elements import MANIFEST, PROGRESS, SavedDataSource
from bushel._src.sources.shard_journals import final_name, is_staged
from bushel._src.sources.user_sources import RandomAccessDataSource


@dataclasses.dataclass(frozen=True)
class FileFormat:
    """One format: its name for people, the endings of its files, and what opens them."""

    name: str
    endings: tuple[str, ...]
    source: tuple[str, str] | None = None
    """The module in `bushel.sources` and the class of the source; None if no source reads the format by position."""
    is_folder: bool = False
    """Whether a folder with such a name is one data set."""

    def load_source(self) -> Any:
        """Return the class of the source."""
        assert self.source is not None
        module, name = self.source
        return getattr(importlib.import_module(f"bushel._src.sources.{module}"), name)


TEXTS = tuple(text + end for text in (".txt", ".jsonl", ".csv") for end in ("", *decompression.ENDINGS))
"""The endings of text files, plain and compressed."""

_ARRAYS = ("array_files", "load_arrays")

FORMATS = (
    FileFormat("ArrayRecord", (".array_record", ".arrayrecord"), ("array_record", "ArrayRecordDataSource")),
    FileFormat("TFRecord", (".tfrecord", ".tfrecords"), ("tfrecord", "TFRecordDataSource")),
    FileFormat("Bagz", (".bagz", ".bag"), ("bagz", "BagzDataSource")),
    FileFormat("Parquet", (".parquet",), ("parquet", "ParquetDataSource")),
    FileFormat("Arrow", (".arrow", ".feather", ".ipc"), ("arrow", "ArrowDataSource")),
    FileFormat("HDF5", (".h5", ".hdf5"), ("hdf5", "HDF5DataSource")),
    FileFormat("Zarr", (".zarr",), ("zarr", "ZarrDataSource"), is_folder=True),
    FileFormat("Lance", (".lance",), ("lance", "LanceDataSource"), is_folder=True),
    FileFormat("lines of text", TEXTS, ("plain_files", "LineDataSource")),
    FileFormat("NumPy array", (".npy",), _ARRAYS),
    FileFormat("NumPy archive", (".npz",), _ARRAYS),
    FileFormat("safetensors", (".safetensors",), _ARRAYS),
    FileFormat("TFRecord, compressed", (".tfrecord.gz", ".tfrecords.gz")),
    FileFormat("WebDataset (tar)", (".tar",)),
)
"""The formats. Of two endings that fit a name, the longer one counts."""

MEDIA = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".wav", ".flac", ".mp3", ".mp4")
"""The endings of images, sounds and videos. Each file is one record."""
_WHOLE_FILES = (*MEDIA, ".json")

_BY_ENDING = sorted(((ending, one) for one in FORMATS for ending in one.endings), key=lambda pair: -len(pair[0]))
_SHARD = re.compile(r"-[\d?*]+(-of-[\d?*]+)?$")
"""What follows the ending in the name of a shard, or in a pattern of them: "train.tfrecord-00000-of-00004"."""


def find_format(path: str) -> FileFormat | None:
    """Return the format that the ending of a path or URL stands for; None if no format has this ending.

    >>> [find_format(name).name for name in ("a.bag", "train.tfrecord-00000-of-00004", "https://host/x.csv.gz?token=1")]
    ['Bagz', 'TFRecord', 'lines of text']
    """
    name = _SHARD.sub("", final_name(redact.remove_query(path)).rstrip("/").lower())
    return next((one for ending, one in _BY_ENDING if name.endswith(ending)), None)


def find_ending(path: str) -> str:
    """Return the ending of a path: the one that names its format, also before the number of a shard, or the last one.

    >>> [find_ending(name) for name in ("x.csv.gz", "train.tfrecord-00000-of-00004", "notes.md")]
    ['.csv.gz', '.tfrecord', '.md']
    """
    name = _SHARD.sub("", os.path.basename(path).lower())
    return next((ending for ending, _ in _BY_ENDING if name.endswith(ending)), os.path.splitext(name)[1])


def is_whole_file(path: str) -> bool:
    """Return whether a file is one record: an image, a sound, a video, or a JSON document."""
    return redact.remove_query(path).lower().endswith(_WHOLE_FILES)


def is_array_file(found: FileFormat) -> bool:
    """Return whether the files of a format hold arrays that are loaded one file at a time."""
    return found.source == _ARRAYS


def list_endings(*, readable: bool = True) -> list[str]:
    """Return the endings of all formats, or of those that are read by position."""
    return [ending for one in FORMATS if one.source is not None or not readable for ending in one.endings]


def choose_files(names: Iterable[str]) -> tuple[list[FileFormat], list[str]]:
    """Return the formats of the files in a folder, and the names of those to read.

    Files of formats come first, then images, sounds and videos, then JSON documents: what lies beside them is left out.

    A folder such as "a.zarr" counts as one file. Hidden files and the temporary files of conversions are left out.

    >>> [one.name for one in choose_files(["a.bag", "b.bag", "info.json"])[0]]
    ['Bagz']
    >>> choose_files(["cat/1.jpg", "dog/2.png", "notes.md"])
    ([], ['cat/1.jpg', 'dog/2.png'])
    """
    there = list(names)
    stores = {folder for name in there if (folder := _find_store(name)) is not None}
    seen = [name for name in there if not os.path.basename(name).startswith(".") and not is_staged(name)]
    files = sorted({*stores, *(name for name in seen if _find_store(name) is None)})
    known = {name: one for name in files if (one := find_format(name)) is not None}
    if known:
        return [one for one in FORMATS if one in known.values()], list(known)
    media = [name for name in files if name.lower().endswith(MEDIA)]
    return [], media or [name for name in files if is_whole_file(name)]


def _find_store(name: str) -> str | None:
    """Return the path up to the first folder that is a data set of its own, such as "data/a.zarr"; None if there is
    none.
    """
    parts = name.split("/")
    for count in range(1, len(parts)):
        found = find_format(parts[count - 1])
        if found is not None and found.is_folder:
            return "/".join(parts[:count])
    return None


_STREAMS = {
    "TFRecord, compressed": "bushel.experimental.TFRecordIterDataset(path)",
    "WebDataset (tar)": "bushel.experimental.WebDatasetIterDataset(path)",
}
_CONVERSIONS = {
    "TFRecord, compressed": "`bushel convert`",
    "WebDataset (tar)": "`ds.save(folder)` of that dataset",
}
_WITH_COLUMNS = ("Parquet", "Arrow", "HDF5", "Zarr", "Lance", "NumPy archive", "safetensors")


def find_folder_files(path: str, options: Options | None) -> tuple[FileFormat | None, list[str]]:
    """Return the format of the files in a folder and in its folders, and the files; None for images and other whole
    files.

    Raises:
      ValueError: if there are no files that Bushel reads, or files of several formats.
    """
    folder = folders.open_folder(path, options)
    there = file_access.resolve_shards(map(folder.path, folder.names(deep=True)), options)
    formats, names = choose_files(there)
    if not names or len(formats) > 1:
        raise explain_folder(path, names or list(there))
    return formats[0] if formats else None, [there.get(name, name) for name in names]


def open_files(
    found: FileFormat | None, paths: Sequence[str], columns: Sequence[str] | None, options: Options | None
) -> RandomAccessDataSource[Any]:
    """Return the source of files or patterns of one format; None is the format of images and other whole files."""
    if found is not None and found.source is None:
        raise UnknownFormat(
            f"{redact.show(paths[0])} is a file of the format {found.name}, which can only be read in order. Write "
            f"`{_STREAMS[found.name]}`, or convert it to a format with random access: {_CONVERSIONS[found.name]}."
        )
    some: dict[str, Any] = {} if columns is None else {"columns": columns}
    if some and (found is None or found.name not in _WITH_COLUMNS):
        raise ValueError(
            f"{redact.show(paths[0])} has no columns: its records are whole. Leave out columns={columns!r}. These "
            f"formats have columns: {', '.join(_WITH_COLUMNS)}."
        )
    given = paths[0] if len(paths) == 1 else paths
    if found is None:
        return FileDataSource(given, storage_options=options)
    if not is_array_file(found):
        return found.load_source()(given, **some, storage_options=options)
    if len(paths) == 1:
        return ArrayDataSource(found.load_source()(given, **some, storage_options=options))
    return ArrayFiles(paths, columns, options)


class ArrayFiles:
    """One record for each file of arrays: a dict of the file's path and its arrays.

    Args:
      paths: the files.
      columns: load only these arrays of each file; all by default.
      options: of the store that holds them.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str] | None = None, options: Options | None = None):
        self._paths, self._columns, self._options = list(paths), columns, redact.Options(options or {})

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self._paths[index]
        arrays = load_arrays(path, columns=self._columns, storage_options=self._options)
        return {"path": redact.remove_query(path)} | (arrays if isinstance(arrays, dict) else {"array": arrays})

    def __repr__(self) -> str:
        return f"ArrayFiles({redact.show(self._paths[0])}, ...)"


def explain_folder(folder: str, names: Sequence[str]) -> ValueError:
    """Return the error to raise for a folder whose files cannot be read together."""
    known = sorted({_get_ending(name, found) for name in names if (found := find_format(name)) is not None})
    if len(known) > 1:
        return ValueError(
            f"{redact.show(folder)} has files of several formats ({', '.join(known)}). Name those to read, with a "
            f"pattern such as '{redact.show(folder.rstrip('/'))}/*{known[0]}'."
        )
    if not names:
        return ValueError(f"{redact.show(folder)} has no files. Name a file, or a pattern such as 'data/*.tfrecord*'.")
    count = "1 file" if len(names) == 1 else f"{len(names):,} files"
    return ValueError(
        f"{redact.show(folder)} has {count}, and none of a format that Bushel reads. Name a file, or a pattern such as "
        "'data/*.tfrecord*'."
    )


def _get_ending(name: str, found: FileFormat) -> str:
    """Return the ending of a name: ".parquet", ".jsonl.gz", and ".tfrecord*" of a shard."""
    lowered = name.rstrip("/").lower()
    fitting = [ending for ending in found.endings if lowered.endswith(ending)]
    return max(fitting, key=len) if fitting else f"{found.endings[0]}*"


_SAVED = re.compile(r"(^|/)part-\d{5}\.(array_record|bag|bagz|parquet|tfrecord)$")
"""The names of the files that `ds.save` writes."""

_EPISODES = "bushel._src.trajectory.episode_builder"
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
    """Open a file, a pattern or a folder with the source of its format, which the ending or the folder's files show.

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
    found = find_format(text)
    if columns is None and (found is None or found.name == "HDF5"):
        episodes = _open_episodes(text, split, storage_options)
        if episodes is not None:
            return episodes
    return open_records(text, columns=columns, split=split, options=storage_options)


def _open_episodes(text: str, split: str | None, options: Options | None) -> RandomAccessDataSource[Any] | None:
    """Return the source of a data set of robots; None if there is none at the path, or one that TFDS has prepared."""
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
        return importlib.import_module("bushel._src.trajectory.lerobot.reader").LeRobotSource(
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
    """Return the same as `open`, for what is not a data set of robots."""
    found = find_format(text)
    whole = found is None and is_whole_file(text)
    if found is None and not whole and file_exists(join_path(text, HUGGING_FACE), options):
        _refuse(text, "split", split)
        return _open_hugging_face(text, columns, options)
    if found is None and not whole and file_exists(join_path(text, "dataset_info.json"), options):
        _refuse(text, "columns", columns)
        return _open_tfds(text, split, options)
    _refuse(text, "split", split)
    if found is not None or whole:
        return open_files(found, [text], columns, options)
    if file_exists(join_path(text, MANIFEST), options):
        _refuse(text, "columns", columns)
        return SavedDataSource(text, storage_options=options)
    if is_web(text):
        raise explain_web_folder(text)
    if is_folder(text, options):
        if file_exists(join_path(text, _HUGGING_FACE_SPLITS), options):
            raise UnknownFormat(_explain_splits(text, options))
        kind, files = find_folder_files(text, options)
        _refuse_unfinished(text, files, options)
        return open_files(kind, files, columns, options)
    raise UnknownFormat(_explain_unknown(text))


def _refuse_unfinished(text: str, files: Sequence[str], options: Options | None) -> None:
    """Raise an error for a folder that `ds.save` has not completed: without its manifest, files are mere bytes."""
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
    """Return the records in a folder of `save_to_disk`. Its `state.json` names the Arrow files in their order."""
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
    return open_files(find_format(files[0]), files, columns, options)


def _explain_splits(text: str, options: Options | None) -> str:
    """Return why a folder with several splits of Hugging Face datasets is not one data set."""
    shown = redact.show(text)
    content = file_access.open_file(join_path(text, _HUGGING_FACE_SPLITS), options)
    try:
        splits = list(map(str, json.loads(content.read(0, content.size))["splits"]))
    except (ValueError, LookupError, TypeError):
        splits = []
    calls = ", ".join(f"`bushel.sources.open({shown.rstrip('/') + '/' + name!r})`" for name in splits or ["train"])
    return f"{shown} is a DatasetDict of Hugging Face datasets. Open one of its splits: {calls}."


def _explain_unknown(text: str) -> str:
    """Return why a path cannot be opened, with the call that opens what is there."""
    shown = redact.show(text)
    if re.fullmatch(r"[\w-]+(/[\w.-]+)?", text) and not os.path.exists(text):
        return (
            f"{shown} does not exist here. For a data set of the Hugging Face Hub, write "
            f'`bushel.MapDataset.source(datasets.load_dataset("{text}", split="train"))`, or open the folder that '
            f'`huggingface_hub.snapshot_download("{text}", repo_type="dataset")` returns.'
        )
    known = ", ".join(list_endings())
    return (
        f"Bushel does not know the format of {shown}: it ends in none of {known}, and it is not a folder "
        "that ds.save or TFDS wrote. Open it with the source of its format, from bushel.sources; "
        "`bushel.sources.FileDataSource(path)` reads files of any format as bytes."
    )
