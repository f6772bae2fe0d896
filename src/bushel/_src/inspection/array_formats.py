"""Files of tables and of arrays: Parquet, Arrow, Lance, HDF5, Zarr, NumPy and safetensors."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.progress import Progress
from bushel._src.inspection.facts import Column, Facts, list_columns
from bushel._src.inspection.record_formats import READ_ERRORS, check_beside, measure_file
from bushel._src.sources import array_files, file_access, source_by_path
from bushel._src.sources.paths import Options, is_url

_MOST_FILES = 100_000
_BLOCK = 1024


def inspect_parquet(facts: Facts, paths: Sequence[str], options: Options | None, scan: bool) -> Facts:
    """Fills in the facts of Parquet files, from the metadata at their ends. With `scan` all pages are decoded."""
    from bushel._src.sources.parquet import get_group_lengths, open_parquet, read_group

    facts.unit = "rows"
    facts.files = [measure_file(path, options) for path in paths]
    facts.size_bytes = sum(file.size_bytes or 0 for file in facts.files)
    groups: list[int] = []
    compressions: set[str] = set()
    for file, path in zip(facts.files, paths):
        try:
            opened = open_parquet(file_access.open_file(path, options), {})
            lengths = get_group_lengths(opened)
            if scan:
                with Progress(f"reading {file.name}", len(lengths), unit="row groups") as bar:
                    for number in range(len(lengths)):
                        read_group(opened, redact.show(path), number, None)
                        bar.show(number + 1)
        except READ_ERRORS as error:
            file.error = str(error)
            facts.damage.append(str(error))
            continue
        file.records = opened.metadata.num_rows
        groups += lengths
        if not facts.schema:
            facts.schema = [Column(field.name, str(field.type)) for field in opened.schema_arrow]
            facts.details["written by"] = opened.metadata.created_by or "unknown"
        if lengths:
            group = opened.metadata.row_group(0)
            compressions |= {group.column(number).compression for number in range(group.num_columns)}
    facts.count = sum(file.records or 0 for file in facts.files)
    facts.details["row groups"] = len(groups)
    facts.details["compression"] = ", ".join(sorted(compressions)) or "none"
    facts.details["checksums"] = "of pages, where the writer has made some; compared when they are read"
    facts.add_histogram("rows of a row group", groups)
    return facts


def inspect_tables(facts: Facts, paths: Sequence[str], options: Options | None, scan: bool) -> Facts:
    """Fills in the facts of Arrow files and Lance data sets, each opened by itself."""
    facts.unit = "rows"
    for path in paths:
        file = measure_store(path, options)
        facts.files.append(file)
        try:
            source = source_by_path.open(path, storage_options=dict(options) if options else None)
            file.records = len(source)
            if len(source) and not facts.schema:
                facts.schema = list(list_columns(source[0]))
            if scan:
                _read_all(source, file.name)
        except READ_ERRORS as error:
            file.error = str(error)
            facts.damage.append(str(error))
    facts.count = sum(file.records or 0 for file in facts.files)
    facts.size_bytes = _add_sizes(facts)
    return facts


def inspect_stores(facts: Facts, paths: Sequence[str], options: Options | None, scan: bool) -> Facts:
    """Fills in the facts of HDF5 files and Zarr stores: their arrays, with chunks and compression."""
    layout: Callable[[str, Any], Any]
    if facts.format == "HDF5":
        from bushel._src.sources.hdf5 import HDF5Format as layout
    else:
        from bushel._src.sources.zarr import ZarrFormat as layout
    facts.unit = "arrays"
    for path in paths:
        file = measure_store(path, options)
        facts.files.append(file)
        try:
            store = layout(path, options)
            arrays = store.open_arrays(None)
            file.records = len(arrays)
            if not facts.schema:
                facts.schema = [_describe_array(name, array) for name, array in sorted(arrays.items())]
                _count_rows(facts, arrays)
            if scan:
                for name, array in arrays.items():
                    store.read(lambda array=array: _read_array(array), f"the array {name!r}")
        except READ_ERRORS as error:
            file.error = str(error)
            facts.damage.append(str(error))
    facts.size_bytes = _add_sizes(facts)
    facts.details["checksums"] = "where the files have some (fletcher32, crc32c): compared with --scan"
    return facts


def _describe_array(name: str, array: Any) -> Column:
    notes = []
    chunks = getattr(array, "chunks", None)
    if chunks:
        notes.append(f"chunks {list(chunks)}")
    compression = getattr(array, "compression", None)
    if compression:
        notes.append(str(compression))
    if getattr(array, "fletcher32", False):
        notes.append("checksums")
    return Column(name, f"{array.dtype}{list(array.shape) or ''}", ", ".join(notes))


def _count_rows(facts: Facts, arrays: dict[str, Any]) -> None:
    lengths = {array.shape[0] if array.shape else None for array in arrays.values()}
    if len(lengths) == 1 and None not in lengths:
        facts.unit, facts.count = "rows", lengths.pop()
    else:
        facts.unit, facts.count = "arrays", len(arrays)
        facts.notes.append("The arrays have several lengths: open them by name, or with group= if groups are records.")


def _read_array(array: Any) -> None:
    """Reads all of an array, some rows at a time, so that damage shows."""
    if not array.shape:
        array[()]
        return
    step = max(1, (16 << 20) // max(1, array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))))
    for low in range(0, array.shape[0], step):
        array[low : low + step]


def inspect_arrays(facts: Facts, paths: Sequence[str], options: Options | None, scan: bool) -> Facts:
    """Fills in the facts of `.npy`, `.npz` and safetensors files. Of compressed arrays only the heads are read."""
    facts.unit = "arrays"
    for path in paths:
        file = measure_file(path, options)
        facts.files.append(file)
        try:
            columns = list(_list_arrays(path, options))
            file.records = len(columns)
            facts.schema = facts.schema or columns
            if scan:
                arrays = array_files.load_arrays(path, storage_options=options)
                for array in arrays.values() if isinstance(arrays, dict) else [arrays]:
                    np.asarray(array).sum() if array.dtype.kind in "biuf" else np.asarray(array)
        except READ_ERRORS as error:
            file.error = str(error)
            facts.damage.append(str(error))
    if scan:
        check_beside(facts, paths, options)
    shapes = {column.type.partition("[")[2].partition(",")[0].rstrip("]") for column in facts.schema}
    if len(paths) == 1 and len(shapes) == 1 and (length := shapes.pop()).isdecimal():
        facts.unit, facts.count = "rows", int(length)
    else:
        facts.count = sum(file.records or 0 for file in facts.files)
    facts.size_bytes = _add_sizes(facts)
    return facts


def _list_arrays(path: str, options: Options | None) -> Iterator[Column]:
    if redact.remove_query(path).lower().endswith(".npz") and not is_url(path):
        if not zipfile.is_zipfile(path):
            raise DamagedFile(f"{path} is not a complete .npz file: it has no directory at its end.")
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    version = np.lib.format.read_magic(file)
                    read = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shape, _, dtype = read(file)
                packed = "compressed" if member.compress_type != zipfile.ZIP_STORED else ""
                yield Column(member.filename.removesuffix(".npy"), f"{dtype}{list(shape) or ''}", packed)
        return
    arrays = array_files.load_arrays(path, storage_options=options)
    for name, array in (arrays if isinstance(arrays, dict) else {"": arrays}).items():
        yield Column(name, f"{array.dtype}{list(array.shape) or ''}")


def measure_store(path: str, options: Options | None) -> Any:
    """The size of a file, or of all files of a local folder with up to 100,000 of them."""
    if is_url(path) or not os.path.isdir(path):
        return measure_file(path, options)
    file = measure_file("", None)
    file.name, file.error, total, seen = redact.base_name(path.rstrip("/")), "", 0, 0
    for above, _, names in os.walk(path):
        seen += len(names)
        if seen > _MOST_FILES:
            return file
        total += sum(os.path.getsize(os.path.join(above, name)) for name in names)
    file.size_bytes = total
    return file


def _add_sizes(facts: Facts) -> int | None:
    sizes = [file.size_bytes for file in facts.files]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _read_all(source: Any, name: str) -> None:
    with Progress(f"reading {name}", len(source), unit="rows") as bar:
        for low in range(0, len(source), _BLOCK):
            source.__getitems__(list(range(low, min(low + _BLOCK, len(source)))))
            bar.show(min(low + _BLOCK, len(source)))
