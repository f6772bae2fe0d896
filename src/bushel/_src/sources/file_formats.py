"""The file formats that Bushel reads, by the endings of names: the table of `open`, `bushel view` and `inspect`.

How a format is read belongs to its own module; which formats can be converted into which belongs to `conversion.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from collections.abc import Iterable
from typing import Any

from bushel._src.base import redact
from bushel._src.sources import compressed_files
from bushel._src.sources.shard_journals import final_name, is_staged


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
        """The class of the source."""
        assert self.source is not None
        module, name = self.source
        return getattr(importlib.import_module(f"bushel._src.sources.{module}"), name)


TEXTS = tuple(text + end for text in (".txt", ".jsonl", ".csv") for end in ("", *compressed_files.ENDINGS))
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
    FileFormat("lines of text", TEXTS, ("text_lines", "LineDataSource")),
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
    """The format that the ending of a path or URL stands for; None if no format has this ending.

    >>> [find_format(name).name for name in ("a.bag", "train.tfrecord-00000-of-00004", "https://host/x.csv.gz?token=1")]
    ['Bagz', 'TFRecord', 'lines of text']
    """
    name = _SHARD.sub("", final_name(redact.remove_query(path)).rstrip("/").lower())
    return next((one for ending, one in _BY_ENDING if name.endswith(ending)), None)


def find_ending(path: str) -> str:
    """The ending of a path: the one that names its format, also before the number of a shard, or the last one.

    >>> [find_ending(name) for name in ("x.csv.gz", "train.tfrecord-00000-of-00004", "notes.md")]
    ['.csv.gz', '.tfrecord', '.md']
    """
    name = _SHARD.sub("", os.path.basename(path).lower())
    return next((ending for ending, _ in _BY_ENDING if name.endswith(ending)), os.path.splitext(name)[1])


def is_whole_file(path: str) -> bool:
    """Whether a file is one record: an image, a sound, a video, or a JSON document."""
    return redact.remove_query(path).lower().endswith(_WHOLE_FILES)


def is_array_file(found: FileFormat) -> bool:
    """Whether the files of a format hold arrays that are loaded one file at a time."""
    return found.source == _ARRAYS


def list_endings(*, readable: bool = True) -> list[str]:
    """The endings of all formats, or of those that are read by position."""
    return [ending for one in FORMATS if one.source is not None or not readable for ending in one.endings]


def choose_files(names: Iterable[str]) -> tuple[list[FileFormat], list[str]]:
    """The formats of the files in a folder, and the names of those to read.

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
    """The path up to the first folder that is a data set of its own, such as "data/a.zarr"; None if there is none."""
    parts = name.split("/")
    for count in range(1, len(parts)):
        found = find_format(parts[count - 1])
        if found is not None and found.is_folder:
            return "/".join(parts[:count])
    return None
