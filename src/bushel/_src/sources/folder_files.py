"""The files of one format in a folder and in the folders in it, opened as one source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bushel._src.base import redact
from bushel._src.base.errors import UnknownFormat
from bushel._src.sources import file_access, output_folders
from bushel._src.sources.array_files import load_arrays
from bushel._src.sources.file_formats import FileFormat, choose_files, find_format, is_array_file
from bushel._src.sources.memory_sources import ArrayDataSource
from bushel._src.sources.paths import Options
from bushel._src.sources.protocol import RandomAccessDataSource
from bushel._src.sources.whole_files import FileDataSource

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
    """The format of the files in a folder and in its folders, and the files; None for images and other whole files.

    Raises:
      ValueError: if there are no files that Bushel reads, or files of several formats.
    """
    folder = output_folders.open_folder(path, options)
    there = file_access.resolve_shards(map(folder.path, folder.names(deep=True)), options)
    formats, names = choose_files(there)
    if not names or len(formats) > 1:
        raise explain_folder(path, names or list(there))
    return formats[0] if formats else None, [there.get(name, name) for name in names]


def open_files(
    found: FileFormat | None, paths: Sequence[str], columns: Sequence[str] | None, options: Options | None
) -> RandomAccessDataSource[Any]:
    """The source of files or patterns of one format; None is the format of images and other whole files."""
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
    """The error to raise for a folder whose files cannot be read together."""
    known = sorted({_get_ending(name, found) for name in names if (found := find_format(name)) is not None})
    if len(known) > 1:
        return ValueError(
            f"{redact.show(folder)} has files of several formats ({', '.join(known)}). Name those to read, with a "
            f"pattern such as '{redact.show(folder.rstrip('/'))}/*{known[0]}'."
        )
    count = "no files" if not names else "1 file" if len(names) == 1 else f"{len(names):,} files"
    return ValueError(
        f"{redact.show(folder)} has {count}{', and none of a format that Bushel reads' if names else ''}. Name a file, "
        "or a pattern such as 'data/*.tfrecord*'."
    )


def _get_ending(name: str, found: FileFormat) -> str:
    """The ending of a name: ".parquet", ".jsonl.gz", and ".tfrecord*" of a shard."""
    lowered = name.rstrip("/").lower()
    fitting = [ending for ending in found.endings if lowered.endswith(ending)]
    return max(fitting, key=len) if fitting else f"{found.endings[0]}*"
