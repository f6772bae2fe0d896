"""Folders that `ds.save` wrote: files of one format, and a manifest that describes the elements."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import blocks, checks, redact, sealed
from bushel._src.base.errors import DamagedFile
from bushel._src.base.state_names import in_states
from bushel._src.sources import element_records, file_access
from bushel._src.sources.element_records import Layout
from bushel._src.sources.element_rows import decode_row
from bushel._src.sources.output_folders import join_path
from bushel._src.sources.paths import Options, Path, normalize_path

MANIFEST = "bushel.json"
PROGRESS = ".saving.json"
"""The file that `ds.save` writes into a folder whose files are not complete."""
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of `bushel.json`, which describes a folder of saved elements."""

    format: str
    files: tuple[str, ...]
    counts: tuple[int, ...]
    """The number of elements in each file."""
    layout: Layout
    identity: str = ""
    """A digest of the pipeline that made the elements."""
    skipped: int = 0
    """How many elements failed and were left out."""

    def content(self) -> dict[str, Any]:
        """The manifest as plain data. The caller writes it with a checksum."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @staticmethod
    def parse(data: bytes, where: str) -> Manifest:
        """Parses and checks a manifest that was read from `where`. A manifest written by hand may lack a checksum."""
        content = sealed.parse_json(data, where, needs_checksum=False)
        match content:
            case {
                "version": int(version),
                "format": str(kind),
                "files": list(files),
                "counts": list(counts),
                "layout": layout,
                "identity": str(identity),
            }:
                pass
            case _:
                raise DamagedFile(f"{where} is not a manifest of saved elements.")
        if version != VERSION:
            raise DamagedFile(f"{where} has version {version}; this Bushel reads version {VERSION}.")
        for name in files:
            if not isinstance(name, str) or not name or os.path.basename(name) != name:
                raise DamagedFile(f"{where} names the file {name!r}, which does not lie in its folder.")
        if len(counts) != len(files) or any(type(count) is not int or count < 0 for count in counts):
            raise DamagedFile(f"{where} names {len(files)} files, but its counts are {counts}.")
        skipped = content.get("skipped", 0)  # a manifest written by hand may lack it
        if type(skipped) is not int or skipped < 0:
            raise DamagedFile(f"{where} says that {skipped!r} elements were skipped.")
        if kind not in SOURCES:
            raise DamagedFile(f"{where} has files of format {kind!r}; there are {', '.join(SOURCES)}.")
        layout = element_records.check_layout(layout, f"layout in {where}")
        return Manifest(kind, tuple(files), tuple(counts), layout, identity, skipped)


def _open_array_record(paths: list[str], options: Any) -> Any:
    from bushel._src.sources.array_record import ArrayRecordDataSource

    return ArrayRecordDataSource(paths, storage_options=options)


def _open_tfrecord(paths: list[str], options: Any) -> Any:
    from bushel._src.sources.tfrecord import TFRecordDataSource

    return TFRecordDataSource(paths, storage_options=options)


def _open_bagz(paths: list[str], options: Any) -> Any:
    from bushel._src.sources.bagz import BagzDataSource

    return BagzDataSource(paths, storage_options=options)


def _open_parquet(paths: list[str], options: Any) -> Any:
    from bushel._src.sources.parquet import ParquetDataSource

    return ParquetDataSource(paths, storage_options=options)


SOURCES: dict[str, Callable[[list[str], Any], Any]] = {
    "array_record": _open_array_record,
    "bag": _open_bagz,
    "bagz": _open_bagz,
    "parquet": _open_parquet,
    "tfrecord": _open_tfrecord,
}
"""For each format, a function that opens its files."""


@in_states("SavedDataSource")
class SavedDataSource:
    """The elements that `ds.save(folder)` wrote, by position: the same trees, dtypes and values.

    Args:
      path: the folder of `ds.save`, local or in an object store.
      storage_options: options of the store, such as its region.

    >>> import tempfile
    >>> import bushel
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = bushel.MapDataset.range(3).map(lambda x: {"x": np.full(2, x)}).save(folder.name)
    >>> SavedDataSource(folder.name)[2]
    {'x': array([2, 2])}
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, *, storage_options: Options | None = None):
        self._folder = normalize_path(path).rstrip("/")
        file = file_access.open_file(join_path(self._folder, MANIFEST), storage_options)
        self._manifest = Manifest.parse(file.read(0, file.size), file.name)
        paths = [
            join_path(self._folder, name) for name, count in zip(self._manifest.files, self._manifest.counts) if count
        ]
        self._records: Any = SOURCES[self._manifest.format](paths, storage_options) if paths else []
        if len(self._records) != sum(self._manifest.counts):
            raise DamagedFile(
                f"The files of {redact.show(self._folder)} have {len(self._records)} records, but {MANIFEST} says "
                f"{sum(self._manifest.counts)}."
            )

    @property
    def layout(self) -> Layout:
        """The layout of the elements; see `bushel._src.sources.element_records`."""
        return self._manifest.layout

    @property
    def costs_round_trip(self) -> bool:
        """Whether the records are in files behind URLs."""
        return getattr(self._records, "costs_round_trip", False)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([checks.position(index, len(self))])[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[Any]:
        """The elements at `indices`."""
        places = checks.positions(indices, len(self))
        records = blocks.rows_of(self._records.__getitems__(places)) if len(places) else []
        restore = decode_row if self._manifest.format == "parquet" else element_records.decode
        return [
            self._decode_record(restore, record, place) for record, place in zip(records, places.tolist(), strict=True)
        ]

    def _decode_record(self, restore: Callable[[Any, Layout], Any], record: Any, place: int) -> Any:
        try:
            return restore(record, self.layout)
        except DamagedFile as error:
            raise DamagedFile(f"Element {place} of {self!r} is damaged: {error}") from None

    def fingerprint(self) -> Any:
        """The names, sizes and times of the files, for the identity in checkpoints."""
        return [] if isinstance(self._records, list) else self._records.fingerprint()

    def __repr__(self) -> str:
        return f"SavedDataSource({redact.base_name(self._folder)}: {len(self)} elements)"
