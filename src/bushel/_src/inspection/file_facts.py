"""Facts of files: of records (ArrayRecord, TFRecord, Bagz, text, tar), of tables and of arrays.

The tables are Parquet, Arrow and Lance; the arrays HDF5, Zarr, NumPy and safetensors. Each file is opened by itself.
"""

from __future__ import annotations

import itertools
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.shown_text import Progress
from bushel._src.inspection.facts import EntryFacts, Facts, FileFacts, list_columns, name_bytes
from bushel._src.sources import array_files, file_access, source_by_path
from bushel._src.sources.checksums import check_checksums
from bushel._src.sources.paths import Options, is_url

READ_ERRORS = (OSError, ValueError, EOFError, ArithmeticError, LookupError)
"""What reading a file may raise that is damaged, missing, or of another format than its name says.

Not ImportError: a package that is missing is not damage.
"""

SAMPLE = 200
"""How many records are read without --scan."""
_SAMPLE_BYTES = 32 << 20
_COUNTED_BYTES = 1 << 30
"""Formats whose records can only be counted by reading the files are counted up to this size."""
_BLOCK = 256
_MOST_DAMAGE = 20


def inspect_records(
    facts: Facts, paths: Sequence[str], open_source: Callable[[], Any], options: Options | None, scan: bool
) -> Facts:
    """Fill in the facts of record files that can be read at any position."""
    source_type = open_source()
    must_read = facts.format in ("TFRecord", "lines of text")  # these formats have no index in their files
    facts.files = [measure_file(path, options) for path in paths]
    facts.size_bytes = sum(file.size_bytes or 0 for file in facts.files)
    _describe_checksums(facts, paths, options, "compared" if scan else "compared with --scan")
    if must_read and facts.size_bytes > _COUNTED_BYTES and not scan:
        facts.notes.append("The records are not counted, since that reads all files: pass --scan.")
        if facts.format == "TFRecord":
            _describe_first(facts, _stream_tfrecord(paths[0], options))
        return facts
    opened: list[tuple[FileFacts, Any]] = []
    with Progress("opening files", len(paths), unit="files", delay_s=1) as bar:
        for number, (file, path) in enumerate(zip(facts.files, paths), start=1):
            try:
                if not file.error:
                    source = source_type(path, storage_options=options, **_verifying(facts, scan))
                    file.records = len(source)
                    opened.append((file, source))
            except READ_ERRORS as error:
                file.error = str(error)
            if file.error:
                facts.damage.append(file.error)
            bar.show(number)
    facts.count = sum(file.records or 0 for file in facts.files)
    if scan:
        check_beside(facts, paths, options)
    sizes = _scan(facts, opened) if scan else _sample(facts, opened)
    whose = "all" if scan else f"{len(sizes):,}"
    facts.add_histogram(f"bytes of a record ({whose} records)", sizes)
    return facts


def _verifying(facts: Facts, scan: bool) -> dict[str, Any]:
    """Return the argument that has each record compared with its checksum, for formats that have some."""
    return {"verify": True} if scan and facts.format in ("TFRecord", "ArrayRecord") else {}


def measure_file(path: str, options: Options | None) -> FileFacts:
    """Return the size of a file, or why it cannot be opened."""
    try:
        return FileFacts(redact.base_name(path), file_access.open_file(path, options).size)
    except FileNotFoundError:
        return FileFacts(redact.base_name(path), error=f"{redact.show(path)} does not exist.")
    except READ_ERRORS as error:
        return FileFacts(redact.base_name(path), error=str(error))


def _describe_checksums(facts: Facts, paths: Sequence[str], options: Options | None, compared: str) -> None:
    if facts.format == "TFRecord":
        facts.details["checksums"] = f"CRC32C of each record, {compared}"
    elif facts.format == "ArrayRecord":
        facts.details["checksums"] = f"HighwayHash of each chunk, {compared}"
    else:
        beside = [path for path in paths if _exists(f"{path}.checksums", options)]
        if beside:
            facts.details["checksums"] = f"beside {len(beside)} of {len(paths)} files, {compared}"
        else:
            facts.details["checksums"] = "none (bushel.sources.write_checksums writes some)"


def check_beside(facts: Facts, paths: Sequence[str], options: Options | None) -> None:
    """Compare files with the checksums that lie beside them, and names those that differ."""
    for path in paths:
        if _exists(f"{path}.checksums", options):
            try:
                check_checksums(path, storage_options=options)
            except READ_ERRORS as error:
                facts.damage.append(str(error))


def _exists(path: str, options: Options | None) -> bool:
    try:
        file_access.open_file(path, options)
    except READ_ERRORS:
        return False
    return True


def _sample(facts: Facts, opened: list[tuple[FileFacts, Any]]) -> list[int]:
    """Read some records, spread over the first file, and describe the first. Return their sizes."""
    sizes: list[int] = []
    for _, source in opened:
        if not len(source):
            continue
        for place in dict.fromkeys(np.linspace(0, len(source) - 1, min(SAMPLE, len(source))).astype(int).tolist()):
            try:
                record = source[place]
            except READ_ERRORS as error:
                facts.damage.append(str(error))
                break
            if not sizes:
                describe_record(facts, record)
            sizes.append(len(record))
            if sum(sizes) > _SAMPLE_BYTES:
                break
        if sizes:
            break
    return sizes


def _scan(facts: Facts, opened: list[tuple[FileFacts, Any]]) -> list[int]:
    """Read all records, and names those that are damaged. Return the sizes of the others."""
    sizes: list[int] = []
    done = 0
    with Progress("reading", sum(len(source) for _, source in opened), unit="records") as bar:
        for file, source in opened:
            lost = 0
            for low in range(0, len(source), _BLOCK):
                places = range(low, min(low + _BLOCK, len(source)))
                for record in _read_block(source, places):
                    if isinstance(record, Exception):
                        lost += 1
                        if len(facts.damage) < _MOST_DAMAGE:
                            facts.damage.append(str(record))
                        continue
                    if not sizes:
                        describe_record(facts, record)
                    sizes.append(len(record))
                done += len(places)
                bar.show(done)
            if lost:
                file.error = f"{lost:,} of {len(source):,} records cannot be read"
    return sizes


def _read_block(source: Any, places: range) -> Iterator[Any]:
    """Yield the records at `places`, and the error in place of each that cannot be read."""
    try:
        yield from source.__getitems__(list(places))
        return
    except READ_ERRORS:
        pass  # one of them is damaged: find out which
    for place in places:
        try:
            yield source[place]
        except READ_ERRORS as error:
            yield error


def describe_record(facts: Facts, record: bytes) -> None:
    """Describe a record: the features of a tf.train.Example, the keys of JSON, or what the bytes seem to be."""
    if facts.format == "lines of text":
        _describe_line(facts, record)
        return
    from bushel._src.sources.protocol_buffers import decode_example

    try:
        features = decode_example(record)
    except READ_ERRORS:
        features = {}
    if features:
        facts.details["records are"] = "tf.train.Example"
        facts.schema = [_describe_feature(name, value) for name, value in features.items()]
    else:
        facts.details["records are"] = name_bytes(record)


def _describe_feature(name: str, value: Any) -> EntryFacts:
    (column,) = list_columns(value, name) if len(value) else [EntryFacts(name, "empty")]
    return column


def _describe_line(facts: Facts, line: bytes) -> None:
    ending = facts.target.rpartition(".")[2].lower()
    if ending == "csv":
        facts.details["records are"] = "lines of a CSV file (the first is its head)"
        facts.schema = [EntryFacts(name.strip().strip('"'), "") for name in line.decode(errors="replace").split(",")]
        return
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if isinstance(value, dict):
        facts.details["records are"] = "JSON"
        facts.schema = list(list_columns(value))
    else:
        facts.details["records are"] = "text"


# Files that can only be read in order.


def _stream_tfrecord(path: str, options: Options | None) -> Iterator[bytes]:
    from bushel._src.sources.tfrecord import TFRecordStream

    reader = TFRecordStream(path, storage_options=options).open()
    try:
        while rows := reader.read(16):
            yield from rows
    finally:
        reader.close()


def inspect_streams(facts: Facts, paths: Sequence[str], options: Options | None, scan: bool) -> Facts:
    """Fill in the facts of compressed TFRecord files and of tar files, which can only be read in order."""
    facts.files = [measure_file(path, options) for path in paths]
    facts.size_bytes = sum(file.size_bytes or 0 for file in facts.files)
    facts.notes.append("These files can only be read in order: bushel convert makes files that can be shuffled.")
    open_stream = _stream_tar if facts.format == "WebDataset (tar)" else _stream_tfrecord
    if not scan:
        facts.notes.append(
            f"Counting reads all files: pass --scan. Entries and sizes are of the first {SAMPLE} records."
        )
        _describe_first(facts, open_stream(paths[0], options))
        return facts
    sizes: list[int] = []
    with Progress("reading", None, unit="records") as bar:
        for file, path in zip(facts.files, paths):
            before = len(sizes)
            try:
                for record in open_stream(path, options):
                    if not sizes:
                        _describe_any(facts, record)
                    sizes.append(_measure(record))
                    bar.show(len(sizes))
            except READ_ERRORS as error:
                file.error = str(error)
                facts.damage.append(str(error))
            file.records = len(sizes) - before
    facts.count = len(sizes)
    facts.add_histogram("bytes of a record (all records)", sizes)
    return facts


def _describe_first(facts: Facts, records: Iterator[Any]) -> None:
    """Describe the first record of a stream, and the sizes of the first ones."""
    sizes: list[int] = []
    try:
        for record in itertools.islice(records, SAMPLE):
            if not sizes:
                _describe_any(facts, record)
            sizes.append(_measure(record))
            if sum(sizes) > _SAMPLE_BYTES:
                break
    except READ_ERRORS as error:
        facts.damage.append(str(error))
    facts.add_histogram(f"bytes of a record ({len(sizes):,} records)", sizes)


def _describe_any(facts: Facts, record: Any) -> None:
    if isinstance(record, dict):
        facts.schema = list(list_columns(record))
    else:
        describe_record(facts, record)


def _measure(record: Any) -> int:
    return sum(map(len, record.values())) if isinstance(record, dict) else len(record)


def _stream_tar(path: str, options: Options | None) -> Iterator[dict[str, Any]]:
    from bushel._src.sources.webdataset import WebDatasetStream

    reader = WebDatasetStream(path, options).open()
    try:
        while rows := reader.read(16):
            yield from rows
    finally:
        reader.close()


def inspect_whole_files(facts: Facts, paths: Sequence[str], options: Options | None) -> Facts:
    """Fill in the facts of a folder of files that are one record each, such as images."""
    facts.unit, facts.count = "files", len(paths)
    kinds: dict[str, int] = {}
    sizes: list[int] = []
    for path in paths:
        ending = os.path.splitext(redact.remove_query(path))[1].lower() or "(no ending)"
        kinds[ending] = kinds.get(ending, 0) + 1
    for path in paths[: 10 * SAMPLE]:
        file = measure_file(path, options)
        if file.error:
            facts.damage.append(file.error)
        else:
            sizes.append(file.size_bytes or 0)
    facts.details["endings"] = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    facts.size_bytes = sum(sizes) if len(sizes) == len(paths) else None
    facts.add_histogram(f"bytes of a file ({len(sizes):,} files)", sizes)
    return facts


_MOST_FILES = 100_000
_ROWS_AT_ONCE = 1024


def inspect_parquet(facts: Facts, paths: Sequence[str], options: Options | None, scan: bool) -> Facts:
    """Fill in the facts of Parquet files, from the metadata at their ends. With `scan` all pages are decoded."""
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
            facts.schema = [EntryFacts(field.name, str(field.type)) for field in opened.schema_arrow]
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
    """Fill in the facts of Arrow files and Lance data sets, each opened by itself."""
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
    """Fill in the facts of HDF5 files and Zarr stores: their arrays, with chunks and compression."""
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


def _describe_array(name: str, array: Any) -> EntryFacts:
    notes = []
    chunks = getattr(array, "chunks", None)
    if chunks:
        notes.append(f"chunks {list(chunks)}")
    compression = getattr(array, "compression", None)
    if compression:
        notes.append(str(compression))
    if getattr(array, "fletcher32", False):
        notes.append("checksums")
    return EntryFacts(name, f"{array.dtype}{list(array.shape) or ''}", ", ".join(notes))


def _count_rows(facts: Facts, arrays: dict[str, Any]) -> None:
    lengths = {array.shape[0] if array.shape else None for array in arrays.values()}
    if len(lengths) == 1 and None not in lengths:
        facts.unit, facts.count = "rows", lengths.pop()
    else:
        facts.unit, facts.count = "arrays", len(arrays)
        facts.notes.append("The arrays have several lengths: open them by name, or with group= if groups are records.")


def _read_array(array: Any) -> None:
    """Read all of an array, some rows at a time, so that damage shows."""
    if not array.shape:
        array[()]
        return
    step = max(1, (16 << 20) // max(1, array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))))
    for low in range(0, array.shape[0], step):
        array[low : low + step]


def inspect_arrays(facts: Facts, paths: Sequence[str], options: Options | None, scan: bool) -> Facts:
    """Fill in the facts of `.npy`, `.npz` and safetensors files. Of compressed arrays only the heads are read."""
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


def _list_arrays(path: str, options: Options | None) -> Iterator[EntryFacts]:
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
                yield EntryFacts(member.filename.removesuffix(".npy"), f"{dtype}{list(shape) or ''}", packed)
        return
    arrays = array_files.load_arrays(path, storage_options=options)
    for name, array in (arrays if isinstance(arrays, dict) else {"": arrays}).items():
        yield EntryFacts(name, f"{array.dtype}{list(array.shape) or ''}")


def measure_store(path: str, options: Options | None) -> Any:
    """Return the size of a file, or of all files of a local folder with up to 100,000 of them."""
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
        for low in range(0, len(source), _ROWS_AT_ONCE):
            source.__getitems__(list(range(low, min(low + _ROWS_AT_ONCE, len(source)))))
            bar.show(min(low + _ROWS_AT_ONCE, len(source)))
